"""One training step of any family on seeded data, for tests, counters and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.engine.optimizer import freeze
from libreyolo_core.engine.plan import scratch
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.family import Family, Task, resolve
from libreyolo_core.losses import LossTerms
from libreyolo_core.network import Network
from libreyolo_core.registry import registry
from libreyolo_core.tasks.base import BaseTask


@dataclass
class Subject:
    """A family at one size, built from scratch and ready to be examined."""

    family: Family
    size: str
    task: BaseTask
    sheet: Task
    network: Network
    nc: int

    def batch(self, counts: list[int], imgsz: int, *, seed: int = 0) -> Batch:
        """A seeded batch with that many annotations per image."""
        return self.task.example(self.sheet, self.nc, size=(imgsz, imgsz), counts=counts, seed=seed)


def subject(key: str, *, size: str = "", task: str = "", nc: int = 0, seed: int = 0, training: bool = True) -> Subject:
    """Build a family from scratch under a seed; by default its first size, its first task and its own class count.

    Args:
        training: with the modules that exist in training only (``Task.training``).
    """
    family = registry().family(key)
    name = task or family.default_task
    sheet = family.tasks[name]
    size = size or next(iter(sheet.sizes))
    sheet = scratch(sheet.for_size(size))
    nc = nc or sheet.classes
    torch.manual_seed(seed)
    options = {**sheet.model, **sheet.training} if training else sheet.model
    network = resolve(family.network, declared_by=key)(nc=nc, **options)
    freeze(network, sheet, given=False)
    return Subject(family, size, registry().task(name), sheet, network, nc)


def training_step(
    key: str,
    *,
    size: str = "",
    batch: int = 2,
    imgsz: int = 0,
    task: str = "",
    nc: int = 0,
    counts: list[int] | None = None,
    seed: int = 0,
    draw: bool = True,
    training: bool = True,
) -> Callable[[], Tensor]:
    """A function that runs forward and loss of a family on seeded data and returns the total loss, a scalar; call
    ``.backward()`` on it for the rest of the step.

    Args:
        imgsz: side in pixels, by default 160, rounded up as the family's input rule asks, or its only one.
        counts: annotations per image; by default 3, 1, 3, 1, ...
        draw: whether the samples carry random keys (off switches off denoising queries and stochastic depth).
        training: with the modules that exist in training only.
    """
    who = subject(key, size=size, task=task, nc=nc, seed=seed, training=training)
    multiple = who.sheet.input.multiple
    only = who.family.tasks[who.task.name].sizes[who.size].imgsz if who.sheet.input.fixed else 0
    imgsz = imgsz or only or -(-160 // multiple) * multiple
    data = who.batch(counts or [3 if i % 2 == 0 else 1 for i in range(batch)], imgsz, seed=seed)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    if not draw:
        data.draw = None  # type: ignore[assignment]

    def run() -> Tensor:
        return step(data).total

    run.terms = lambda: step(data)  # type: ignore[attr-defined]
    run.subject, run.data, run.step = who, data, step  # type: ignore[attr-defined]
    return run


def loss_terms(who: Subject, data: Batch) -> LossTerms:
    """Forward in training mode and loss, as the trainer runs them."""
    return TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)(data)
