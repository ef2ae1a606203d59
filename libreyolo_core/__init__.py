"""LibreYOLO's core: hooks, registry, training engine, tasks, data, evaluation, export, command line.

Importing this package imports neither torch nor numpy; ``LibreYOLO`` is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libreyolo_core.threads import bound_spin

__version__ = "0.1.0"
__all__ = ["LibreYOLO", "__version__"]

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

bound_spin()


def __getattr__(name: str) -> Any:
    if name == "LibreYOLO":
        from libreyolo_core.api import LibreYOLO

        return LibreYOLO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
