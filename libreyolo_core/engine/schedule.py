"""Learning rate and momentum as a function of the optimizer step, nothing else."""

from __future__ import annotations

import math

import torch

from libreyolo_core.engine.plan import Plan


class LearningRate:
    """Sets the rate of every group before each optimizer step. It has no state of its own: the number of optimizer
    steps made so far decides, so a skipped step does not advance it and a resume needs nothing more."""

    def __init__(self, plan: Plan) -> None:
        schedule = plan.sheet.recipe.schedule
        self.schedule = schedule
        self.total = plan.updates
        warm = round(plan.warmup * plan.updates_per_epoch)
        self.warm = min(max(warm, schedule.warmup_steps), self.total)
        hold = plan.tail if schedule.hold == "tail" else int(schedule.hold)
        self.tail = plan.tail * plan.updates_per_epoch
        self.hold = min(hold * plan.updates_per_epoch, self.total - self.warm)

    def factor(self, update: int) -> float:
        """The share of its own rate that every group has at optimizer step ``update`` (from 0)."""
        s, done = self.schedule, update + 1
        if done <= self.warm:
            return s.start + (1 - s.start) * (done / self.warm) ** s.power
        span = self.total - self.warm - self.hold
        flat = max(0.0, span - self.tail + self.hold) if s.flat == "tail" else float(s.flat) * span
        t = min(1.0, max(0.0, (done - self.warm - flat) / max(span - flat, 1)))
        if s.anneal == "constant":
            return 1.0
        if s.anneal == "linear":
            return 1 + (s.to - 1) * t
        return s.to + (1 - s.to) * 0.5 * (1 + math.cos(math.pi * t))

    def apply(self, optimizer: torch.optim.Optimizer, update: int) -> float:
        """Set rates (and momentum in warm-up) for optimizer step ``update``; returns the factor."""
        factor = self.factor(update)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
            if self.schedule.momentum is not None and "momentum" in group:
                share = min(1.0, (update + 1) / self.warm) if self.warm else 1.0
                full = group["base_momentum"]
                group["momentum"] = self.schedule.momentum + (full - self.schedule.momentum) * share
        return factor
