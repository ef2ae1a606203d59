"""The window: real steps of a run, timed from outside the loop.

The window puts timed versions of five of the run's functions in their places (the loader's iterator, the step, forward,
backward, update) and puts the originals back when it is over, so a run that is not profiled has nothing to ask at every
step. Its parts, in order:

* discarded: steps in which caches, allocators and captures settle;
* plain: no synchronisation between steps or phases; what the verdict needs is measured here. The first plain steps run
  without the tracer and give the times; the last few run with it and give operators, kernels and busy time, and the
  difference between the two is what tracing costs;
* bracketed: the device is waited for around every phase, which tells what each one takes. That slack would let a
  starved loader catch up, so nothing of this part reaches the verdict.

Nothing here touches weights, optimizer or random state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from libreyolo_core.data.batch import Batch
from libreyolo_core.engine.capture import brief
from libreyolo_core.profiler.tracer import Tracer
from libreyolo_core.timing import synchronise

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer

PHASES = ("to_device", "forward", "backward", "optimizer")
"""Phases of a step: forward includes the loss, optimizer the average of the weights."""
DISCARDED, PLAIN, TRACED, BRACKETED, OVER = range(5)
MOST_TRACED = 5
"""Steps that the tracer sees at most; a trace grows with every one of them."""


@dataclass(frozen=True)
class Extent:
    """Which steps belong to which part.

    Args:
        warmup: steps discarded.
        steps: steps measured, half of them plain.
    """

    warmup: int
    steps: int

    @property
    def plain(self) -> int:
        """Plain steps, traced ones included."""
        return self.steps // 2

    @property
    def traced(self) -> int:
        """Plain steps with the tracer on, the last ones."""
        return min(MOST_TRACED, self.plain // 2)

    @property
    def total(self) -> int:
        """Steps from the first discarded to the last measured one."""
        return self.warmup + self.steps

    def part(self, index: int) -> int:
        """The part that step ``index`` belongs to."""
        bounds = (self.warmup, self.warmup + self.plain - self.traced, self.warmup + self.plain, self.total)
        return sum(index >= bound for bound in bounds)


@dataclass
class StepTime:
    """One measured step, in us since the window's first measured step.

    Args:
        part: ``PLAIN``, ``TRACED`` or ``BRACKETED``.
        begin_us: when the loop asked for the batch.
        wait_us: until it came.
        step_us: until the loop asked for the next one.
        first: whether it is the first step of an epoch.
        phases: by name (begin_us, duration_us).
    """

    part: int
    epoch: int
    images: int
    begin_us: float
    wait_us: float = 0.0
    step_us: float = 0.0
    first: bool = False
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class Counters:
    """What the device and the run have counted so far."""

    driver_calls: int = 0
    capture: dict[str, int] = field(default_factory=dict)
    compiled: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Trainer) -> Counters:
        """The counts of now."""
        calls = 0
        if run.device.type == "cuda":
            memory = torch.cuda.memory_stats(run.device)
            calls = memory.get("num_device_alloc", 0) + memory.get("num_device_free", 0)
        return cls(calls, _whole_numbers(run.captured), _whole_numbers(run.compiled))


def _whole_numbers(manager: Any) -> dict[str, int]:
    """What a manager of captured or compiled steps has counted."""
    counts = manager.counts.to_dict() if manager else {}
    return {k: v for k, v in counts.items() if isinstance(v, int)}


class Window:
    """Measures the next steps of a run, once.

    Args:
        run: the run, before or between steps.
        extent: which steps to measure.
        when_over: called after the last measured step, when the run's functions are its own again.

    Attributes:
        steps: the measured steps.
        done: steps since attached, the discarded ones too.
        failure: why the window was given up, in words.
        drained_us: by part, time that the device still worked after its steps.
    """

    def __init__(self, run: Trainer, extent: Extent, when_over: Callable[[], None]) -> None:
        self.run, self.extent, self.when_over = run, extent, when_over
        self.steps: list[StepTime] = []
        self.drained_us = {PLAIN: 0.0, TRACED: 0.0}
        self.failure = ""
        self.tracer = Tracer(run.device)
        self.before, self.between, self.after = Counters(), Counters(), Counters()
        self.origin_ns = time.perf_counter_ns()
        self.done, self._part = 0, DISCARDED
        self._step: StepTime | None = None
        self._replaced: list[tuple[Any, str, Any]] = []

    def attach(self) -> None:
        """Put timed functions in the places of the run's own."""
        self._replace(self.run, "batches", self._timed_batches)
        self._replace(self.run, "train_on", self._timed_step)
        self._replace(self.run, "forward", self._timed_phase("forward"))
        self._replace(self.run.scaler, "backward", self._timed_phase("backward"))
        self._replace(self.run, "update", self._timed_phase("optimizer"))
        self._turn()

    def detach(self) -> None:
        """Put the run's own functions back, and stop the tracer if it runs. Safe to call twice."""
        while self._replaced:
            holder, name, own = self._replaced.pop()
            if own is None:
                delattr(holder, name)
            else:
                setattr(holder, name, own)
        if self.tracer.running:
            self.tracer.stop()

    @property
    def attached(self) -> bool:
        """Whether the run's functions are replaced."""
        return bool(self._replaced)

    def of(self, *parts: int) -> list[StepTime]:
        """The measured steps of some parts."""
        return [s for s in self.steps if s.part in parts]

    def _replace(self, holder: Any, name: str, timed: Callable[[Callable], Callable]) -> None:
        own = vars(holder).get(name)
        self._replaced.append((holder, name, own))
        setattr(holder, name, timed(getattr(holder, name)))

    def _now(self) -> float:
        return (time.perf_counter_ns() - self.origin_ns) / 1000

    def _now_bracketed(self) -> float:
        """The time, in the bracketed part once the device is idle."""
        if self._part == BRACKETED:
            synchronise(self.run.device)
        return self._now()

    def _timed_batches(self, batches: Callable) -> Callable:
        def timed(run: Trainer, epoch: int, start: int) -> Iterator[Batch]:
            source, first = iter(batches(run, epoch, start)), True
            while self.attached:
                begin = self._now()
                batch = next(source, None)
                if batch is None:
                    self._drain()  # what validation takes next is not the step's
                    return
                self._step = StepTime(self._part, epoch, len(batch), begin, self._now() - begin, first=first)
                first = False
                yield batch
            yield from source

        return timed

    def _timed_step(self, train_on: Callable) -> Callable:
        def timed(batch: Batch) -> None:
            self._mark = self._now_bracketed()
            train_on(batch)
            step = self._step
            if step is not None and self._part in (PLAIN, TRACED, BRACKETED):
                step.step_us = self._now_bracketed() - step.begin_us
                self.steps.append(step)
            self.done += 1
            self._turn()

        return timed

    def _timed_phase(self, name: str) -> Callable[[Callable], Callable]:
        def wrap(function: Callable) -> Callable:
            def timed(*args: Any, **kwargs: Any) -> Any:
                begin = self._now_bracketed()
                phases = self._step.phases if self._step else {}
                phases.setdefault("to_device", (self._mark, begin - self._mark))
                out = function(*args, **kwargs)
                phases[name] = (begin, self._now_bracketed() - begin)
                return out

            return timed

        return wrap

    def _turn(self) -> None:
        """Go from one part to the next where the steps done so far say so."""
        part, before = self.extent.part(self.done), self._part
        if part == before:
            return
        if before == DISCARDED:
            synchronise(self.run.device)  # the discarded steps' work is not the first plain step's
            self.origin_ns = time.perf_counter_ns()
            self.before = Counters.of(self.run)
        self._drain()
        if before == PLAIN:
            self.between = Counters.of(self.run)
        if before == TRACED:
            self.tracer.stop()
        self._part = part
        if part == TRACED:
            self._start_tracer()
        if part == OVER:
            self.end()

    def _start_tracer(self) -> None:
        if torch.autograd._profiler_enabled():  # there is one per process, and a second would end the first
            self.failure = "a torch.profiler is running already"
        else:
            try:
                self.tracer.start()
            except Exception as error:  # whatever a driver objects to, the training goes on
                self.failure = f"the tracer did not start ({brief(error)})"
        if self.failure:
            self.end()

    def _drain(self) -> None:
        """Wait for the device at the end of unsynchronised steps, or of an epoch among them: what it had still to do is
        part of what these steps take, although the host was ahead of it."""
        if self._part in self.drained_us and self.run.device.type != "cpu":
            begin = self._now()
            synchronise(self.run.device)
            self.drained_us[self._part] += self._now() - begin

    def end(self) -> None:
        """Detach and hand over; also called when the run ends before the window does."""
        self.after = Counters.of(self.run)
        self.detach()
        self.when_over()
