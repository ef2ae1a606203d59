"""``profile=True``: the callback that opens a window in a run, reports on it, and leaves the run as it was."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from libreyolo_core.config import TrainArgs
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.capture import brief
from libreyolo_core.losses import Ranks
from libreyolo_core.profiler.record import FILES, Profile, make_profile, pace, write_files
from libreyolo_core.profiler.report import COLUMN, report
from libreyolo_core.profiler.window import PLAIN, TRACED, Extent, Window

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer

log = logging.getLogger("libreyolo")


def profilers(args: TrainArgs, ranks: Ranks) -> list[Callback]:
    """The profiler that a run's arguments ask for, none otherwise; what they ask for in vain is one log line."""
    if not args.profile:
        for name in ("profile_warmup", "profile_steps"):
            if getattr(args, name) != getattr(TrainArgs, name):
                log.warning("%s=%s does nothing without profile=true", name, getattr(args, name))
        return []
    if ranks.size > 1:
        log.warning("profile=true is ignored with %d ranks: profile a run on one device", ranks.size)
        return []
    return [] if any(isinstance(c, Profiler) for c in args.callbacks) else [Profiler()]


class Profiler(Callback):
    """Profiles the first steps of a run, or of what is left of a resumed one."""

    def __init__(self) -> None:
        self.window: Window | None = None

    def on_start(self, run: Trainer) -> None:
        args = run.plan.args
        extent = Extent(args.profile_warmup, args.profile_steps)
        self.window = Window(run, extent, lambda: self.over(run))
        log.info("profile: %d steps are discarded, then %d measured", extent.warmup, extent.steps)
        self.window.attach()

    def on_end(self, run: Trainer) -> None:
        if self.window is not None and self.window.attached:
            self.window.end()

    def over(self, run: Trainer) -> None:
        """The window is closed and the run's functions are its own again."""
        window, self.window = self.window, None
        assert window is not None
        if not window.of(PLAIN) or not window.of(TRACED):
            log.warning("profile: %s", too_short(window))
            return
        try:
            profile = make_profile(window, run.directory)
            write_files(profile)
        except Exception as error:  # a profile is never worth a training run
            log.warning("profile: no report (%s). The training itself is untouched; profile again.", brief(error))
            return
        run.profile = profile
        self.show(profile)

    def show(self, profile: Profile) -> None:
        """Print the report."""
        for line in report(profile.record):
            log.info("%s", line)
        log.info("%s", files_line(profile))


def files_line(profile: Profile) -> str:
    """Where the files are."""
    return f"{'files':<{COLUMN}}{profile.directory}: {', '.join(FILES)}"


def too_short(window: Window) -> str:
    """What there is to say of a window in which nothing could be judged."""
    extent, plain = window.extent, window.of(PLAIN)
    why = window.failure or f"the run ended after {window.done} of the {extent.total} steps of the window"
    text = f"no verdict, as {why}"
    if plain:
        seen = pace(plain)
        text += (
            f"; {len(plain)} measured: {seen['step_us'] / 1000:.1f} ms a step, {seen['wait_share']:.0%} of it waiting "
            f"for data, {seen['images_per_s']:.1f} images/s"
        )
    mend = "Profile again" if window.failure else "Use more epochs, or lower profile_warmup= and profile_steps="
    return f"{text}. {mend}."
