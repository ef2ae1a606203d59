"""What a caller can hang into a run. Subclass ``Callback`` and pass objects as ``callbacks=``, or register a logger.

``run`` is the ``Trainer``: read ``run.epoch``, ``run.updates``, ``run.plan``, ``run.directory``; do not change it.
Every method may be left out. An exception in a callback stops the run like any other error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libreyolo_core.engine.plan import PhaseChanged
    from libreyolo_core.engine.trainer import Trainer


class Callback:
    """All moments of a run, in order."""

    def on_start(self, run: Trainer) -> None:
        """Everything is built, nothing has been trained. Also called when a run resumes."""

    def on_phase(self, run: Trainer, change: PhaseChanged) -> None:
        """Another phase begins, e.g. the last epochs without strong augmentation."""

    def on_step(self, run: Trainer) -> None:
        """The optimizer has stepped."""

    def on_epoch(self, run: Trainer, row: dict[str, Any]) -> None:
        """An epoch is over; ``row`` is its line of results.csv (metrics only where it was validated)."""

    def on_checkpoint(self, run: Trainer, path: Path) -> None:
        """A checkpoint has been written."""

    def on_end(self, run: Trainer) -> None:
        """The run is over, also when it was interrupted or failed."""
