"""One family's training step on seeded data, for ``steps.py`` and ``gpu.py``: the very code that the trainer runs."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from libreyolo_core.data.batch import Batch, prepare
from libreyolo_core.engine.accelerate import accelerate
from libreyolo_core.engine.ema import Average
from libreyolo_core.engine.optimizer import build_optimizer
from libreyolo_core.engine.precision import Scaler, choose_mode
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.losses import Step
from libreyolo_core.testing import OperationCounter
from libreyolo_core.testing.steps import subject


class Steps:
    """Training steps of a family from scratch: forward, loss, backward, clipping, optimizer, average.

    Args:
        imgsz: side in pixels, 0 for the size's own.
        cuda_graph, compile: as the training arguments.
        amp: mixed precision, ``None`` for the family's default.
        batches: distinct batches, taken in turn.
    """

    def __init__(
        self,
        key: str,
        size: str,
        batch: int,
        *,
        device: torch.device,
        imgsz: int = 0,
        cuda_graph: bool | str = False,
        compile: bool | str = False,
        amp: bool | None = None,
        batches: int = 1,
    ) -> None:
        who = subject(key, size=size, nc=0)
        self.sheet, self.device = who.sheet, device
        own = who.family.tasks[who.task.name].sizes[who.size].imgsz
        self.imgsz = own if not imgsz or who.sheet.input.fixed else imgsz
        self.network = who.network.to(device).train()
        counts = [3 if i % 2 == 0 else 1 for i in range(batch)]
        self.data = [who.batch(counts, self.imgsz, seed=i).to(device) for i in range(batches)]
        self.step = TrainStep(self.network, who.sheet.loss, who.sheet.input)
        convolutions = sum(p.numel() for p in self.network.parameters() if p.dim() == 4)
        if convolutions > 0.5 * sum(p.numel() for p in self.network.parameters()):
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.step.memory_format = torch.channels_last
        self.mode = choose_mode(who.sheet.precision.amp if amp is None else amp, who.sheet.precision.dtype, device)
        self.scaler = Scaler(self.mode)
        self.compiled, self.captured = accelerate(
            self.step, who.sheet, device, cuda_graph=cuda_graph, compile=compile, seed=self._seed
        )
        self.optimizer = build_optimizer(self.network, who.sheet.recipe, fused=None, device=device)
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.average = Average(self.network, who.sheet.recipe.ema) if who.sheet.recipe.ema.on else None
        self.number = 0

    def _seed(self) -> torch.Tensor:
        return self.scaler.live.scale(torch.ones((), device=self.device))

    def next_batch(self) -> Batch:
        """The batch of the coming step."""
        return self.data[self.number % len(self.data)]

    def __call__(self) -> torch.Tensor:
        """One step; returns its loss, detached and still on the device."""
        with self.mode.autocast():
            loss = self.step(self.next_batch()).total
        self.scaler.backward(loss)
        self.finish()
        self.number += 1
        return loss.detach()

    def finish(self) -> None:
        """The part after backward."""
        self.scaler.step(self.optimizer, self.parameters, self.sheet.recipe.clip)
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            self.average.update(self.network)

    def milliseconds(self) -> float:
        """Of one step, its device's work included."""
        return self.timed()[0]

    def timed(self) -> tuple[float, float]:
        """Milliseconds of one step: by the clock, its device's work included, and of the processor, all threads
        together, which neighbours on the machine disturb less."""
        self.wait()
        began, spent = time.perf_counter(), time.process_time()
        self()
        self.wait()
        return (time.perf_counter() - began) * 1000, (time.process_time() - spent) * 1000

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def shares(self) -> dict[str, float]:
        """Milliseconds of one eager step by its parts, forward and backward together: the region, what follows it with
        the loss, and the rest (clipping, optimizer, average)."""
        batch, parts = self.next_batch(), {}
        with self._timed(parts, "region"), self.mode.autocast():
            images = prepare(batch.images, self.step.rule).contiguous(memory_format=self.step.memory_format)
            features = self.network.region(images, batch.draw)
        leaves, spec = pytree.tree_flatten(features)
        cut = [x.detach().requires_grad_() if _has_gradient(x) else x for x in leaves]
        with self._timed(parts, "loss"):
            with self.mode.autocast():
                outputs = self.network.finish(pytree.tree_unflatten(cut, spec), batch.targets, batch.draw)
                loss = self.step.loss(outputs, batch.targets, Step(draw=batch.draw)).total
            self.scaler.backward(loss)
        with self._timed(parts, "region"):
            pairs = [(x, c.grad) for x, c in zip(leaves, cut, strict=True) if _has_gradient(x) and c.grad is not None]
            torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
        with self._timed(parts, "rest"):
            self.finish()
        return parts

    def operations(self) -> int:
        """Operations that one step dispatches, forward to average."""
        with OperationCounter() as counter:
            self()
        return counter.total

    @contextlib.contextmanager
    def _timed(self, parts: dict[str, float], name: str) -> Iterator[None]:
        self.wait()
        began = time.perf_counter()
        yield
        self.wait()
        parts[name] = parts.get(name, 0.0) + (time.perf_counter() - began) * 1000


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


class Peak:
    """The most memory that a stretch of work took beyond what was in use before, in MiB: of the allocator on a GPU, of
    the process elsewhere, where it is what the process's peak grew by and counts the first and largest piece of work
    alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device) / 2**20
        else:
            self.before = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def mib(self) -> float:
        """So far."""
        return round(self._now() - self.before, 1)
