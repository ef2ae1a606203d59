"""``libreyolo train``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command, is_on
from libreyolo_core.cli.model import MODEL, example_model, load_model, require_model
from libreyolo_core.cli.options import SWITCH, Option, check_values
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.config import TrainArgs, read_yaml_arguments
from libreyolo_core.engine.rundir import checkpoint_to_resume

OWN = (
    Option("cfg", "YAML file of training arguments; what is typed here wins over it.", example="cfg.yaml"),
    Option("dry_run", "Print every argument with its value and origin, and stop.", SWITCH),
)


@command(
    "train",
    summary="Train a model on a data set.",
    arguments=TrainArgs,
    options=(*MODEL, *OWN),
    example=lambda: f"model={example_model()} data=my.yaml epochs=50 batch=8",
    notes="model= and data= are enough: everything else comes from the recipe of the model's family, and --dry-run\n"
    "shows it. A value typed here wins over cfg=, which wins over the family's recipe.\n"
    "To go on with an interrupted run: resume=true, or resume=FOLDER.",
)
def train(given: dict[str, Any]) -> Answer:
    """Train, or show what would be trained."""
    given = dict(given)
    dry_run = is_on(given.pop("dry_run", "false"), "dry_run")
    yaml = read_yaml_arguments(given["cfg"]) if "cfg" in given else {}
    resume, project = (given.get(k, yaml.get(k, getattr(TrainArgs, k))) for k in ("resume", "project"))
    last = checkpoint_to_resume(resume, project)
    check_values(TrainArgs, given, verb="train", complete=last is None and "data" not in yaml)
    if last is not None and "model" not in given:
        given["resume"] = given["model"] = str(last)
    require_model(given, verb="train")
    pretrained = str(given.get("pretrained", yaml.get("pretrained", "true")))
    model, rest = load_model(given, verb="train", pretrained=is_on(pretrained, "pretrained"))
    if dry_run:
        return _plan(model.plan(**rest).table())
    result = model.train(**rest)
    figures = tuple(f"{name:<24} {value:.4f}" for name, value in result.metrics.items())
    files = (f"best weights  {result.best}", f"run folder    {result.save_dir}")
    return Answer(result.to_dict(), (*figures, *files))


def _plan(table: dict[str, dict[str, Any]]) -> Answer:
    rows = tuple((name, _shown(cell["value"]), cell["from"]) for name, cell in table.items())
    return Answer(table, (Table(("argument", "value", "from"), rows),))


def _shown(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(str(v) for v in value) if isinstance(value, list) else str(value)
