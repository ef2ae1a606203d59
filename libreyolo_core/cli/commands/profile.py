"""``libreyolo profile``: measure training steps, and read what was measured, on any machine."""

from __future__ import annotations

from libreyolo_core.cli.subcommands import Subcommands
from libreyolo_core.hookspecs import NamedEntry

_READ = "libreyolo_core.cli.commands.profile_read"
_COMMANDS = (
    NamedEntry(
        "run", "libreyolo_core.cli.commands.profile_run:run", "Profile training steps of a model on a data set."
    ),
    NamedEntry("summary", f"{_READ}:summary", "The verdict of a profile and its numbers."),
    NamedEntry("phases", f"{_READ}:phases", "Where a step spends its time."),
    NamedEntry("kernels", f"{_READ}:kernels", "The device kernels that take most time."),
    NamedEntry("ops", f"{_READ}:ops", "The host operators that take most time."),
    NamedEntry("compare", "libreyolo_core.cli.commands.profile_compare:compare", "Two profiles side by side."),
)

profile = Subcommands(
    "profile",
    summary="Measure training steps, or read what was measured.",
    commands=_COMMANDS,
    example="kernels runs/profile/prof/profile.json --top 10",
    notes="A profile.json holds all that was measured: the commands but run read a copy of it anywhere.",
)
