"""``libreyolo train``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command, is_on
from libreyolo_core.cli.model import MODEL, checkpoint_to_resume, example_model, load_model, require_model
from libreyolo_core.cli.options import SWITCH, Option, check_values
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.config import TrainArgs, read_yaml_arguments

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
    resumes = given.get("resume", "false").lower() not in ("false", "no", "off", "0", "")
    yaml = read_yaml_arguments(given["cfg"]) if "cfg" in given else {}
    check_values(TrainArgs, given, verb="train", complete=not resumes and "data" not in yaml)
    if resumes and "model" not in given:
        given["resume"] = checkpoint_to_resume(given["resume"], given.get("project", TrainArgs.project))
        given["model"] = given["resume"]
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
