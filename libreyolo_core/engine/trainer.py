"""The one training loop. Families have none; everything they do differently is in their data sheet."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from libreyolo_core.data.batch import Batch
from libreyolo_core.engine.accelerate import accelerate
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.distributed import timeout_s
from libreyolo_core.engine.ema import Average
from libreyolo_core.engine.interrupts import TERMINATED, Interrupts
from libreyolo_core.engine.losslog import LossLog
from libreyolo_core.engine.optimizer import build_optimizer, frozen_norms
from libreyolo_core.engine.plan import Phase, PhaseChanged, Plan
from libreyolo_core.engine.precision import Scaler, choose_mode
from libreyolo_core.engine.schedule import LearningRate
from libreyolo_core.engine.snapshot import Snapshots
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.engine.watchdog import Watchdog
from libreyolo_core.losses import LossTerms, Ranks
from libreyolo_core.network import Network
from libreyolo_core.tasks.base import BaseTask, Metrics

if TYPE_CHECKING:
    from libreyolo_core.profiler.record import Profile

log = logging.getLogger("libreyolo")


@dataclass
class TrainResult:
    """What a run left.

    Args:
        metrics: of the best epoch, by name.
        epochs: epochs trained in total, ``updates`` optimizer steps.
        save_dir: the run directory; ``best`` and ``last`` the checkpoints in it.
        per_class: the best epoch's figures per class.
        minutes: wall-clock time of this call.
        skipped: optimizer steps left out because gradients overflowed or a loss was not finite.
        precision: what the forward passes ran in.
        speed: milliseconds per image of the best weights' validation.
        capture: with ``cuda_graph`` how many steps were captured, replayed and eager, and the reasons in words.
        compile: with ``compile`` what was compiled, in how long, and how many steps ran it.
        profile: with ``profile`` what the profiled steps showed.
    """

    metrics: dict[str, float]
    epochs: int
    updates: int
    save_dir: Path
    best: Path
    last: Path
    per_class: list[dict[str, Any]] = field(default_factory=list)
    minutes: float = 0.0
    skipped: int = 0
    precision: str = "float32"
    speed: dict[str, float] = field(default_factory=dict)
    capture: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    profile: Profile | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}
        return {**plain, "profile": self.profile.to_dict() if self.profile else None}


class Trainer:
    """One run, as one process sees it; with several ranks each of them has one.

    Args:
        plan: what is to be done.
        network: trains in place, on ``device``; what must not train has ``requires_grad`` off.
        task: the task's code.
        batches: ``batches(epoch, start) -> iterator of Batch``, the same for the same arguments.
        validate: ``validate(network) -> Metrics`` or ``None`` when there is nothing to validate on.
        snapshots: writes and reads checkpoints.
        directory: the run directory.
        ranks: the processes of the run; rank 0 alone writes files and runs callbacks.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        task: BaseTask,
        *,
        device: torch.device,
        batches: Callable[[Trainer, int, int], Iterator[Batch]],
        validate: Callable[[Network], Metrics] | None,
        snapshots: Snapshots,
        directory: Path,
        callbacks: list[Callback],
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.plan, self.task, self.device, self.directory = plan, task, device, directory
        self.batches, self.validate, self.snapshots, self.callbacks = batches, validate, snapshots, callbacks
        args, recipe = plan.args, plan.sheet.recipe
        self.network = network.to(device)
        self.step_module = TrainStep(network, plan.sheet.loss, plan.sheet.input, self.ranks)
        self.use_channels_last(args.channels_last)
        self.compiled, self.captured = accelerate(
            self.step_module,
            plan.sheet,
            device,
            cuda_graph=args.cuda_graph,
            compile=args.compile,
            seed=self.backward_seed,
        )
        self.parallel = distribute(self.step_module, device) if self.ranks.size > 1 else None
        self.mode = choose_mode(plan.sheet.precision.amp, plan.sheet.precision.dtype, device)
        self.scaler = Scaler(self.mode, guarded=args.on_nonfinite == "skip")
        self.optimizer = build_optimizer(network, recipe, fused=args.fused, device=device)
        self.parameters = [p for g in self.optimizer.param_groups for p in g["params"]]
        self.rate = LearningRate(plan)
        self.average = Average(network, recipe.ema) if recipe.ema.on else None
        self.losses = LossLog(device, args.log_interval)
        self.spoiled = False
        self.phase: Phase | None = None
        self.profile: Profile | None = None
        self.epoch = self.index = self.updates = 0
        self.best: dict[str, Any] = {"fitness": None, "epoch": 0, "metrics": {}}
        self.shown_metrics = {task.fitness, *task.metrics[:2]}

    def fit(self) -> TrainResult:
        """Train from where the state stands (the beginning, or where a resumed run was) to the end."""
        began = time.monotonic()
        self.tell("on_start")
        hung = Watchdog(timeout_s(), self.directory / f"hang-rank{self.ranks.rank}.txt", f"rank {self.ranks.rank}")
        try:
            with Interrupts() as self.interrupts, hung if self.ranks.size > 1 else nullcontext() as self.watchdog:
                for epoch in range(self.epoch, self.plan.epochs):
                    self.enter(epoch)
                    for batch in self.batches(self, epoch, self.index):
                        self.train_on(batch)
                    metrics = self.measure()
                    self.close_epoch(metrics)
                    if self.patience_is_over():
                        break
        finally:
            self.tell("on_end")
        return self.result((time.monotonic() - began) / 60)

    def enter(self, epoch: int) -> None:
        """Begin an epoch, and a phase where one starts."""
        self.epoch, self.entered = epoch, time.monotonic()
        self.trained_here = 0
        phase = self.plan.phase(epoch)
        if phase is not self.phase:
            change = PhaseChanged(epoch, self.phase, phase)
            self.network.configure(**phase.network)
            if self.average:
                self.average.network.configure(**phase.network)
                self.average.rule = phase.sheet.recipe.ema
            self.step_module.set_loss(phase.sheet.loss)
            if self.compiled:
                self.compiled.phase_changed(change)
            if self.captured:
                self.captured.phase_changed(change)
            if self.phase:
                log.info("epoch %d: %s", epoch + 1, describe_change(change))
            self.phase = phase
            self.tell("on_phase", change)
        self.network.train()
        for norm in frozen_norms(self.network):
            norm.eval()

    def train_on(self, batch: Batch) -> None:
        """Forward, backward, and at the end of an accumulation window an optimizer step."""
        batch = self.agreed(batch).to(self.device)
        closes = self.plan.closes_window(self.index)
        with self.gradients_stay_here(not closes):
            terms = self.forward(batch)
            loss = terms.total
            if self.is_bad(loss):
                self.spoiled = True
                log.warning(
                    "step %d: the loss is not finite, step left out; batch: %s",
                    self.updates,
                    ", ".join(batch.paths[:4]),
                )
            else:
                self.losses.add(terms, len(batch), self.updates, batch.paths)
                self.scaler.backward(loss * self.plan.weight(self.index))
        self.index += 1
        self.trained_here += len(batch)
        if closes:
            self.update()

    def agreed(self, batch: Batch) -> Batch:
        """The batch with the largest target count of the step over all ranks, so that shards compute what the whole
        would; a sign of life for the watchdog."""
        if self.ranks.size == 1:
            return batch
        assert self.watchdog is not None
        self.watchdog.beat()
        return replace(batch, targets=batch.targets.agree(self.ranks.max))

    def forward(self, batch: Batch) -> LossTerms:
        """Forward and loss in the run's precision."""
        with self.mode.autocast():
            return (self.parallel or self.step_module)(batch)  # type: ignore[no-any-return]

    def gradients_stay_here(self, wanted: bool) -> AbstractContextManager:
        """Inside an accumulation window ranks keep their gradients to themselves; its last batch adds them up."""
        return self.parallel.no_sync() if wanted and self.parallel is not None else nullcontext()

    def is_bad(self, loss: torch.Tensor) -> bool:
        """With ``on_nonfinite="skip"``: whether the loss is not finite on any rank."""
        if self.plan.args.on_nonfinite != "skip":
            return False
        return bool(self.ranks.max(int(not torch.isfinite(loss.detach()))))

    def update(self) -> None:
        """One optimizer step; schedule and average advance only if it was really made."""
        self.rate.apply(self.optimizer, self.updates)
        made = False
        if self.spoiled:
            self.spoiled = self.scaler.leave_out()
        else:
            made = self.scaler.step(self.optimizer, self.parameters, self.plan.sheet.recipe.clip)
        self.optimizer.zero_grad(set_to_none=True)
        if made:
            self.updates += 1
            if self.average:
                self.average.update(self.network)
        self.tell("on_step")
        if self.ranks.max(self.interrupts.requested):
            self.stop_for_interrupt()
        if made and self.plan.args.save_steps and self.updates % self.plan.args.save_steps == 0:
            self.keep()

    def measure(self) -> Metrics | None:
        """Validate the averaged weights where the recipe says so, always after the last epoch."""
        due = (self.epoch + 1) % self.plan.sheet.recipe.eval_every == 0 or self.epoch + 1 == self.plan.epochs
        self.ranks.average_buffers(self.network)
        if self.average:
            self.ranks.average_buffers(self.average.network)
        if self.validate is None or not due:
            return None
        return self.validate(self.weights())

    def close_epoch(self, metrics: Metrics | None) -> None:
        """Log the epoch, keep its checkpoint, note whether it is the best."""
        seconds = time.monotonic() - self.entered
        row: dict[str, Any] = {"epoch": self.epoch + 1, "step": self.updates, "seconds": seconds}
        row |= self.losses.means(self.ranks)
        row |= metrics.values if metrics else {}
        row |= {f"lr/{i}": g["lr"] for i, g in enumerate(self.optimizer.param_groups)}
        row |= {"images_per_s": sum(self.ranks.gather(self.trained_here)) / seconds}
        if self.scaler.live.is_enabled():
            row |= {"scale": self.scaler.live.get_scale()}
        row |= {"skipped": self.scaler.skipped}
        self.losses.reset()
        fitness = metrics.values.get(self.task.fitness) if metrics else None
        improved = fitness is not None and (self.best["fitness"] is None or fitness > self.best["fitness"])
        if improved and metrics:
            self.best = {"fitness": fitness, "epoch": self.epoch + 1, "metrics": dict(metrics.values)}
        self.epoch, self.index = self.epoch + 1, 0
        self.ranks.on_first(lambda: self.tell("on_epoch", row))
        period = self.plan.args.save_period
        self.keep(best=improved, numbered=bool(period) and self.epoch % period == 0)

    def keep(self, *, best: bool = False, numbered: bool = False) -> None:
        """Write the run's checkpoints, on rank 0."""

        def write() -> None:
            for path in self.snapshots.save(self, best=best, numbered=numbered):
                self.tell("on_checkpoint", path)

        self.ranks.on_first(write)

    def patience_is_over(self) -> bool:
        """Whether the metric has not improved for longer than the recipe waits."""
        patience = self.plan.sheet.recipe.patience
        over = bool(patience) and self.best["fitness"] is not None and self.epoch - self.best["epoch"] >= patience
        if over and self.epoch < self.plan.epochs:
            log.info("stopped early: no better %s in %d epochs (patience=%d)", self.task.fitness, patience, patience)
        return over

    def weights(self) -> Network:
        """The network to validate and to save: the average where there is one."""
        return self.average.network if self.average else self.network

    def use_channels_last(self, wanted: bool | None) -> None:
        """Store images and convolution weights channels-last; by default where the network is mostly convolutions."""
        if wanted is None:
            convolutions = sum(p.numel() for p in self.network.parameters() if p.dim() == 4)
            wanted = convolutions > 0.5 * sum(p.numel() for p in self.network.parameters())
        if wanted:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.step_module.memory_format = torch.channels_last

    def backward_seed(self) -> torch.Tensor:
        """The gradient that backward of the coming batch's loss begins with, its scale and its weight in the window."""
        one = torch.ones((), device=self.device)
        return self.scaler.live.scale(one) * self.plan.weight(self.index)

    def stop_for_interrupt(self) -> None:
        """Save between two optimizer steps and end the run: as Ctrl-C asks, or for SIGTERM (a node that is taken away)
        with exit code 0."""
        self.keep()
        how = self.ranks.max(self.interrupts.requested)
        word = "terminated" if how == TERMINATED else "interrupted"
        log.warning("%s at step %d, saved. Continue with resume=%s", word, self.updates, self.directory)
        if how == TERMINATED:
            raise SystemExit(0)
        raise KeyboardInterrupt

    def tell(self, moment: str, *values: Any) -> None:
        """Call a method of every callback; rank 0 alone has any."""
        for callback in self.callbacks if self.ranks.rank == 0 else ():
            getattr(callback, moment)(self, *values)

    def result(self, minutes: float) -> TrainResult:
        """What this run left."""
        return TrainResult(
            metrics=self.best["metrics"],
            epochs=self.epoch,
            updates=self.updates,
            save_dir=self.directory,
            best=self.snapshots.best,
            last=self.snapshots.last,
            minutes=minutes,
            skipped=self.scaler.skipped,
            precision=self.mode.name,
            capture=self.captured.close() if self.captured else {},
            compile=self.compiled.close() if self.compiled else {},
            profile=self.profile,
        )


def distribute(step: TrainStep, device: torch.device) -> DistributedDataParallel:
    """The step with gradients averaged over ranks. Never-used parameters are frozen and sometimes-used ones are touched
    on every step, so neither unused parameters nor a static graph need looking for; running statistics are averaged
    once per epoch instead of sent with every step."""
    places = [device] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # its successor exists in the newest torch alone, and differs only in what neither of the two does here
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(step, device_ids=places, broadcast_buffers=False)


def describe_change(change: PhaseChanged) -> str:
    """What a phase changes, in words: ``augment.mosaic.p 1.0 -> 0``."""
    from libreyolo_core.family import get_path

    assert change.old is not None
    parts = [f"network.{k}={v}" for k, v in change.new.network.items() if change.old.network.get(k) != v]
    for sheet_change in change.new.sheet.changes:
        for path in sheet_change.set:
            if path.startswith("network."):
                continue
            old, new = get_path(change.old.sheet, path), get_path(change.new.sheet, path)
            if old != new:
                parts.append(f"{path} {old} -> {new}")
    return ", ".join(dict.fromkeys(parts)) or "no visible change"
