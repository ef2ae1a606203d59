"""What a call of ``train`` asks for: arguments from the call, from YAML and from the run that is resumed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.checkpoint import File, read
from libreyolo_core.config import Resolved, read_yaml_arguments, resolve_training
from libreyolo_core.engine.plan import scratch
from libreyolo_core.errors import CheckpointError, ConfigError, UsageError
from libreyolo_core.registry import registry

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

log = logging.getLogger("libreyolo")


@dataclass
class Request:
    """What a call of ``train`` comes down to: resolved arguments, and the checkpoint to continue from, if any."""

    resolved: Resolved
    from_scratch: bool
    checkpoint: File | None = None


def request(model: LibreYOLO, given: dict[str, Any], *, restarted: bool = False) -> Request:
    """Resolve arguments; nothing is read but YAML and, for a resume, the checkpoint.

    Args:
        restarted: a launcher has started this job again, so that a run may have ended before something else failed.

    Raises:
        ConfigError, UsageError, CheckpointError: see ``resolve_training``; a resume of a finished run.
    """
    given = dict(given)
    yaml = read_yaml_arguments(given.pop("cfg")) if given.get("cfg") else {}
    given.pop("cfg", None)
    checkpoint = None
    from_scratch = model.from_scratch or _is_off(given.get("pretrained", yaml.get("pretrained")))
    if given.get("resume") not in (None, False, "false", "False"):
        checkpoint = _checkpoint_of(given["resume"], given.get("project", "runs/train"))
        yaml, given, from_scratch = _saved_arguments(checkpoint, given)
        _check_identity(model, checkpoint)
    sheet = scratch(model.base_sheet) if from_scratch else model.base_sheet
    resolved = resolve_training(sheet, given, yaml, title=model.family.title)
    finished = checkpoint is not None and checkpoint.training.get("epoch", 0) >= resolved.sheet.recipe.epochs
    if checkpoint is not None and finished and not restarted:
        done = checkpoint.training["epoch"]
        raise UsageError(
            f"{checkpoint.path} is finished: all {done} epochs are done",
            where="resume",
            mend=f"To extend it give epochs= above {done}.",
        )
    loss = registry().loss(model.key, model.task_name, resolved.sheet, resolved.args.loss)
    if loss is not resolved.sheet.loss:
        resolved = replace(resolved, sheet=replace(resolved.sheet, loss=loss))
    return Request(resolved, from_scratch, checkpoint)


def _is_off(value: Any) -> bool:
    """Whether a boolean argument was given as false, in Python or as text."""
    return value is not None and str(value).lower() in ("false", "no", "off", "0")


def _checkpoint_of(resume: Any, project: str) -> File:
    """The resumable checkpoint that ``resume=`` means."""
    if resume in (True, "true", "True"):
        found = sorted(Path(project).glob("*/weights/last.pt"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise CheckpointError(
                f"resume=true finds no run under {project}", where="resume", mend="Give the run's folder: resume=PATH."
            )
        return read(found[-1])
    path = Path(str(resume))
    if path.is_dir():
        path = path / "weights" / "last.pt" if (path / "weights").is_dir() else path / "last.pt"
    return read(path)


def _saved_arguments(file: File, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Arguments for a resume: the saved ones, overridden by what is given now, one line each."""
    saved = file.training.get("train_args")
    if not saved:
        raise CheckpointError(
            f"{file.path} holds weights but no training state",
            where="resume",
            mend="Resume from weights/last.pt of a run.",
        )
    table = saved["args"]
    kept = {
        k: v["value"]
        for k, v in table.items()
        if v["from"] in ("user", "yaml") and k not in ("resume", "name", "project")
    }
    for name, value in given.items():
        if name not in ("resume", "project", "name") and name in table and table[name]["value"] != value:
            log.info("resume: %s=%s instead of %s", name, value, table[name]["value"])
    return kept, given, bool(saved["from_scratch"])


def _check_identity(model: LibreYOLO, file: File) -> None:
    for name, mine in (("model_family", model.key), ("size", model.size), ("task", model.task_name)):
        if file.meta.get(name) != mine:
            raise ConfigError(
                f"{file.path} has {name} {file.meta.get(name)!r}, the model has {mine!r}",
                where="resume",
                mend=f"Load it instead: LibreYOLO({str(file.path)!r}).train(resume=True).",
            )
