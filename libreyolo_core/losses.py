"""What a loss returns and what it is given. Losses have no state; a family's loss class looks like::

class MyLoss:
    def __init__(self, network, **options): ...
    def __call__(self, outputs, targets, step: Step) -> LossTerms: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor, nn

F = TypeVar("F", bound=Callable)
T = TypeVar("T")


@dataclass
class LossTerms:
    """Named, already weighted terms; ``total`` is their sum and is what gets differentiated.

    Args:
        terms: scalar tensors, or 1-D tensors of one term over several layers.
        parts: for a 1-D term, the suffix of each entry: ``{"vfl": ("", "_aux_0")}`` names ``vfl`` and ``vfl_aux_0``.
        extra: scalars worth logging that are no part of the total, e.g. the number of positives.
    """

    terms: Mapping[str, Tensor]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The sum of all terms, a scalar."""
        first, *others = self.terms.values()
        if not others and first.dim() == 0:
            return first
        return torch.cat([t.reshape(-1) for t in (first, *others)]).sum()

    def named(self) -> dict[str, Tensor]:
        """Every scalar by name, layers expanded, detached; for logs and tests."""
        out: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            for suffix, value in zip(self.parts.get(name, ("",)), term.detach().reshape(-1).unbind(), strict=True):
                out[name + suffix] = value
        out.update({k: v.detach() for k, v in self.extra.items()})
        return out


class Ranks:
    """How a loss sees the processes of a run. On one process every method is the identity."""

    size = 1
    rank = 0
    local_size = 1

    def sum(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all ranks (no gradient)."""
        return value

    def normaliser(self, count: Tensor, minimum: float = 1.0) -> Tensor:
        """What a rank divides its local sum by: the global count, at least ``minimum``, over the number of ranks.

        Gradients are averaged over ranks afterwards, so N ranks compute the gradient of one.
        """
        total = self.sum(count).clamp(min=minimum)
        return total if self.size == 1 else total / self.size

    def max(self, value: int) -> int:
        """The largest ``value`` of all ranks."""
        return value

    def gather(self, value: T) -> list[T]:
        """``value`` of every rank, in rank order, on every rank."""
        return [value]

    def on_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` on rank 0 alone; every rank gets what it returned, or its failure."""
        return function()

    def average_buffers(self, network: nn.Module) -> None:
        """Give every rank the mean of the network's floating-point buffers."""

    def leave(self) -> None:
        """The run is over."""


@dataclass
class Step:
    """The context of one loss call: ``ranks`` for normalisers, ``draw`` the int64 [N] random keys of the samples."""

    ranks: Ranks = field(default_factory=Ranks)
    draw: Tensor | None = None


def float32_island(function: F) -> F:
    """Decorator: run ``function`` outside autocast with every floating tensor argument (also inside dicts, lists and
    tuples) in float32. For arithmetic that overflows or under-resolves half precision: pixel areas (640 squared is far
    above 65504), logarithms of probabilities."""

    @wraps(function)
    def wrapper(*args, **kwargs):
        with autocast_off():
            return function(*_float(args), **_float(kwargs))

    return wrapper  # type: ignore[return-value]


def autocast_off() -> torch.autocast:
    """A context in which autocast is off on the current accelerator (or the CPU)."""
    cuda = torch.is_autocast_enabled("cuda")
    return torch.autocast("cuda" if cuda else "cpu", enabled=False)


def _float(value):
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() and value.dtype != torch.float32 else value
    if isinstance(value, dict):
        return {k: _float(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_float(v) for v in value)
    return value
