"""Wall-clock time by phase that is true on accelerators too: a phase ends when the device has finished its work."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def synchronise(device: torch.device | str) -> None:
    """Wait until everything queued on ``device`` is done; returns at once on the CPU."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


def device_of(holder: Any) -> torch.device:
    """The device of the first tensor of a dataclass; the CPU when it holds none."""
    values = [getattr(holder, f.name) for f in fields(holder)] if is_dataclass(holder) else [holder]
    return next((v.device for v in values if isinstance(v, torch.Tensor)), torch.device("cpu"))


class Stopwatch:
    """Adds up seconds by phase::

    clock = Stopwatch()
    with clock("inference"):
        ...
    clock.per_image(8)  # {"inference": milliseconds}
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start

    def per_image(self, images: int) -> dict[str, float]:
        """Milliseconds per image of every phase."""
        return {phase: 1000 * s / max(1, images) for phase, s in self.seconds.items()}
