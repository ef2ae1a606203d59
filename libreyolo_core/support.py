"""What a sheet says about the speed features, in the words that ``libreyolo families`` and the documentation share.

Everything is read from the sheet, with what other packages registered for it applied; no family's code is imported.
"""

from __future__ import annotations

from libreyolo_core.family import Task

NUMERICS = {"exact": "exact: the same numbers", "spread": "spread: as far apart as two eager runs"}


def support(task: Task) -> dict[str, str]:
    """Each feature with what holds for it: yes or no and why, in a few words."""
    capture = task.capture
    no_region = f"no: {capture.off_reason}" if capture.off_reason else ""
    not_predicting = capture.inference_off_reason or capture.off_reason
    amp = f"yes, {task.precision.dtype}" if task.precision.amp else "no"
    return {
        "inference capture": f"no: {not_predicting}" if not_predicting else "yes",
        "training capture": no_region or "yes",
        "full capture": no_region or ("yes" if task.loss.static else "no: the loss is not static-shaped"),
        "split point": split_point(task),
        "numerics": NUMERICS.get(capture.numerics, capture.numerics) if not no_region else "",
        "amp": amp + (f": {task.precision.why}" if task.precision.why else ""),
        "sync_bn": yes(task.ranks.sync_bn),
        "spawn": yes(task.ranks.spawn),
        "ranks": f"exempt: {task.ranks.exempt}" if task.ranks.exempt else "as one process",
    }


def split_point(task: Task) -> str:
    """The captured region of training in words."""
    return task.capture.label or f"none: {task.capture.off_reason}"


def yes(value: bool) -> str:
    """``yes`` or ``no``."""
    return "yes" if value else "no"
