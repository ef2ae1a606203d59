"""What host and devices did, from the events of a Chrome trace: kernels, operators, busy time, lanes.

Events are folded in one at a time into numbers and flat arrays (20 bytes an event), so that a trace of any length fits
in memory. Categories are those of torch.profiler: ``cpu_op``, ``cuda_runtime``, ``cuda_driver``, ``kernel``,
``gpu_memcpy``, ``gpu_memset``. All times are in microseconds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset")
OPERATOR = "cpu_op"
DRIVER = ("cuda_runtime", "cuda_driver")
LANE_EVENTS = 20_000
"""Events that ``Activity.lanes`` keeps at most."""


@dataclass
class Total:
    """All events of one name, in us. ``self_us`` is ``total_us`` less what ran inside them on the same thread."""

    name: str
    count: int = 0
    total_us: float = 0.0
    self_us: float = 0.0
    max_us: float = 0.0
    max_self_us: float = 0.0

    @property
    def mean_us(self) -> float:
        """The mean duration."""
        return self.total_us / self.count if self.count else 0.0


@dataclass
class _Lane:
    """One thread or stream: beginnings, durations and names of its events, in the order of the trace."""

    begins: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("I"))

    def sorted(self) -> list[tuple[float, float, int]]:
        """(begin, -duration, name): what contains comes before what it contains."""
        return sorted(zip(self.begins, (-d for d in self.durations), self.names))


class Activity:
    """Fold events in with ``add``, then read the numbers. ``read_activity`` does both."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.driver_calls: Counter[str] = Counter()
        """Calls to the CUDA runtime and driver by name: launches, allocations, synchronisations."""
        self._index: dict[str, int] = {}
        self._host: dict[tuple[Any, Any], _Lane] = {}
        self._device: dict[tuple[Any, Any], _Lane] = {}
        self._copies: dict[tuple[Any, Any], _Lane] = {}
        self._operators: set[int] = set()

    def add(self, events: Iterable[Mapping[str, Any]]) -> Activity:
        """Fold in events; those that are no complete event of a known category are passed over."""
        for event in events:
            if event.get("ph") != "X":
                continue
            category = event.get("cat")
            if category == OPERATOR:
                lanes = self._host
            elif category == KERNEL:
                lanes = self._device
            elif category in DRIVER:
                lanes = self._host
                self.driver_calls[event["name"]] += 1
            elif category in COPIES:
                lanes = self._copies
            else:
                continue
            self._keep(lanes, event, category == OPERATOR)
        return self

    def _keep(self, lanes: dict[tuple[Any, Any], _Lane], event: Mapping[str, Any], operator: bool) -> None:
        name = str(event["name"])
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self.names)
            self.names.append(name)
        if operator:
            self._operators.add(index)
        place = (event.get("pid"), event.get("tid"))
        lane = lanes.get(place)
        if lane is None:
            lane = lanes[place] = _Lane()
        lane.begins.append(float(event["ts"]))
        lane.durations.append(float(event.get("dur", 0)))
        lane.names.append(index)

    @property
    def on_device(self) -> bool:
        """Whether any kernel ran on a device."""
        return bool(self._device)

    def kernels(self) -> list[Total]:
        """Device kernels by total time; on a machine without a device the host operators, whose time is their own
        (``self_us``), which is where the work of the leaves is."""
        if self.on_device:
            return _by_time(_totals(self._device.values(), self.names))
        own = [Total(o.name, o.count, o.self_us, o.self_us, o.max_self_us, o.max_self_us) for o in self.operators()]
        return _by_time(own)

    def operators(self) -> list[Total]:
        """Host operators by total time."""
        totals = _totals(self._host.values(), self.names)
        operators = {self.names[i] for i in self._operators}
        return _by_time(t for t in totals if t.name in operators)

    def busy_us(self) -> float:
        """Kernel time summed over streams, which exceeds the wall clock when streams overlap; without a device the
        time in operators, summed over threads."""
        if self.on_device:
            return sum(sum(lane.durations) for lane in self._device.values())
        return sum(_covered(_spans(lane)) for lane in self._host.values())

    def covered_us(self) -> float:
        """Time in which at least one kernel (or operator, without a device) ran: busy time with overlaps counted
        once."""
        lanes = self._device if self.on_device else self._host
        return _covered(sorted(span for lane in lanes.values() for span in _spans(lane)))

    def copies_us(self) -> float:
        """Time in copies and fills on devices, summed over streams. They are no part of busy time."""
        return sum(sum(lane.durations) for lane in self._copies.values())

    def span(self) -> tuple[float, float]:
        """When the first event began and the last one ended; (0, 0) without events."""
        groups = (self._host, self._device, self._copies)
        spans = [s for group in groups for lane in group.values() for s in _spans(lane)]
        return (min(b for b, _ in spans), max(e for _, e in spans)) if spans else (0.0, 0.0)

    def lanes(self, limit: int = LANE_EVENTS) -> tuple[list[dict[str, Any]], list[str], int]:
        """Lanes as a profile holds them, one per host thread and device stream, with the longest ``limit`` events.

        Returns:
            The lanes (``name``, ``kind``, ``events`` as [begin_us, duration_us, index of the name], by begin), the
            names, and how many events were left out.
        """
        streams = {
            place: [*_rows(self._device.get(place)), *_rows(self._copies.get(place))]
            for place in (*self._device, *(p for p in self._copies if p not in self._device))
        }
        hosts = sorted(self._host.values(), key=lambda lane: min(lane.begins))
        lanes: list[dict[str, Any]] = [
            {"name": f"host thread {i}", "kind": "host", "events": _rows(lane)} for i, lane in enumerate(hosts, 1)
        ]
        devices = {pid for pid, _ in streams}
        for pid, tid in sorted(streams, key=lambda place: [(len(str(part)), str(part)) for part in place]):
            of = f" of device {pid}" if len(devices) > 1 else ""
            lanes.append({"name": f"device stream {tid}{of}", "kind": "device", "events": streams[(pid, tid)]})
        return bounded(lanes, self.names, limit)


