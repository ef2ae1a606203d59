"""The loss of every optimizer step of a run, which the run itself only logs as means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from libreyolo_core.engine import trainer


@contextmanager
def step_losses() -> Iterator[list[float]]:
    """Collects the total loss of each step trained inside the block, as this process saw it."""
    found: list[float] = []
    original = trainer.LossLog

    class Recorded(original):  # type: ignore[misc, valid-type]
        def add(self, terms: Any, *rest: Any) -> None:
            found.append(float(terms.total.detach()))
            super().add(terms, *rest)

    trainer.LossLog = Recorded  # type: ignore[misc]
    try:
        yield found
    finally:
        trainer.LossLog = original  # type: ignore[misc]
