"""``libreyolo profile summary|phases|kernels|ops``: a profile in tables. Imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from libreyolo_core.cli.command import Positional, command
from libreyolo_core.cli.options import check_values
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.config import arg
from libreyolo_core.profiler.activity import Total, read_activity
from libreyolo_core.profiler.reading import load_profile
from libreyolo_core.profiler.report import report
from libreyolo_core.profiler.trace import events, is_trace
from libreyolo_core.profiler.wording import duration, on_cpu, share, shortened, title

PROFILE = Positional("profile", "A profile.json, or the folder it is in.")
PROFILE_OR_TRACE = Positional("profile", "A profile.json, the folder it is in, or a Chrome trace (.json, .json.gz).")
EXAMPLE = "runs/profile/prof/profile.json"


@dataclass(frozen=True)
class ListArgs:
    """Arguments of the commands that list what takes most time."""

    top: int = arg(10, "Rows to list.", low=1, example="10")


@command(
    "summary",
    summary="The verdict of a profile and its numbers.",
    positional=PROFILE,
    example=EXAMPLE,
)
def summary(given: dict[str, Any]) -> Answer:
    """Say what limits the training."""
    profile = load_profile(given["profile"])
    document = {key: profile[key] for key in ("run", "window", "verdict", "numbers", "phases")}
    return Answer(document, report(profile))


@command(
    "phases",
    summary="Where a step spends its time.",
    positional=PROFILE,
    example=EXAMPLE,
    notes="Each phase waits for the device before the next begins, which gives the loader time that it does not have\n"
    "otherwise: so the phases say how a step is made up, and the verdict does not use them.",
)
def phases(given: dict[str, Any]) -> Answer:
    """Show the composition of a step."""
    profile = load_profile(given["profile"])
    rows = tuple((p["name"], duration(p["us_per_step"]), share(p["share"])) for p in profile["phases"])
    said = "No phases: the run ended before its second half was measured."
    table = Table(("phase", "per step", "share"), rows) if rows else said
    return Answer({"phases": profile["phases"], "window": profile["window"]}, (title(profile), "", table))


@command(
    "kernels",
    summary="The device kernels that take most time.",
    positional=PROFILE_OR_TRACE,
    arguments=ListArgs,
    example=f"{EXAMPLE} --top 10",
    notes="On a machine without a GPU these are the operators of the host, by the time spent in themselves.",
)
def kernels(given: dict[str, Any]) -> Answer:
    """List kernels."""
    top = rows_wanted(given, verb="profile kernels")
    if is_trace(given["profile"]):
        activity = read_activity(events(given["profile"]))
        return _kernels(_rows(activity.kernels()), top, given["profile"], on_device=activity.on_device)
    profile = load_profile(given["profile"])
    return _kernels(profile["kernels"], top, title(profile), on_device=not on_cpu(profile["run"]))


@command(
    "ops",
    summary="The host operators that take most time.",
    positional=PROFILE_OR_TRACE,
    arguments=ListArgs,
    example=f"{EXAMPLE} --top 10",
    notes="self: without the operators that run inside. total: with them, so that totals do not add up.",
)
def ops(given: dict[str, Any]) -> Answer:
    """List operators."""
    top = rows_wanted(given, verb="profile ops")
    if is_trace(given["profile"]):
        return _operators(_rows(read_activity(events(given["profile"])).operators()), top, given["profile"])
    profile = load_profile(given["profile"])
    return _operators(profile["ops"], top, title(profile))


def rows_wanted(given: dict[str, Any], *, verb: str) -> int:
    """The value of ``top=``, checked."""
    wanted = {k: v for k, v in given.items() if k == "top"}
    check_values(ListArgs, wanted, verb=verb)
    return int(wanted.get("top", ListArgs.top))


def _rows(totals: list[Total]) -> list[dict[str, Any]]:
    keys = ("name", "count", "total_us", "self_us", "mean_us", "max_us")
    return [{key: getattr(total, key) for key in keys} for total in totals]


def _kernels(rows: list[dict[str, Any]], top: int, head: str, *, on_device: bool) -> Answer:
    what = "kernel" if on_device else "operator"
    everything = sum(r["total_us"] for r in rows) or 1.0
    shown = tuple(
        (
            share(r["total_us"] / everything),
            duration(r["total_us"]),
            f"{r['count']:,}",
            duration(r["mean_us"]),
            duration(r["max_us"]),
            shortened(r["name"]),
        )
        for r in rows[:top]
    )
    table = Table(("share", "total", "count", "mean", "longest", what), shown)
    return Answer({"kernels": rows[:top], "all": len(rows)}, (head, "", table, _more(len(rows), top, f"{what}s")))


def _operators(rows: list[dict[str, Any]], top: int, head: str) -> Answer:
    rows = sorted(rows, key=lambda r: -r["self_us"])
    everything = sum(r["self_us"] for r in rows) or 1.0
    shown = tuple(
        (
            share(r["self_us"] / everything),
            duration(r["self_us"]),
            duration(r["total_us"]),
            f"{r['count']:,}",
            duration(r["mean_us"]),
            shortened(r["name"]),
        )
        for r in rows[:top]
    )
    table = Table(("share", "self", "total", "count", "mean", "operator"), shown)
    return Answer({"ops": rows[:top], "all": len(rows)}, (head, "", table, _more(len(rows), top, "operators")))


def _more(count: int, top: int, what: str) -> str:
    if not count:
        return f"No {what} were recorded."
    return f"{min(top, count)} of {count} {what}" + (f"; --top {count} lists all" if count > top else "")
