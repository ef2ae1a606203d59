"""Restarts by a launcher (``torchrun --max-restarts``): the run goes on from its last checkpoint by itself."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger("libreyolo")
NOTE = "job.txt"
"""The file in a run's directory that tells a restarted job which run was its own."""
_TRAINING = 0


def begin() -> None:
    """Another training begins in this process: a script may have several, and each of them is continued by itself."""
    global _TRAINING
    _TRAINING += 1


def training() -> int:
    """The number of the present training within the script, from 1."""
    return _TRAINING


def restarts() -> int:
    """How often the launcher has restarted this node's processes because one of them failed; 0 without such a launcher,
    and on a node that is restarted because of another one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)


def remember(directory: Path) -> None:
    """Note in a run's directory which training of which job it belongs to, where there is such a launcher."""
    if job := _job():
        (directory / NOTE).write_text(job, encoding="utf-8")


def resumed(project: str | Path, name: str) -> dict[str, Any]:
    """What ``train`` is to be given besides, so that a restarted job continues its run; nothing if it had none.

    Args:
        project, name: what the job's arguments say, wherever they come from.
    """
    run = _run(Path(project), name)
    if run is None:
        return {}
    if (run / "weights" / "last.pt").is_file():
        log.warning("restart of this job: continuing %s", run)
        return {"resume": str(run.resolve())}
    log.warning("restart of this job: %s has no checkpoint yet, starting anew", run)
    return {"name": name or run.name, "exist_ok": True}


def _job() -> str:
    """The name that the launcher gave this job, the same after a restart, and the number of the training; empty without
    such a launcher."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return job and f"{job} {training()}"


def _run(project: Path, name: str) -> Path | None:
    """The directory that this job made last, if it came that far; with a name it can only be that one."""
    notes = [
        file
        for file in ([project / name / NOTE] if name else project.glob(f"*/{NOTE}"))
        if file.is_file() and file.read_text(encoding="utf-8") == _job()
    ]
    return max(notes, key=lambda file: file.stat().st_mtime_ns).parent if notes else None
