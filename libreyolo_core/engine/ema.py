"""Exponential moving average of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from libreyolo_core.family import Ema
from libreyolo_core.network import Network


class Average:
    """A copy of the network whose floating-point state follows it (BatchNorm statistics included); integer counters are
    copied. ``network`` is the averaged copy, in evaluation mode."""

    def __init__(self, network: Network, rule: Ema) -> None:
        self.rule, self.updates = rule, 0
        self.network: Network = copy.deepcopy(network)
        self.network.eval().requires_grad_(False)

    def decay(self, updates: int) -> float:
        """Decay at the given number of updates (from 1)."""
        return self.rule.decay * (1 - math.exp(-updates / self.rule.ramp)) if self.rule.ramp > 0 else self.rule.decay

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take one step towards ``network``; called once per optimizer step that was really made."""
        self.updates += 1
        floats, sources = [], []
        for average, value in zip(self.network.state_dict().values(), network.state_dict().values(), strict=True):
            if average.is_floating_point():
                floats.append(average)
                sources.append(value)
            else:
                average.copy_(value)
        torch._foreach_lerp_(floats, sources, 1.0 - self.decay(self.updates))
