"""Which of the general arguments of prediction and validation mean something to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libreyolo_core.errors import ConfigError


def only(given: Mapping[str, Any], known: tuple[str, ...], *, task: str, noun: str, mend: str) -> dict[str, Any]:
    """The arguments in ``given`` that are not left open and that the task knows.

    No argument is ever a silent no-op: one that the task does not know may be ``None`` or ``False`` only.

    Args:
        given: ``conf``, ``iou``, ``max_det``, ``classes``, ``agnostic``, ``radius`` and the like by name.
        known: the names that mean something to the task.
        task, noun: its name, and what its model is called in a sentence.
        mend: what to do instead.

    Raises:
        ConfigError: an argument that means nothing to the task.
    """
    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    for name, value in chosen.items():
        if name not in known:
            raise ConfigError(f"{name}={value!r} has no meaning for {noun}", where=f"task {task}", mend=mend)
    return chosen
