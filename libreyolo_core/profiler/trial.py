"""``profile_run``: runs that stop once they have been profiled. They validate nothing and write no checkpoint, so none
can be mistaken for a training, or resumed as one."""

from __future__ import annotations

import json
import logging
import statistics
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.engine.device import one_device
from libreyolo_core.errors import TrainingError, UsageError
from libreyolo_core.launcher import launched
from libreyolo_core.profiler import NAME, PROJECT, UNUSED
from libreyolo_core.profiler.measuring import Profiler
from libreyolo_core.profiler.record import Profile

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO
    from libreyolo_core.engine.trainer import Trainer

log = logging.getLogger("libreyolo")
SCHEMA = "libreyolo.profile-repeat/1"


@dataclass(frozen=True)
class Trials:
    """What one or several trials showed.

    Args:
        profiles: one per trial.
        path: ``profile.json`` of the only trial, or the file that combines several.
    """

    profiles: tuple[Profile, ...]
    path: Path

    def numbers(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation (of the sample) over trials of every number that all of them have."""
        first, *others = (p.numbers for p in self.profiles)
        rows = {k: [v, *(o.get(k) for o in others)] for k, v in first.items()}
        return {
            k: {"mean": statistics.mean(v), "std": statistics.stdev(v) if len(v) > 1 else 0.0}
            for k, v in rows.items()
            if None not in v
        }

    def to_dict(self) -> dict[str, Any]:
        """The content of the file: of one trial its summary, of several the combination."""
        if len(self.profiles) == 1:
            return self.profiles[0].to_dict()
        trials = [
            {"path": f"{p.directory.name}/{p.path.name}", "verdict": p.verdict.to_dict(), "numbers": p.numbers}
            for p in self.profiles
        ]
        return {
            "schema": SCHEMA,
            "path": str(self.path),
            "run": self.profiles[0].record["run"],
            "numbers": self.numbers(),
            "verdicts": [p.verdict.name for p in self.profiles],
            "trials": trials,
        }


def profile_run(model: LibreYOLO, *, repeat: int = 1, **arguments: Any) -> Trials:
    """Profile training steps without training: weights of ``model`` stay as they are.

    Args:
        repeat: trials, each a run of its own; with several, mean and standard deviation are written beside them.
        arguments: of ``train``, less those in ``profiler.UNUSED``. Unless given, ``project`` is ``runs/profile`` and
            ``name`` is ``prof``, with a number when that is taken, and ``no_aug_epochs`` is 0, as a short run would
            otherwise be one of lighter augmentation. ``epochs`` is raised to what the window needs.

    Raises:
        UsageError: an argument that means nothing here, several devices, a launcher.
        TrainingError: the window could not be judged; the log says why.
    """
    for name in UNUSED:
        if name in arguments:
            raise UsageError(f"{name}= means nothing to profile run", where="profile run", mend="Leave it out.")
    if launched():
        raise UsageError(
            "profile run is one process, and a launcher has started several",
            where="profile run",
            mend="Start it without torchrun.",
        )
    one_device(arguments.get("device", "auto"), verb="profile run")
    given = {"no_aug_epochs": 0, "project": PROJECT, **arguments, "profile": True, "plots": False, "loggers": ()}
    planned = model.plan(**given)
    args, epochs = planned.args, planned.sheet.recipe.epochs
    needed = args.profile_warmup + args.profile_steps
    if epochs < needed:
        if "epochs" in arguments:
            log.info("epochs=%d may be too few for a window of %d steps: %d instead", epochs, needed, needed)
        given["epochs"] = needed
    project = Path(args.project)
    name, number = (args.name, "") if args.name else _free(project)
    names = [name] if repeat == 1 else [f"{name}_{i}" for i in range(1, repeat + 1)]
    profiles = tuple(_trial(model, {**given, "name": name}) for name in names)
    if repeat == 1:
        return Trials(profiles, profiles[0].path)
    trials = Trials(profiles, project / f"profile_repeat{number}.json")
    trials.path.write_text(json.dumps(trials.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return trials


def _trial(model: LibreYOLO, given: dict[str, Any]) -> Profile:
    only = _ProfileOnly()
    try:
        model.train(**given, callbacks=(only,))
    except _Finished as finished:
        return finished.profile
    raise TrainingError("The run ended before its window was over", where="profile run", mend="Lower profile_steps=.")


def _free(project: Path) -> tuple[str, str]:
    """The first of ``prof``, ``prof2``, ... that neither a run nor trials have taken, and its number in text."""
    number = 1
    while any((project / f"{NAME}{_suffix(number)}{end}").exists() for end in ("", "_1")):
        number += 1
    return NAME + _suffix(number), _suffix(number)


def _suffix(number: int) -> str:
    return "" if number == 1 else str(number)


class _Finished(Exception):
    """Carries the profile out of the run that it ends."""

    def __init__(self, profile: Profile) -> None:
        super().__init__("the window is over")
        self.profile = profile


class _ProfileOnly(Profiler):
    """A profiler whose run does nothing else and ends with its window."""

    def on_start(self, run: Trainer) -> None:
        log.info("profile only: the run stops after its window, validates nothing and writes no checkpoint")
        with suppress(OSError):  # made for checkpoints; it stays if it holds those of an earlier run
            run.snapshots.folder.rmdir()
        run.validate = None
        for name, instead in (("keep", _keep_nothing), ("stop_for_interrupt", _stop)):
            setattr(run, name, instead)
        del run.callbacks[run.callbacks.index(self) + 1 :]  # progress towards epochs that will not come
        super().on_start(run)

    def on_end(self, run: Trainer) -> None:
        if self.window is not None:
            self.window.detach()

    def over(self, run: Trainer) -> None:
        super().over(run)
        if run.profile is None:
            raise TrainingError("There is no profile", where="profile run", mend="The log says why.")
        raise _Finished(run.profile)

    def show(self, profile: Profile) -> None:
        """The command prints the report."""


def _keep_nothing(*, best: bool = False, numbered: bool = False) -> None:
    """Instead of writing checkpoints."""


def _stop() -> None:
    """Instead of saving at an interruption."""
    raise KeyboardInterrupt("interrupted; nothing was saved, as this run only profiles")
