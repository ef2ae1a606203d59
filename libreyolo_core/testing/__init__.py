"""Tools for people who write families: the contract's checks, and training steps to count and time.

``check_family(key)`` runs every check that applies; ``training_step(...)`` is the very code the trainer runs, and
``count_step(...)`` counts what one dispatches. The deterministic weights and images of reference files are in
``libreyolo_core.testing.deterministic``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["OperationCounter", "check_family", "count_step", "training_step"]
_HOME = {"check_family": "contract", "training_step": "steps", "OperationCounter": "counting", "count_step": "counting"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"libreyolo_core.testing.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
