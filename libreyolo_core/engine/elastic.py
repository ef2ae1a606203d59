"""Restarts by a launcher (``torchrun --max-restarts``): the run goes on from its last checkpoint by itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("libreyolo")


def restarts() -> int:
    """How often the launcher has restarted this job; 0 at its first start, or without such a launcher."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)


def note(project: str | Path) -> Path | None:
    """The file that tells a restarted job which run it was; ``None`` without a launcher that restarts."""
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    return Path(project) / f".run-of-{job}" if job else None


def remember(project: str | Path, directory: Path) -> None:
    """Note that this job's run lives in ``directory``."""
    file = note(project)
    if file is not None:
        file.write_text(str(directory.resolve()), encoding="utf-8")


def resumed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``train`` for this start of the job: after a restart, those that continue its run."""
    file = note(given.get("project", "runs/train"))
    if not restarts() or file is None or not file.is_file() or given.get("resume"):
        return dict(given)
    run = Path(file.read_text(encoding="utf-8"))
    if (run / "weights" / "last.pt").is_file():
        log.warning("restart %d of this job: continuing %s", restarts(), run)
        return {**given, "resume": str(run)}
    log.warning("restart %d of this job: %s has no checkpoint yet, starting anew", restarts(), run)
    return {**given, "name": run.name, "exist_ok": True}
