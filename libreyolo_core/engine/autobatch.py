"""``batch=-1``: the largest batch that a device holds, found with the real training step.

Batches of growing size go through forward, loss, backward, optimizer and average with as many targets as the data set
ever has in an image; a straight line through their peaks of memory predicts what fits, and the prediction is tried
before it is believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from libreyolo_core.config import Resolved
from libreyolo_core.engine.ema import Average
from libreyolo_core.engine.optimizer import build_optimizer, freeze
from libreyolo_core.engine.plan import make_plan
from libreyolo_core.engine.precision import Scaler, choose_mode
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.errors import TrainingError
from libreyolo_core.family import Task, resolve, with_path

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

log = logging.getLogger("libreyolo")
SHARE = 0.9
"""Share of the device's memory that the chosen batch may take at its peak."""
MULTIPLE = 8
"""The answer is a multiple of this where it is at least as large."""
ENOUGH = 0.5
"""Probing stops once a batch takes this share: two further doublings would not fit, and the line is known."""
MOSAIC_TILES = 4


class Meter(Protocol):
    """How memory of a device is read; tests bring a fake one."""

    def capacity(self) -> int:
        """Bytes that this process could use in all."""
        ...

    def reset(self) -> None:
        """Forget the peak, and give back what is cached."""
        ...

    def peak(self) -> int:
        """The most bytes in use since ``reset``."""
        ...


class CudaMeter:
    """Memory of a CUDA device as its driver and torch's allocator know it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def capacity(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device)

    def reset(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_reserved(self.device)


def find_batch(step: Callable[[int], object], meter: Meter, *, most: int) -> int:
    """The largest batch whose step stays below ``SHARE`` of the memory.

    Args:
        step: runs one training step with that many images; raises ``torch.OutOfMemoryError`` when it does not fit.
        most: upper limit, e.g. the number of training images.

    Raises:
        TrainingError: not even one image fits.
    """
    limit = SHARE * meter.capacity()
    peaks: dict[int, int] = {}
    batch, too_large = 1, most + 1
    while batch < too_large:
        found = _peak(step, meter, batch)
        if found is None or found > limit:
            too_large = batch
            break
        peaks[batch] = found
        if found > ENOUGH * limit and len(peaks) > 1:
            break
        batch = min(batch * 2, most) if batch < most else too_large
    if not peaks:
        raise TrainingError(
            "Not even one image fits into the device's memory",
            where="batch=-1",
            mend="Use a smaller imgsz or model, or another device.",
        )
    answer = _round(min(_predicted(peaks, limit), too_large - 1), max(peaks))
    while answer not in peaks:
        found = _peak(step, meter, answer)
        if found is not None and found <= limit:
            peaks[answer] = found
            break
        answer = _round(max(1, int(answer * 0.9) if answer > MULTIPLE else answer - 1), max(peaks), below=answer)
    log.info(
        "batch=-1: %d images take %.2f of %.2f GiB (tried %s)",
        answer,
        peaks[answer] / 2**30,
        limit / SHARE / 2**30,
        ", ".join(map(str, sorted(peaks))),
    )
    return answer


def _peak(step: Callable[[int], object], meter: Meter, batch: int) -> int | None:
    """Peak bytes of a step, ``None`` when it does not fit."""
    meter.reset()
    try:
        step(batch)
    except torch.OutOfMemoryError:
        return None
    return meter.peak()


def _predicted(peaks: dict[int, int], limit: float) -> int:
    """Where the straight line through the two largest probes meets the limit."""
    *_, small, large = [0, *sorted(peaks)]
    if not small:
        return large
    slope = (peaks[large] - peaks[small]) / (large - small)
    return large if slope <= 0 else int(large + (limit - peaks[large]) / slope)


def _round(batch: int, known: int, *, below: int | None = None) -> int:
    """Down to a multiple of ``MULTIPLE``, but not under a batch that is known to fit."""
    rounded = batch // MULTIPLE * MULTIPLE if batch >= MULTIPLE else batch
    if below is not None and rounded >= below:
        rounded = below - MULTIPLE if below > MULTIPLE else below - 1
    return max(rounded, known)


def global_batch(per_device: int, world: int, nbs: int | None) -> int:
    """What one device holds, over ``world`` devices: capped at ``nbs``, a multiple of ``world``."""
    batch = per_device * world
    if nbs:
        batch = min(batch, nbs)
    return max(batch // world, 1) * world


def largest_count(counts: list[int], sheet: Task) -> int:
    """The most targets an image of the run can have: the set's largest, or with mosaic its four largest together."""
    tiles = MOSAIC_TILES if any(a.name == "mosaic" and a.p > 0 for a in sheet.augment) else 1
    return sum(sorted(counts)[-tiles:])


def training_probe(
    model: Any, sheet: Task, *, nc: int, side: tuple[int, int], count: int, device: torch.device
) -> Callable[[int], None]:
    """A function that runs one whole training step of the given batch size on a network of its own: everything that a
    run keeps in memory, nothing that a run could notice.

    Args:
        side: (height, width) of the largest input of the run.
        count: targets per image.
    """

    def step(batch: int) -> None:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            network = resolve(model.family.network)(nc=nc, **{**sheet.model, **sheet.training}).to(device).train()
            freeze(network, sheet, given=False)
            average = Average(network, sheet.recipe.ema) if sheet.recipe.ema.on else None
            train = TrainStep(network, sheet.loss, sheet.input)
            mode = choose_mode(sheet.precision.amp, sheet.precision.dtype, device)
            optimizer, scaler = build_optimizer(network, sheet.recipe, fused=None, device=device), Scaler(mode)
            data = model.task.example(sheet, nc, size=side, counts=[count] * batch).to(device)
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            for _ in range(2):  # the optimizer's state exists from the second step on
                with mode.autocast():
                    loss = train(data).total
                scaler.backward(loss)
                scaler.step(optimizer, parameters, sheet.recipe.clip)
                optimizer.zero_grad(set_to_none=True)
            if average:
                average.update(network)

    return step


def fitting_batch(model: LibreYOLO, resolved: Resolved, scan: Any, device: torch.device, world: int) -> int:
    """The global batch that ``batch=-1`` means on ``world`` CUDA devices like this one."""
    resolved = with_batch(resolved, world)  # any number: the plan is asked for its largest input only
    plan = make_plan(
        resolved, samples=len(scan.images), default_imgsz=model.base_imgsz, device_type=device.type, world=world
    )
    counts = [len(record.labels) for record in scan.images]
    probe = training_probe(
        model,
        plan.sheet,
        nc=len(scan.names),
        side=plan.canvas,
        count=largest_count(counts, plan.sheet),
        device=device,
    )
    held = find_batch(probe, CudaMeter(device), most=max(1, len(scan.images) // world))
    return global_batch(held, world, plan.sheet.recipe.nbs)


def with_batch(resolved: Resolved, batch: int) -> Resolved:
    """The same arguments with another global batch."""
    return replace(resolved, sheet=with_path(resolved.sheet, "recipe.batch", batch))
