"""What a call of ``train`` asks for: arguments from the call, from YAML and from the run that is resumed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.checkpoint import File, read
from libreyolo_core.config import Resolved, TrainArgs, read_yaml_arguments, resolve_training
from libreyolo_core.engine.plan import scratch
from libreyolo_core.engine.rundir import checkpoint_to_resume
from libreyolo_core.errors import CheckpointError, ConfigError, UsageError
from libreyolo_core.registry import registry

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

log = logging.getLogger("libreyolo")
PLACE = ("resume", "name", "project")
"""Arguments that say where a run lives, not what it does."""


@dataclass
class Request:
    """What a call of ``train`` comes down to: resolved arguments, and the checkpoint to continue from, if any."""

    resolved: Resolved
    from_scratch: bool
    checkpoint: File | None = None

    def refuse_finished(self) -> None:
        """Raise ``UsageError`` when all epochs of the run to continue are done."""
        done = self.checkpoint.training.get("epoch", 0) if self.checkpoint else 0
        if self.checkpoint and done >= self.resolved.sheet.recipe.epochs:
            raise UsageError(
                f"{self.checkpoint.path} is finished: all {done} epochs are done",
                where="resume",
                mend=f"To extend it give epochs= above {done}.",
            )


def request(model: LibreYOLO, given: dict[str, Any]) -> Request:
    """Resolve arguments; nothing is read but YAML and, for a resume, the checkpoint.

    Raises:
        ConfigError, UsageError, CheckpointError: see ``resolve_training``, and what a resume lacks.
    """
    given = dict(given)
    yaml = read_yaml_arguments(given.pop("cfg")) if given.get("cfg") else {}
    given.pop("cfg", None)
    project = Path(given.get("project", yaml.get("project", TrainArgs.project)))
    checkpoint = None
    from_scratch = model.from_scratch or _is_off(given.get("pretrained", yaml.get("pretrained")))
    last = checkpoint_to_resume(given.get("resume", yaml.get("resume")), project)
    if last is not None:
        given["resume"] = str(last)
        checkpoint = read(last)
        yaml, from_scratch = _saved_arguments(checkpoint, yaml, given)
        _check_identity(model, checkpoint)
    sheet = scratch(model.base_sheet) if from_scratch else model.base_sheet
    resolved = resolve_training(sheet, given, yaml, title=model.family.title)
    loss = registry().loss(model.key, model.task_name, resolved.sheet, resolved.args.loss)
    if loss is not resolved.sheet.loss:
        resolved = replace(resolved, sheet=replace(resolved.sheet, loss=loss))
    return Request(resolved, from_scratch, checkpoint)


def _is_off(value: Any) -> bool:
    """Whether a boolean argument was given as false, in Python or as text."""
    return value is not None and str(value).lower() in ("false", "no", "off", "0")


def _saved_arguments(file: File, yaml: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Arguments for a resume, where those of the call are ``given``: the saved ones with what ``cfg=`` changes, and
    whether the run began without weights. One line for each value that is another now."""
    saved = file.training.get("train_args")
    if not saved:
        raise CheckpointError(
            f"{file.path} holds weights but no training state",
            where="resume",
            mend="Resume from weights/last.pt of a run.",
        )
    table = saved["args"]
    kept = {k: v["value"] for k, v in table.items() if v["from"] in ("user", "yaml")} | yaml
    for name, value in (yaml | given).items():
        if name not in PLACE and name in table and table[name]["value"] != value:
            log.info("resume: %s=%s instead of %s", name, value, table[name]["value"])
    return {k: v for k, v in kept.items() if k != "resume"}, bool(saved["from_scratch"])


def _check_identity(model: LibreYOLO, file: File) -> None:
    for name, mine in (("model_family", model.key), ("size", model.size), ("task", model.task_name)):
        if file.meta.get(name) != mine:
            raise ConfigError(
                f"{file.path} has {name} {file.meta.get(name)!r}, the model has {mine!r}",
                where="resume",
                mend=f"Load it instead: LibreYOLO({str(file.path)!r}).train(resume=True).",
            )
