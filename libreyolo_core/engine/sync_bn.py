"""BatchNorm over all ranks of a run: torch's on CUDA, and the same computation on differentiable sums elsewhere."""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

log = logging.getLogger("libreyolo")
SMALL_SHARD = 16
"""Images per rank below which statistics of a rank alone are worth a warning."""


class SummedBatchNorm(_BatchNorm):
    """Batch statistics over all ranks by two sums (mean, then centred squares), for devices on which
    ``torch.nn.SyncBatchNorm`` does not run. State dict and evaluation are those of BatchNorm. Statistics are taken in
    float64, so that how a batch is shared makes no difference that a deep network could amplify."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 axes, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, ...] normalised per channel; in evaluation with the running statistics."""
        self._check_input_dim(input)
        if not self.training:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        x = input.double()
        axes = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = torch.full((1,), x.numel() / x.shape[1], device=x.device, dtype=x.dtype)
        sums = all_sum(torch.cat([x.sum(axes), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = x - mean.reshape(shape)
        var = all_sum(centred.square().sum(axes)) / total
        self._follow(mean.detach(), var.detach(), total)
        out = (centred * torch.rsqrt(var + self.eps).reshape(shape)).to(input.dtype)
        if self.weight is not None:
            out = torch.addcmul(self.bias.reshape(shape), out, self.weight.reshape(shape))
        return out.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), share)


class _AllSum(torch.autograd.Function):
    """The sum over ranks; so is its gradient, since every rank's loss depends on the total."""

    @staticmethod
    def forward(ctx, value: Tensor) -> Tensor:  # type: ignore[override]
        total = value.clone()
        _reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        total = gradient.contiguous().clone()
        _reduce(total)
        return total


def _reduce(value: Tensor) -> None:
    if dist.is_initialized():  # one process alone sums over itself
        dist.all_reduce(value)


def all_sum(value: Tensor) -> Tensor:
    """The sum of ``value`` over all ranks, differentiable."""
    return _AllSum.apply(value)  # type: ignore[no-any-return]


def synchronise_norms(network: nn.Module, device: torch.device) -> int:
    """Replace every BatchNorm by one over all ranks, in place; parameters and buffers stay the same objects.

    Returns:
        How many there were.
    """
    count = 0
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, (nn.SyncBatchNorm, SummedBatchNorm)):
                setattr(module, name, _synchronised(child, device))
                count += 1
    return count


def _synchronised(norm: _BatchNorm, device: torch.device) -> _BatchNorm:
    kind = nn.SyncBatchNorm if device.type == "cuda" else SummedBatchNorm
    new = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    new.weight, new.bias = norm.weight, norm.bias
    new.running_mean, new.running_var = norm.running_mean, norm.running_var
    new.num_batches_tracked = norm.num_batches_tracked
    new.train(norm.training)
    return new


def warn_of_small_shards(network: nn.Module, batch: int, world: int) -> None:
    """One line where statistics of a rank alone come from few images."""
    if any(isinstance(m, _BatchNorm) for m in network.modules()) and batch // world < SMALL_SHARD:
        log.warning(
            "sync_bn is off and each of the %d ranks sees %d images per step: their batch statistics are noisy. "
            "sync_bn=true computes them over all ranks",
            world,
            batch // world,
        )