def read_activity(events: Iterable[Mapping[str, Any]]) -> Activity:
    """The activity in a stream of events, such as ``trace.events(path)``."""
    return Activity().add(events)


def bounded(
    lanes: list[dict[str, Any]], names: list[str], limit: int = LANE_EVENTS
) -> tuple[list[dict[str, Any]], list[str], int]:
    """Lanes with the longest ``limit`` events of kind ``host`` and ``device`` (phases and steps are kept whole) sorted
    by begin, only the names these use, and how many events were left out."""
    cut = [row[1] for lane in lanes if lane["kind"] in ("host", "device") for row in lane["events"]]
    dropped = max(0, len(cut) - limit)
    shortest = sorted(cut)[dropped] if dropped else 0.0
    spare = limit - sum(d > shortest for d in cut)  # of several as short as that, only so many are kept
    used: dict[int, int] = {}
    kept_lanes = []
    for lane in lanes:
        whole = lane["kind"] not in ("host", "device") or not dropped
        kept = []
        for begin, duration, name in sorted(lane["events"], key=itemgetter(0)):
            if not whole and duration <= shortest:
                if duration < shortest or spare <= 0:
                    continue
                spare -= 1
            kept.append([round(begin, 3), round(duration, 3), used.setdefault(name, len(used))])
        if kept:
            kept_lanes.append({**lane, "events": kept})
    return kept_lanes, [names[i] for i in used], dropped


def _totals(lanes: Iterable[_Lane], names: list[str]) -> list[Total]:
    """Totals by name with self time, which nesting within a lane decides."""
    totals: dict[int, Total] = {}
    for lane in lanes:
        ends: list[float] = []
        owned: list[float] = []
        owners: list[Total] = []

        def close(ends: list[float] = ends, owned: list[float] = owned, owners: list[Total] = owners) -> None:
            ends.pop()
            owner, own = owners.pop(), owned.pop()
            owner.self_us += own
            owner.max_self_us = max(owner.max_self_us, own)

        for begin, negative, index in lane.sorted():
            while ends and ends[-1] <= begin:
                close()
            total = totals.get(index)
            if total is None:
                total = totals[index] = Total(names[index])
            total.count += 1
            total.total_us -= negative
            if -negative > total.max_us:
                total.max_us = -negative
            if owned:
                owned[-1] += negative
            ends.append(begin - negative)
            owned.append(-negative)
            owners.append(total)
        while ends:
            close()
    return list(totals.values())


def _by_time(totals: Iterable[Total]) -> list[Total]:
    return sorted(totals, key=lambda t: (-t.total_us, t.name))


def _rows(lane: _Lane | None) -> list[list[Any]]:
    return [list(row) for row in zip(lane.begins, lane.durations, lane.names)] if lane else []


def _spans(lane: _Lane) -> Iterator[tuple[float, float]]:
    return iter(sorted((b, b + d) for b, d in zip(lane.begins, lane.durations)))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans that are sorted by begin."""
    covered, end = 0.0, float("-inf")
    for begin, until in spans:
        if until > end:
            covered += until - max(begin, end)
            end = until
    return covered
