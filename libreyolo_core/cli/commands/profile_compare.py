"""``libreyolo profile compare``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from libreyolo_core.cli.command import Positional, command
from libreyolo_core.cli.commands.profile_read import ListArgs, rows_wanted
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.profiler.compare import UNMOVED, Change, Comparison
from libreyolo_core.profiler.compare import compare as compare_profiles
from libreyolo_core.profiler.reading import load_profile
from libreyolo_core.profiler.wording import BY_KEY, in_words, label, share, shortened, title


@command(
    "compare",
    summary="Two profiles side by side.",
    positional=(
        Positional("before", "A profile.json, or the folder it is in."),
        Positional("after", "The one to compare with it."),
    ),
    arguments=ListArgs,
    example="runs/profile/prof runs/profile/prof2",
    notes="What moved most comes first. Kernels and operators are per step, so that windows of any length compare.",
)
def compare(given: dict[str, Any]) -> Answer:
    """Compare."""
    top = rows_wanted(given, verb="profile compare")
    before, after = load_profile(given["before"]), load_profile(given["after"])
    found = compare_profiles(before, after)
    document = {"before": given["before"], "after": given["after"], **found.to_dict(top)}
    numbers = [replace(c, name=label(BY_KEY[c.name], after["run"])) for c in found.numbers]
    parts: list[str | Table] = [
        f"before: {title(before)}",
        f"after:  {title(after)}",
        "",
        *_remarks(found),
        "",
        _table(numbers, "number"),
    ]
    for what, changes in (("phase", found.phases), ("kernel", found.kernels), ("operator", found.ops)):
        moved = [c for c in changes if c.moved][:top]
        if moved:
            parts += ["", _table(moved, f"{what}, per step")]
    return Answer(document, tuple(parts))


def _remarks(found: Comparison) -> list[str]:
    """Verdicts, settings, and whether the difference means anything."""
    was, now = found.verdicts
    lines = [f"Verdict: {was} before, {now} after." if was != now else f"Verdict: {now} both times."]
    if found.workload:
        lines.append(f"These are two different things: {_settings(found.workload)}. Times do not compare directly.")
    if found.settings:
        lines.append(f"Settings that changed: {_settings(found.settings)}.")
    if found.step_differs is False:
        lines.append("The step times differ by less than they vary from step to step; profile run --repeat tells more.")
    if not any(c.moved for c in found.numbers):
        lines.append(f"No number moved by more than {share(UNMOVED)}.")
    return lines


def _settings(differing: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} {_value(a)} -> {_value(b)}" for name, (a, b) in differing.items())


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def _table(changes: list[Change], heading: str) -> Table:
    rows = tuple(
        (
            shortened(c.name, 60),
            in_words(c.before, c.unit),
            in_words(c.after, c.unit),
            _signed(c),
            "-" if c.ratio is None else f"{c.ratio:.2f}x",
            c.verdict,
        )
        for c in changes
    )
    return Table((heading, "before", "after", "difference", "ratio", ""), rows)


def _signed(change: Change) -> str:
    if change.difference is None:
        return "-"
    return ("+" if change.difference > 0 else "") + in_words(change.difference, change.unit)
