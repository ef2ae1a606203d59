"""torch.profiler around a few steps: no stacks, no shapes, no memory, so that a trace stays small."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from libreyolo_core.profiler import trace
from libreyolo_core.profiler.activity import Activity, read_activity
from libreyolo_core.timing import synchronise

CLOCK = "libreyolo clock"
"""Name of the event that ties the trace's clock to ours."""


class Tracer:
    """Between ``start`` and ``stop`` operators and kernels are recorded; ``activity`` reads them.

    Args:
        device: kernels are recorded where it is a CUDA device.

    Attributes:
        running: whether events are being recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.running = False
        self._profiler: Any = None
        self._clock_ns = 0

    def start(self) -> None:
        """Begin; the first time in a process this takes seconds."""
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)
        with quiet_kineto():
            self._profiler.start()
        self.running = True
        with record_function(CLOCK):
            self._clock_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """End, once the device has done what it has queued, which belongs to the trace."""
        self.running = False
        synchronise(self.device)
        with quiet_kineto():
            self._profiler.stop()

    def activity(self, origin_ns: int) -> Activity:
        """What was recorded, in microseconds after ``origin_ns`` of ``time.perf_counter_ns``."""
        with tempfile.TemporaryDirectory(prefix="libreyolo-profile-") as folder:
            file = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(file))
            self._profiler = None
            marks = (e["ts"] for e in trace.events(file) if e.get("name") == CLOCK and e.get("ph") == "X")
            shift = (self._clock_ns - origin_ns) / 1000 - next(marks)
            return read_activity({**e, "ts": e["ts"] + shift} for e in trace.events(file) if "dur" in e)


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """The tracer's own library says on standard error that it starts, and that a machine has no GPU."""
    name, most = "KINETO_LOG_LEVEL", "6"
    before = os.environ.get(name)
    os.environ.setdefault(name, most)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
