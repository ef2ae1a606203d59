"""``check_family``: what the core demands of every family, as checks that anyone can run on their own package.

To add a check, write a function ``check(context: Context) -> str`` in ``checks/`` (its return value is the detail
line), raise ``Failed`` when the contract is broken and ``NotRun`` when it cannot be judged here, and add it to
``CHECKS``.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from libreyolo_core.errors import LibreYOLOError, UnknownNameError, suggestion
from libreyolo_core.registry import registry
from libreyolo_core.testing.checks import capturing, numbers, replaying, sheet, training, weights
from libreyolo_core.testing.context import Context, Failed, NotRun
from libreyolo_core.testing.reference import Reference

REPLAYED_STEPS = 20
"""Steps of the check ``replay``."""

CHECKS: dict[str, Callable[[Context], str]] = {
    "registration": sheet.registration,
    "parity": numbers.parity,
    "loss parity": numbers.loss_parity,
    "split": training.split,
    "capture": capturing.capture,
    "replay": replaying.replay,
    "learns": training.learns,
    "empty": training.empty,
    "precision": training.precision,
    "ranks": training.ranks,
    "classes": weights.classes,
    "checkpoint": weights.checkpoint,
    "export": weights.export,
}


@dataclass
class Report:
    """What ``check_family`` found: one row per check."""

    family: str
    rows: list[dict[str, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check that ran passed, and at least one ran."""
        ran = [r for r in self.rows if r["status"] != "not run"]
        return bool(ran) and all(r["status"] == "passed" for r in ran)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"family": self.family, "ok": self.ok, "checks": self.rows}

    def __str__(self) -> str:
        width = max((len(r["check"]) for r in self.rows), default=0)
        return "\n".join(f"{r['status']:8} {r['check']:{width}}  {r['detail']}" for r in self.rows)


def check_family(
    key: str,
    *,
    only: Iterable[str] = (),
    reference: str | Path | None = None,
    size: str = "",
    task: str = "",
) -> Report:
    """Run the contract's checks on an installed family.

    Args:
        only: names of checks, default all.
        reference: a numeric reference file; ``parity`` and ``loss parity`` need one.
        size: which size, default the reference's or the first of the sheet.
        task: which task, default the reference's or the first.

    Raises:
        UnknownNameError: no such family, size, task or check.
    """
    family = registry().family(key)
    file = Reference.read(reference) if reference else None
    task = task or (file.content["task"] if file else family.default_task)
    if task not in family.tasks:
        raise UnknownNameError(f"{key} has no task {task!r}", where="check-family", mend=suggestion(task, family.tasks))
    sizes = family.tasks[task].sizes
    size = size or (file.size if file else next(iter(sizes)))
    if size not in sizes:
        raise UnknownNameError(f"{key} has no size {size!r}", where="check-family", mend=suggestion(size, sizes))
    wanted = list(only) or list(CHECKS)
    for name in wanted:
        if name not in CHECKS:
            raise UnknownNameError(f"Unknown check {name!r}", where="check-family", mend=suggestion(name, CHECKS))
    report = Report(key)
    with tempfile.TemporaryDirectory() as folder:
        context = Context(key, task, size, file, Path(folder), REPLAYED_STEPS)
        for name in wanted:
            report.rows.append({"check": name, **_run(CHECKS[name], context)})
    return report


def _run(check: Callable[[Context], str], context: Context) -> dict[str, str]:
    threads = torch.get_num_threads()
    try:
        return {"status": "passed", "detail": check(context)}
    except NotRun as reason:
        return {"status": "not run", "detail": str(reason)}
    except Failed as reason:
        return {"status": "failed", "detail": str(reason)}
    except Exception as error:  # a stranger's code under test: whatever it raises is the finding
        text = str(error) if isinstance(error, LibreYOLOError) else f"{type(error).__name__}: {error}"
        return {"status": "failed", "detail": " ".join(text.split())[:400]}
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # recordings and networks of a check hold each other, and there are gigabytes of them
