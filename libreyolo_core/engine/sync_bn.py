"""BatchNorm over all ranks of a run: torch's on CUDA, and the same computation on differentiable sums elsewhere."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

log = logging.getLogger("libreyolo")
SMALL_SHARD = 16
"""Images per rank below which statistics of a rank alone are worth a warning."""


class SummedBatchNorm(_BatchNorm):
    """Batch statistics over all ranks (Ioffe and Szegedy, 2015, algorithm 1, summed over ranks), for devices on
    which ``torch.nn.SyncBatchNorm`` does not run. State dict and evaluation are those of BatchNorm. Sums over images
    are float64, so that how a batch is shared makes no difference that a deep network could amplify."""

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
        out, mean, var, count = _Normalise.apply(input, self.weight, self.bias, self.eps)
        self._follow(mean, var, count)
        return out  # type: ignore[no-any-return]

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """[N, C, ...] to the same, with mean and variance (float64 [C]) and the number of values per channel (float64 [])
    over all ranks. One collective operation each way."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = _at_least_float32(input)
        channels = x.shape[1]
        count = torch.full((1,), x.numel() / channels, device=x.device, dtype=torch.float64)
        sums = torch.cat([_summed(x), _summed(x.square()), count])
        _reduce(sums)
        count = sums[-1]
        mean = sums[:channels] / count
        var = (sums[channels:-1] / count - mean.square()).clamp(min=0)
        scale = torch.rsqrt(var + eps) if weight is None else torch.rsqrt(var + eps) * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(input, weight, mean, var, count)
        ctx.eps, ctx.has_bias = eps, bias is not None
        ctx.mark_non_differentiable(mean, var, count)
        return torch.addcmul(_wide(shift, x), x, _wide(scale, x)).to(input.dtype), mean, var, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        input, weight, mean, var, count = ctx.saved_tensors
        x, g = _at_least_float32(input), _at_least_float32(gradient)
        inverse = torch.rsqrt(var + ctx.eps)
        of_bias = _summed(g)
        of_weight = inverse * (_summed(g * x) - mean * of_bias)
        sums = torch.cat([of_bias, of_weight])
        _reduce(sums)  # every rank's loss depends on the statistics of all
        mean_g, mean_gx = (sums / count).chunk(2)
        scale = inverse if weight is None else inverse * weight
        slope = -scale * inverse * mean_gx
        shift = -scale * mean_g - slope * mean
        out = torch.addcmul(torch.addcmul(_wide(shift, x), x, _wide(slope, x)), g, _wide(scale, x))
        return (
            out.to(input.dtype),
            None if weight is None else of_weight.to(weight.dtype),
            of_bias.to(gradient.dtype if weight is None else weight.dtype) if ctx.has_bias else None,
            None,
        )


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _summed(x: Tensor) -> Tensor:
    """[N, C, ...] to [C]: float32 within an image, which is never shared, and float64 over images."""
    each = x.sum(list(range(2, x.dim()))) if x.dim() > 2 else x
    return each.sum(0, dtype=torch.float64)


def _wide(of_channel: Tensor, x: Tensor) -> Tensor:
    """[C] as it broadcasts over [N, C, ...]."""
    return of_channel.to(x.dtype).reshape(1, -1, *[1] * (x.dim() - 2))


def _reduce(value: Tensor) -> None:
    if dist.is_initialized():  # one process alone sums over itself
        dist.all_reduce(value)


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
