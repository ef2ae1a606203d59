"""What holds a training step up, decided from numbers alone; imports no torch.

There are four answers, looked for in this order, because each one makes the numbers behind the later ones misleading:
a loader that starves the step leaves the device idle, and an allocator that keeps asking the driver stalls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from libreyolo_core.profiler.levers import levers

DATALOADER = "dataloader-bound"
MEMORY = "memory-pressure"
LAUNCH = "host/launch-bound"
COMPUTE = "compute-bound"

WAIT_SHARE = 0.20
"""From this share of the step on, waiting for data is what holds it up."""
DRIVER_CALLS = 5
"""From so many allocator calls to the driver per step on, memory is short."""
MOST_UTILISATION = 1.05
"""Above this, kernels of several streams are in each other's way."""
BUSY = 0.80
"""From this utilisation on the device has no time left to give; below it the host is too slow."""


@dataclass(frozen=True)
class Verdict:
    """What holds the step up.

    Args:
        name: ``dataloader-bound``, ``memory-pressure``, ``host/launch-bound`` or ``compute-bound``.
        reason: why, in numbers.
        levers: what helps, each with the present value, e.g. ``workers: 2 -> 4``.
    """

    name: str
    reason: str
    levers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "levers": list(self.levers)}


def verdict(numbers: Mapping[str, Any], run: Mapping[str, Any]) -> Verdict:
    """Judge a window.

    Args:
        numbers: of a profile; ``wait_share`` and ``utilisation`` are needed, on a CUDA device also
            ``driver_calls_per_step``, ``kernels_per_step`` and ``kernel_mean_us``.
        run: the run's settings; ``device`` decides what the numbers mean, the others fill in the levers.
    """
    on_gpu = str(run.get("device", "")).startswith("cuda")
    name, reason = _on_gpu(numbers) if on_gpu else _on_host(numbers, str(run.get("device", "cpu")))
    return Verdict(name, reason, levers(name, numbers, run))


def _on_gpu(numbers: Mapping[str, Any]) -> tuple[str, str]:
    wait, used = numbers["wait_share"], numbers["utilisation"]
    calls = numbers.get("driver_calls_per_step") or 0
    if wait >= WAIT_SHARE:
        return DATALOADER, _waiting(numbers)
    if calls >= DRIVER_CALLS:
        return MEMORY, f"the allocator asks the driver for memory {calls:.1f} times a step (limit {DRIVER_CALLS})"
    if used > MOST_UTILISATION:
        return MEMORY, f"kernels add up to {used:.0%} of the step: they overlap on several streams and share its memory"
    if used < BUSY:
        many, long = numbers["kernels_per_step"], numbers["kernel_mean_us"]
        return LAUNCH, f"the device is busy {used:.0%} of the step, with {many:,.0f} kernels of {long:.1f} us each"
    return COMPUTE, f"the device is busy {used:.0%} of the step and waits {wait:.0%} for data"


def _on_host(numbers: Mapping[str, Any], device: str) -> tuple[str, str]:
    """Without a GPU's kernels there are two answers: launching is the work itself, and memory is the system's."""
    if numbers["wait_share"] >= WAIT_SHARE:
        return DATALOADER, _waiting(numbers)
    return COMPUTE, (
        f"judged from CPU operator time, as device={device} has no kernels to trace: operators fill "
        f"{numbers['utilisation']:.0%} of the step, waiting for data {numbers['wait_share']:.0%}"
    )


def _waiting(numbers: Mapping[str, Any]) -> str:
    text = f"waiting for data takes {numbers['wait_share']:.0%} of the step (limit {WAIT_SHARE:.0%})"
    within = numbers.get("wait_share_within_epochs")
    if within is not None and within < WAIT_SHARE:
        text += f", most of it at the first step of an epoch (within epochs {within:.0%}): epochs here are short"
    return text
