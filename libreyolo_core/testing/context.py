"""What a check is given and how it says that it failed or cannot judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from libreyolo_core.family import Family, Task
from libreyolo_core.registry import registry
from libreyolo_core.testing.reference import Reference
from libreyolo_core.testing.steps import Subject, subject


class Failed(Exception):
    """The contract is broken; the message says how."""


class NotRun(Exception):
    """The check cannot be judged here; the message says why. Never counted as passed."""


@dataclass
class Context:
    """The family under examination.

    Args:
        reference: its numeric reference file, if one was given.
        folder: for files a check writes.
        replayed_steps: how long a check trains with a recording.
    """

    key: str
    task: str
    size: str
    reference: Reference | None
    folder: Path
    replayed_steps: int = 20

    @property
    def family(self) -> Family:
        """Its data sheet."""
        return registry().family(self.key)

    @property
    def sheet(self) -> Task:
        """The sheet of the task examined."""
        return self.family.tasks[self.task]

    def build(self, *, nc: int = 0, training: bool = True) -> Subject:
        """A fresh network from scratch; ``training``: with the modules that exist in training only."""
        return subject(self.key, size=self.size, task=self.task, nc=nc, training=training)

    @property
    def imgsz(self) -> int:
        """A small input side: 128 pixels, or the next that the input rule allows."""
        return self.side(128)

    def side(self, pixels: int) -> int:
        """``pixels``, or the next input side that the rule allows."""
        if self.sheet.input.fixed:
            return self.sheet.sizes[self.size].imgsz
        multiple = self.sheet.for_size(self.size).input.multiple
        return -(-pixels // multiple) * multiple

    def need_reference(self) -> Reference:
        """The reference file, or ``NotRun``."""
        if self.reference is None:
            raise NotRun("no reference file given (--reference FILE)")
        return self.reference
