"""Small modules that backbones, encoders and decoders are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import fuse_conv_bn

NormMaker = Callable[[int], nn.Module]
"""Makes a normalisation layer for a number of channels: ``nn.BatchNorm2d`` or ``FrozenBatchNorm2d``."""

Activation = Callable[[Tensor], Tensor]
"""An activation without parameters: ``F.relu``, ``F.silu``."""


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation as a fixed affine map: its four tensors are buffers, statistics never move."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # A file written while the norm was trainable counts its batches; a fixed map has no use for the count.
        state_dict.pop(prefix + "num_batches_tracked", None)  # type: ignore[attr-defined]
        super()._load_from_state_dict(state_dict, prefix, *args)


class ConvNorm(nn.Module):
    """Convolution without bias, normalisation, activation.

    ``norm_key`` is the name under which checkpoints know the normalisation; subclass to change it.
    """

    norm_key = "norm"

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        act: nn.Module | None = None,
        norm: NormMaker = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv: nn.Module = nn.Conv2d(
            c_in, c_out, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        )
        self.add_module(self.norm_key, norm(c_out))
        self.act = act if act is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.act(getattr(self, self.norm_key)(self.conv(x)))

    def fuse(self) -> None:
        """Fold the normalisation into the convolution, in place."""
        norm = getattr(self, self.norm_key)
        if isinstance(norm, nn.Identity):
            return
        if isinstance(self.conv, nn.Sequential):
            self.conv[-1] = fuse_conv_bn(self.conv[-1], norm)  # type: ignore[arg-type]
        else:
            self.conv = fuse_conv_bn(self.conv, norm)  # type: ignore[arg-type]
        setattr(self, self.norm_key, nn.Identity())


class MLP(nn.Module):
    """``layers`` linear layers with ``act`` between them: ``c_in`` to ``hidden`` ... to ``c_out``."""

    def __init__(self, c_in: int, hidden: int, c_out: int, layers: int, *, act: Activation = F.relu) -> None:
        super().__init__()
        self.act = act
        widths = [c_in, *[hidden] * (layers - 1), c_out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [..., c_in]."""
        *hidden, last = self.layers
        for layer in hidden:
            x = self.act(layer(x))
        return last(x)


class _KeepLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.layout = memory_format(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.contiguous(memory_format=ctx.layout)


def keep_layout(x: Tensor) -> Tensor:
    """``x`` [N, C, H, W] itself, with a gradient that arrives in the memory format of ``x``.

    For maps that go straight from a BatchNorm into a view or a concatenation. BatchNorm's backward on the CPU takes up
    to forty times as long for a gradient in another layout, and computes wrong numbers for a batch of one whose
    gradient has a degenerate batch stride (seen in torch 2.14).
    """
    # A TorchScript trace cannot hold a Python function, and has no use for a gradient.
    return _KeepLayout.apply(x) if x.requires_grad and not torch.jit.is_tracing() else x


def memory_format(x: Tensor) -> torch.memory_format:
    """The format in which ``x`` [N, C, H, W] is stored."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format


def init_convolutions(module: nn.Module) -> None:
    """Kaiming-normal weights for every convolution inside, for the number of its outputs and a ReLU."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")


def fuse_all(module: nn.Module) -> None:
    """Call ``fuse`` of every module inside that has one, outer modules first."""
    for child in list(module.modules()):
        if callable(fuse := getattr(child, "fuse", None)):
            fuse()
