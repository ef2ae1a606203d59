"""Two profiles side by side: what moved, by how much, and whether they are comparable at all. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, variance
from typing import Any

from libreyolo_core.profiler.wording import BY_KEY, NUMBERS

WORKLOAD = ("model", "task", "nc", "data", "imgsz", "batch", "device", "device_name", "precision")
"""Settings that make two runs do different work, so that their times say nothing about each other."""
UNMOVED = 0.02
"""Relative change below which a number counts as unmoved: two runs of the same thing differ by as much."""
SPREADS = 2.0
"""Standard errors that two step times have to lie apart to count as different (5% of equal ones do)."""


@dataclass(frozen=True)
class Change:
    """One quantity in both profiles.

    Args:
        name: what it is.
        unit: as in ``wording.Number``; of a kernel, operator or phase ``us``, per step.
        before: its value in the first profile; ``None`` when it is not there.
        after: its value in the second.
        better: which direction is better, "" when neither is.
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    better: str = ""

    @property
    def difference(self) -> float | None:
        """After minus before."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """After divided by before; ``None`` when there is nothing to divide by."""
        if not self.before or self.after is None:
            return None
        return self.after / self.before

    @property
    def moved(self) -> bool:
        """Whether it changed by more than two runs of the same thing do."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return abs(self.after - self.before) > UNMOVED * max(abs(self.before), abs(self.after))

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or "" when it has not moved or neither direction is better."""
        if not self.better or not self.moved or self.difference is None:
            return ""
        return "better" if (self.difference < 0) == (self.better == "lower") else "worse"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        values = {"name": self.name, "unit": self.unit, "before": self.before, "after": self.after}
        return {**values, "difference": self.difference, "ratio": self.ratio, "verdict": self.verdict}


@dataclass(frozen=True)
class Comparison:
    """What differs between two profiles.

    Args:
        workload: settings that make it two different things, with both values.
        settings: the other settings that differ.
        verdicts: the names of both verdicts.
        step_differs: whether the step times differ by more than their spread; ``None`` when it cannot be said.
        numbers: every number, the most moved first.
        phases, kernels, ops: in us per step, the largest difference first.
    """

    workload: dict[str, tuple[Any, Any]]
    settings: dict[str, tuple[Any, Any]]
    verdicts: tuple[str, str]
    step_differs: bool | None
    numbers: list[Change]
    phases: list[Change] = field(default_factory=list)
    kernels: list[Change] = field(default_factory=list)
    ops: list[Change] = field(default_factory=list)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """As plain values, with the ``top`` kernels and operators."""
        return {
            "workload": {k: {"before": a, "after": b} for k, (a, b) in self.workload.items()},
            "settings": {k: {"before": a, "after": b} for k, (a, b) in self.settings.items()},
            "verdicts": {"before": self.verdicts[0], "after": self.verdicts[1]},
            "step_differs": self.step_differs,
            "numbers": {"moved": _plain(c for c in self.numbers if c.moved), "all": _plain(self.numbers)},
            "phases": _plain(self.phases),
            "kernels": _plain(self.kernels[:top]),
            "ops": _plain(self.ops[:top]),
        }


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Compare two profiles as ``reading.load_profile`` returns them."""
    settings = [_flat(profile["run"]) for profile in (before, after)]
    differing = {
        key: (settings[0].get(key), settings[1].get(key))
        for key in dict.fromkeys((*settings[0], *settings[1]))
        if settings[0].get(key) != settings[1].get(key)
    }
    workload = {k: v for k, v in differing.items() if k in WORKLOAD}
    differs = step_differs(before, after)

    def judged(changes: list[Change]) -> list[Change]:
        """The changes, without better and worse where that would say something about chance or about other work."""
        chance = ("step_us", "images_per_s") if differs is False else ()
        return [replace(c, better="") if workload or c.name in chance else c for c in changes]

    def rows(kind: str, key: str) -> list[Change]:
        return judged(_by_effect(_per_step(before, kind, key), _per_step(after, kind, key)))

    return Comparison(
        workload=workload,
        settings={k: v for k, v in differing.items() if k not in WORKLOAD},
        verdicts=(before["verdict"]["name"], after["verdict"]["name"]),
        step_differs=differs,
        numbers=judged(sorted(_numbers(before["numbers"], after["numbers"]), key=_by_ratio)),
        phases=rows("phases", "us_per_step"),
        kernels=rows("kernels", "total_us"),
        ops=rows("ops", "self_us"),
    )


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings within settings as ``outer.inner``."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found


def step_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool | None:
    """Whether the mean times of the plain, untraced steps lie further apart than their spread (Welch's t, two standard
    errors); ``None`` when a profile has fewer than two of them, or the steps are not in it."""
    times = [
        [s["step_us"] for s in p["steps"] if s.get("half") == "plain" and not s.get("traced")] for p in (before, after)
    ]
    if any(len(t) < 2 for t in times):
        return None
    error = math.sqrt(sum(variance(t) / len(t) for t in times))
    return abs(fmean(times[0]) - fmean(times[1])) > SPREADS * error


def traced(profile: Mapping[str, Any]) -> float:
    """Steps whose kernels and operators were recorded, at least 1."""
    window = profile["window"]
    return max(1, window.get("traced") or window.get("plain") or 1)


def _numbers(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    known = [n for n in NUMBERS if before.get(n.key) is not None or after.get(n.key) is not None]
    return [Change(n.key, n.unit, before.get(n.key), after.get(n.key), BY_KEY[n.key].better) for n in known]


class _Times(dict[str, float]):
    """us per step by name; what is not in it took no time, or in a summary, which lists the longest alone, is not
    known."""

    def __init__(self, times: Mapping[str, float], *, complete: bool) -> None:
        super().__init__(times)
        self.otherwise = 0.0 if complete else None


def _per_step(profile: Mapping[str, Any], kind: str, key: str) -> _Times:
    steps = 1 if kind == "phases" else traced(profile)
    return _Times({row["name"]: row[key] / steps for row in profile[kind]}, complete="lanes" in profile)


def _by_effect(before: _Times, after: _Times) -> list[Change]:
    """Changes by name, the largest difference first."""
    names = {**before, **after}
    pairs = [(n, before.get(n, before.otherwise), after.get(n, after.otherwise)) for n in names]
    changes = [Change(n, "us", a, b, "lower") for n, a, b in pairs if a is not None and b is not None]
    return sorted(changes, key=lambda c: (-abs(c.difference or 0.0), c.name))


def _by_ratio(change: Change) -> float:
    """Sorting key: the most moved first, with what only one profile has in front and the unmoved behind."""
    if change.before is None or change.after is None:
        return -math.inf
    if change.before <= 0 or change.after <= 0:
        return 0.0 if change.before == change.after else -1e9
    return -abs(math.log(change.after / change.before))


def _plain(changes: Any) -> list[dict[str, Any]]:
    return [change.to_dict() for change in changes]
