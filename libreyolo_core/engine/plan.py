"""From resolved arguments to a run: steps, accumulation windows, and phases, into which a sheet's changes cut it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from libreyolo_core.config import Resolved, TrainArgs
from libreyolo_core.engine.distributed import check_batch
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import SCRATCH, TAIL, Change, Task, with_path

CPU_BATCH = 8
"""What ``batch=-1`` means on a CPU, where there is no device memory to fill."""


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs with one configuration.

    Args:
        start: its first epoch.
        sheet: the sheet with every change up to here applied.
        network: options for ``Network.configure``.
    """

    start: int
    sheet: Task
    network: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseChanged:
    """The one event between loop and family: from ``epoch`` on, ``new`` holds instead of ``old`` (first ``None``)."""

    epoch: int
    old: Phase | None
    new: Phase


@dataclass(frozen=True)
class Plan:
    """Everything about a run that is known before its first step.

    Args:
        samples: training images.
        batch: images per forward pass.
        accumulate: forward passes per optimizer step.
        imgsz: side of the input in pixels.
        warmup: epochs of warm-up, ``tail``: last epochs without strong augmentation (both after shortening).
        notes: what was changed against the request, one line each.
        world: ranks that share every batch; a last batch with fewer images than ranks is left out.
    """

    args: TrainArgs
    sheet: Task
    epochs: int
    samples: int
    batch: int
    accumulate: int
    imgsz: int
    warmup: float
    tail: int
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = ()
    world: int = 1

    @property
    def batches(self) -> int:
        """Forward passes per epoch."""
        full, rest = divmod(self.samples, self.batch)
        return full if self.sheet.recipe.drop_last and full else full + (rest >= self.world)

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer steps per epoch; the last window of an epoch may be partial."""
        return math.ceil(self.batches / self.accumulate)

    @property
    def updates(self) -> int:
        """Optimizer steps of the run."""
        return self.updates_per_epoch * self.epochs

    def phase(self, epoch: int) -> Phase:
        """The phase an epoch belongs to."""
        return [p for p in self.phases if p.start <= epoch][-1]

    def batch_length(self, index: int) -> int:
        """Images in batch ``index`` of an epoch."""
        return min(self.batch, self.samples - index * self.batch)

    def weight(self, index: int) -> float:
        """What the loss of batch ``index`` is multiplied by, so that a window's gradient is the mean over its samples
        whether the window is full, short, or ends in a small batch."""
        first = index - index % self.accumulate
        window = range(first, min(first + self.accumulate, self.batches))
        return self.batch_length(index) / sum(self.batch_length(i) for i in window)

    def closes_window(self, index: int) -> bool:
        """Whether the optimizer steps after batch ``index``."""
        return (index + 1) % self.accumulate == 0 or index + 1 == self.batches

    @property
    def canvas(self) -> tuple[int, int]:
        """The largest input (height, width) of the run."""
        share = max(p.sheet.recipe.multi_scale for p in self.phases)
        multiple = self.sheet.input.multiple
        side = round(self.imgsz * (1 + share) / multiple) * multiple if share else self.imgsz
        return side, side

    def size(self, epoch: int, index: int) -> tuple[int, int]:
        """Input (height, width) of a batch; with multi-scale a pure function of (seed, epoch, index)."""
        recipe = self.phase(epoch).sheet.recipe
        share = recipe.multi_scale
        if not share:
            return self.imgsz, self.imgsz
        multiple = self.sheet.input.multiple
        low, high = (round(self.imgsz * f / multiple) for f in (1 - share, 1 + share))
        rng = np.random.Generator(np.random.Philox(key=[self.args.seed, (epoch << 32) + index]))
        drawn = int(rng.integers(max(1, low), high + recipe.multi_scale_base))
        side = drawn * multiple if drawn <= high else self.imgsz  # numbers beyond the range stand for imgsz
        return side, side


def scratch(sheet: Task) -> Task:
    """The sheet of a run that starts without weights."""
    for change in sheet.changes:
        if change.at == SCRATCH:
            sheet = _apply(sheet, change)
    return sheet


def make_plan(resolved: Resolved, *, samples: int, default_imgsz: int, device_type: str, world: int = 1) -> Plan:
    """Cut a run into steps and phases.

    Args:
        samples: number of training images.
        default_imgsz: the size's own input side, used when neither user nor recipe gives one.
        device_type: ``cpu``, ``cuda`` or ``mps``.
        world: ranks that share every batch.

    Raises:
        ConfigError: an input side that the family cannot take, or a batch that the ranks cannot share.
    """
    args, sheet, recipe, notes = resolved.args, resolved.sheet, resolved.sheet.recipe, []
    imgsz = check_imgsz(sheet, args.imgsz or default_imgsz, default_imgsz)
    batch = recipe.batch
    if batch == -1:
        if device_type != "cpu":
            raise ConfigError(
                f"batch=-1 cannot measure the memory of {device_type}",
                where="train argument batch",
                mend="Give a number, e.g. batch=16.",
            )
        batch = math.ceil(CPU_BATCH / world) * world
        notes.append(f"batch=-1 on a CPU means batch={batch}: there is no device memory to fill")
    check_batch(batch, world)
    if samples < world:
        raise ConfigError(
            f"{samples} training images are too few for {world} ranks", where="data", mend="Start fewer processes."
        )
    if batch > samples:
        notes.append(f"batch={batch} is more than the {samples} training images: every step sees all of them")
    warmup, tail = _shorten(resolved, notes)
    accumulate = max(1, round(recipe.nbs / batch)) if recipe.nbs else 1
    plan = Plan(
        args=replace(args, batch=batch, imgsz=imgsz, warmup_epochs=warmup, no_aug_epochs=tail),
        sheet=sheet,
        epochs=recipe.epochs,
        samples=samples,
        batch=min(batch, samples // world * world),
        accumulate=accumulate,
        imgsz=imgsz,
        warmup=warmup,
        tail=tail,
        phases=_phases(sheet, recipe.epochs, tail),
        world=world,
    )
    if accumulate > plan.batches:
        notes.append(f"nbs={recipe.nbs} is more than an epoch: the optimizer steps once per epoch")
    return replace(plan, notes=tuple(notes))


def check_imgsz(sheet: Task, imgsz: int, default: int) -> int:
    """``imgsz`` if the family can take it; raises ``ConfigError`` with the nearest sides that it can."""
    rule = sheet.input
    if rule.fixed and imgsz != default:
        raise ConfigError(
            f"imgsz={imgsz} is not possible", where="imgsz", mend=f"This model's input is fixed: use imgsz={default}."
        )
    if imgsz % rule.multiple:
        below = max(rule.multiple, imgsz // rule.multiple * rule.multiple)
        raise ConfigError(
            f"imgsz={imgsz} is no multiple of {rule.multiple}",
            where="imgsz",
            mend=f"Use imgsz={below} or imgsz={below + rule.multiple}.",
        )
    return imgsz


def _shorten(resolved: Resolved, notes: list[str]) -> tuple[float, int]:
    """Warm-up and tail together take at most half of a run: a short run shrinks both in proportion, unless the user
    gave them. (A run of 10 epochs with a tail of 15 would otherwise never augment.)"""
    recipe, origins = resolved.sheet.recipe, resolved.origins
    warmup, tail = recipe.schedule.warmup, min(recipe.tail, recipe.epochs)
    own = {n: origins.get(n) not in ("user", "yaml") for n in ("warmup_epochs", "no_aug_epochs")}
    room = recipe.epochs / 2
    if warmup + recipe.tail > room:
        factor = room / (warmup + recipe.tail)
        short_warmup = warmup * factor if own["warmup_epochs"] else warmup
        short_tail = math.floor(recipe.tail * factor) if own["no_aug_epochs"] else tail
        if (short_warmup, short_tail) != (warmup, tail):
            notes.append(
                f"{recipe.epochs} epochs are short for a warm-up of {warmup:g} and {recipe.tail} last epochs without "
                f"strong augmentation: they become {short_warmup:g} and {short_tail}"
            )
        warmup, tail = short_warmup, short_tail
    return min(warmup, recipe.epochs), tail


def _phases(sheet: Task, epochs: int, tail: int) -> tuple[Phase, ...]:
    starts: dict[int, list[Change]] = {}
    for change in sheet.changes:
        if change.at == SCRATCH:
            continue
        if change.at == TAIL:
            start = epochs - tail
        elif isinstance(change.at, float):
            start = int(change.at * epochs)
        else:
            start = int(change.at)
        if start < epochs:
            starts.setdefault(start, []).append(change)
    phases = [Phase(0, sheet)]
    for start in sorted(starts):
        before = phases[-1]
        changed, network = before.sheet, dict(before.network)
        for change in starts[start]:
            changed = _apply(changed, change)
            network |= {k.removeprefix("network."): v for k, v in change.set.items() if k.startswith("network.")}
        phase = Phase(start, changed, network)
        if start == before.start:
            phases[-1] = phase
        else:
            phases.append(phase)
    return tuple(phases)


def _apply(sheet: Task, change: Change) -> Task:
    for path, value in change.set.items():
        if not path.startswith("network."):
            sheet = with_path(sheet, path, value)
    return sheet
