"""Counts dispatched ATen operations: a stand-in for kernel launches that needs no GPU.

with OperationCounter() as counter:
    loss = step()
counter.total, counter.without_views, counter.host_sync, counter.by_name["add"]

count_step(network, loss, images, targets).shares(reference)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from libreyolo_core.losses import LossTerms, Step

_HOST_READS = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "is_nonzero",
        "masked_select",
        "equal",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
    }
)
_MASKED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


class OperationCounter(TorchDispatchMode):
    """While active, counts every operation that reaches a kernel, forward and backward.

    Attributes:
        total: all operations.
        without_views: those that do more than make a view (a view's schema returns an alias that is not written).
        host_sync: those that would make a GPU wait for the host: reading a scalar, a shape that depends on data
            (``nonzero``, a boolean mask used as an index), a copy from an accelerator to the CPU.
        by_name: how often each operation ran, by its name without overload.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.without_views = self.host_sync = 0
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.total += 1
        self.without_views += not _is_view(func)
        self.host_sync += _waits_for_host(name, args, out)
        self.by_name[name] += 1
        return out


class StepCount(NamedTuple):
    """The operations of the parts of a training step."""

    forward: OperationCounter
    loss: OperationCounter
    backward: OperationCounter

    @property
    def total(self) -> int:
        """All operations of the three."""
        return sum(part.total for part in self)

    @property
    def without_views(self) -> int:
        """Those that do more than make a view."""
        return sum(part.without_views for part in self)

    @property
    def host_sync(self) -> int:
        """Those that would make a GPU wait for the host."""
        return sum(part.host_sync for part in self)

    def shares(self, recorded: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
        """The loss and the whole step beside those of a reference, as ratios: below 1 is fewer.

        Args:
            recorded: counts under ``loss`` and ``all``, each with ``total`` and ``without_views``, as reference files
                hold them.

        Returns:
            ``{"loss": ..., "loss without views": ..., "all": ..., "all without views": ...}``
        """
        loss, whole = recorded["loss"], recorded["all"]
        return {
            "loss": self.loss.total / loss["total"],
            "loss without views": self.loss.without_views / loss["without_views"],
            "all": self.total / whole["total"],
            "all without views": self.without_views / whole["without_views"],
        }


def count_step(
    network: nn.Module,
    loss: Callable[[Any, Any, Step], LossTerms],
    images: Tensor,
    targets: Any,
    draw: Tensor | None = None,
) -> StepCount:
    """Count one training step without its optimizer, after one that fills caches.

    Args:
        network: in the mode it is to be counted in.
        loss: takes outputs, targets and a ``Step``, as every family's loss does.
        images: N x C x H x W, as the network gets them.
        draw: int64 [N], the samples' random keys; ``None`` switches off what draws from them.
    """
    loss(network(images, targets, draw), targets, Step(draw=draw)).total.backward()
    network.zero_grad(set_to_none=True)
    with OperationCounter() as forward:
        outputs = network(images, targets, draw)
    with OperationCounter() as criterion:
        total = loss(outputs, targets, Step(draw=draw)).total
    with OperationCounter() as backward:
        total.backward()
    return StepCount(forward, criterion, backward)


def _is_view(func) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _waits_for_host(name: str, args: tuple, out) -> bool:
    if name in _HOST_READS:
        return True
    if name in _MASKED:
        return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if name in ("_to_copy", "copy_"):
        source = args[0] if name == "_to_copy" else args[1]
        return isinstance(source, Tensor) and source.device.type != "cpu" and out.device.type == "cpu"
    return False
