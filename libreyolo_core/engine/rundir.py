"""The folder of a run: its name, its log file, and what describes it."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from libreyolo_core.errors import CheckpointError, UsageError

log = logging.getLogger("libreyolo")


def new_directory(project: str | Path, name: str, *, exist_ok: bool, default: str = "exp") -> Path:
    """Create and return ``project/name``; without a name ``exp``, ``exp2``, ... whichever is free.

    Raises:
        UsageError: a named folder that exists and is not empty, without ``exist_ok``, or one that cannot be made.
    """
    root = Path(project)
    if name and (Path(name).is_absolute() or ".." in Path(name).parts):
        raise UsageError(f"name={name!r} leaves the project folder", where="name", mend="Use project= for the folder.")
    try:
        if name:
            path = root / name
            if path.exists() and not exist_ok and any(path.iterdir()):
                raise UsageError(f"{path} exists", where="name", mend="Choose another name=, or exist_ok=true.")
            path.mkdir(parents=True, exist_ok=True)
            return path
        number = 1
        while True:
            path = root / (default if number == 1 else f"{default}{number}")
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise UsageError(
            f"{root} cannot be written: {error.strerror}", where="project", mend="Choose another project=."
        ) from error


def write_yaml(path: Path, content: Any) -> None:
    """Write readable YAML, keys in order."""
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


def environment() -> dict[str, Any]:
    """Versions, processor and devices, for ``environment.txt`` and ``libreyolo env``."""
    import cv2
    import numpy
    import torch
    import torchvision

    from libreyolo_core import __version__
    from libreyolo_core.engine.precision import cpu_has_bfloat16
    from libreyolo_core.registry import registry

    devices = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {
        "libreyolo": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": numpy.__version__,
        "opencv": cv2.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu bfloat16": cpu_has_bfloat16(),
        "cuda devices": devices,
        "plugins": {p.distribution: p.version for p in registry().plugins if not p.error},
    }


def checkpoint_to_resume(resume: Any, project: str | Path) -> Path | None:
    """The checkpoint that ``resume=`` means: that of the newest run under ``project`` for true, that of a run's folder,
    or the file itself; ``None`` when it is off.

    Raises:
        CheckpointError: ``resume=true``, and there is no run.
    """
    word = "" if resume is None else str(resume).lower()
    if word in ("", "false", "no", "off", "0"):
        return None
    if word in ("true", "yes", "on", "1"):
        found = sorted(Path(project).glob("*/weights/last.pt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise CheckpointError(
                f"resume={word} finds no run under {project}",
                where="resume",
                mend="Give the run's folder: resume=PATH.",
            )
        return found[-1]
    path = Path(resume)
    if path.is_dir():
        return path / "weights" / "last.pt" if (path / "weights").is_dir() else path / "last.pt"
    return path


@contextmanager
def quiet_unless_first(rank: int) -> Iterator[None]:
    """Ranks other than 0 say only what is wrong: everything else would be said once per rank."""
    before = log.level
    if rank:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append everything logged meanwhile to ``path``."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
