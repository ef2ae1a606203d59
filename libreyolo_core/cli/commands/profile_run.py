"""``libreyolo profile run``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from libreyolo_core.cli.command import Positional, command, is_on
from libreyolo_core.cli.model import example_model
from libreyolo_core.cli.options import Option, check_values, options_of
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.config import TrainArgs
from libreyolo_core.errors import ConfigError, UsageError
from libreyolo_core.profiler import NAME, PROJECT, UNUSED
from libreyolo_core.profiler.wording import NUMBERS, in_words, label

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO
    from libreyolo_core.profiler.trial import Trials

CHANGED: dict[str, dict[str, Any]] = {
    "project": {"default": PROJECT},
    "name": {"help": f"Name of this run; default: {NAME}, {NAME}2, ..."},
    "no_aug_epochs": {"default": "0"},
    "pretrained": {"help": "With model: start from its released weights.", "default": "false"},
}
"""Options of ``train`` that differ here."""
TRAINING = tuple(
    replace(o, **CHANGED.get(o.name, {})) for o in options_of(TrainArgs) if o.name not in (*UNUSED, "data")
)
OWN = (
    Option("weights", "A weight file or the name of released weights to start from.", example="best.pt"),
    Option("model", "Instead of weights: a family, or family-size, with random weights.", example="family"),
    Option("size", "The size of the family.", example="s"),
    Option("task", "The task, where the weights do not say it.", default="the family's first"),
    Option("repeat", "Trials; mean and standard deviation over them are reported.", allowed="1 or more", default="1"),
)


@command(
    "run",
    summary="Profile training steps of a model on a data set.",
    positional=Positional("data", "Data set, as for train."),
    options=(*OWN, *TRAINING),
    example=lambda: f"my.yaml weights={example_model()} batch=8",
    notes="Nothing is trained to keep: the run stops after its window, validates nothing and writes no checkpoint.\n"
    "Options of train mean the same here; files go to runs/profile/prof, with repeat=N to prof_1, prof_2, ...",
)
def run(given: dict[str, Any]) -> Answer:
    """Profile, once or several times."""
    given = dict(given)
    own = {o.name: given.pop(o.name, "") for o in OWN}
    repeat = _count(own["repeat"] or "1")
    check_values(TrainArgs, given, verb="profile run")
    pretrained = bool(own["weights"]) or is_on(given.get("pretrained", "false"), "pretrained")
    model = _model(own, pretrained)
    from libreyolo_core.profiler.trial import profile_run

    trials = profile_run(model, repeat=repeat, **given)
    return Answer(trials.to_dict(), _report(trials))


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"repeat={text!r} is no whole number from 1 on", where="profile run", mend="For example 3.")
    return int(text)


def _model(own: dict[str, str], pretrained: bool) -> LibreYOLO:
    """The model that ``weights=``, ``model=`` and ``size=`` mean together."""
    wanted = own["weights"] or own["model"]
    if not wanted or (own["weights"] and own["model"]):
        problem = "weights= and model= are both given" if wanted else "Neither weights= nor model= is given"
        raise UsageError(problem, where="profile run", mend=f"Give one, e.g. weights={example_model()}.")
    from libreyolo_core.api import LibreYOLO
    from libreyolo_core.registry import registry

    if own["size"] and wanted in registry().families():
        wanted = f"{wanted}-{own['size']}"
    model = LibreYOLO(wanted, pretrained=pretrained, task=own["task"] or None)
    if own["size"] and own["size"] != model.size:
        raise UsageError(
            f"size={own['size']} does not fit: {wanted} is {model.key}-{model.size}",
            where="profile run",
            mend="Leave size= out.",
        )
    return model


def _report(trials: Trials) -> tuple[str | Table, ...]:
    from libreyolo_core.profiler.measuring import files_line
    from libreyolo_core.profiler.report import report

    if len(trials.profiles) == 1:
        return (*report(trials.profiles[0].record), files_line(trials.profiles[0]))
    settings, numbers = trials.profiles[0].record["run"], trials.numbers()
    rows = tuple(
        (label(n, settings), in_words(numbers[n.key]["mean"], n.unit), in_words(numbers[n.key]["std"], n.unit))
        for n in NUMBERS
        if n.key in numbers
    )
    verdicts = tuple((p.directory.name, p.verdict.name, p.verdict.reason) for p in trials.profiles)
    return (
        Table((f"{len(trials.profiles)} trials", "mean", "standard deviation"), rows),
        "",
        Table(("trial", "verdict", "reason"), verdicts),
        "",
        f"combined in {trials.path}",
    )
