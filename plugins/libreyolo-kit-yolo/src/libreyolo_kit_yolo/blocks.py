"""Convolutional blocks. Families choose widths, activations and norm constants; nothing here knows a family.

A block that contains others takes them as factories ``conv(cin, cout, kernel, stride)``, so that one ``partial`` sets
norm and activation for a whole network:

    conv = partial(ConvNormAct, eps=1e-5, momentum=0.1, act=nn.Hardswish)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import fuse_conv_bn

Conv = Callable[..., nn.Module]
"""Makes a block from ``(cin, cout, kernel, stride)``."""


class Fusible(nn.Module):
    """A block with a cheaper form for inference."""

    def fuse(self) -> None:
        """Take the inference form, in place; a second call changes nothing."""
        raise NotImplementedError


class ConvNormAct(Fusible):
    """Convolution without bias, padding ``kernel // 2``, then BatchNorm, then activation. Keys: ``conv``, ``bn``.

    Args:
        cin, cout: channels; both must be multiples of ``groups``.
        kernel, stride: in cells.
        act: activation class without required arguments, ``None`` for none.
        eps, momentum: of the BatchNorm. They belong to the architecture (a rebuild must not lose them), so they are
            constructor arguments; the defaults are those of most YOLO lines.
    """

    def __init__(
        self,
        cin: int,
        cout: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        act: Callable[[], nn.Module] | None = nn.SiLU,
        eps: float = 1e-3,
        momentum: float = 0.03,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(cout, eps=eps, momentum=momentum)
        # Not in place: autograd keeps the input of most activations, so writing over it costs a copy per layer.
        self.act = nn.Identity() if act is None else act()

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H / stride, W / stride]."""
        return self.act(self.bn(self.conv(x)))

    def fuse(self) -> None:
        """Fold the norm into the convolution, in place; for inference only."""
        if isinstance(self.bn, nn.BatchNorm2d):
            self.conv, self.bn = fuse_conv_bn(self.conv, self.bn), nn.Identity()


class DepthwiseSeparable(nn.Sequential):
    """A depthwise and a pointwise ``conv`` (MobileNet, section 3.1), norm and activation after each.

    Args:
        conv: block with a ``groups`` argument.
        names: state-dict names of the two, e.g. ``("depthwise_conv", "pointwise_conv")``.
    """

    def __init__(
        self,
        cin: int,
        cout: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        conv: Conv = ConvNormAct,
        names: tuple[str, str] = ("dconv", "pconv"),
    ) -> None:
        parts = conv(cin, cin, kernel, stride, groups=cin), conv(cin, cout, 1, 1)
        super().__init__(OrderedDict(zip(names, parts, strict=True)))


class Bottleneck(nn.Module):
    """A pointwise ``conv`` and a spatial one of equal width; ``add`` makes it residual. Keys: ``conv1``, ``conv2``."""

    def __init__(
        self, channels: int, *, kernel: int = 3, add: bool = True, conv: Conv = ConvNormAct, spatial: Conv | None = None
    ) -> None:
        super().__init__()
        self.add = add
        self.conv1 = conv(channels, channels, 1, 1)
        self.conv2 = (spatial or conv)(channels, channels, kernel, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same shape."""
        y = self.conv2(self.conv1(x))
        return x + y if self.add else y


class CSP(nn.Module):
    """Cross-stage partial layer (CSPNet, section 3): two pointwise halves, blocks on one, a pointwise merge.

    Args:
        cin, cout: channels outside.
        hidden: channels of each half.
        blocks: what the first half passes through, ``hidden`` to ``hidden``.
        names: state-dict names of (first half, its blocks, second half, merge).
    """

    def __init__(
        self,
        cin: int,
        cout: int,
        *,
        hidden: int,
        blocks: list[nn.Module],
        conv: Conv = ConvNormAct,
        names: tuple[str, str, str, str] = ("conv1", "m", "conv2", "conv3"),
    ) -> None:
        super().__init__()
        self.names = names
        parts = conv(cin, hidden, 1, 1), nn.Sequential(*blocks), conv(cin, hidden, 1, 1), conv(2 * hidden, cout, 1, 1)
        for name, part in zip(names, parts, strict=True):
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H, W]."""
        first, blocks, second, merge = (getattr(self, name) for name in self.names)
        return merge(torch.cat((blocks(first(x)), second(x)), 1))


class SPP(nn.Module):
    """Spatial pyramid pooling (He et al., 2015) with windows of 5, 9 and 13 cells on one map.

    Args:
        names: state-dict names of the two convolutions.
    """

    def __init__(
        self, cin: int, cout: int, *, conv: Conv = ConvNormAct, names: tuple[str, str] = ("conv1", "conv2")
    ) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], conv(cin, cin // 2, 1, 1))
        self.add_module(names[1], conv(cin // 2 * 4, cout, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H, W]."""
        squeeze, merge = (getattr(self, name) for name in self.names)
        y = squeeze(x)
        # A maximum of maxima: two windows of 5 span 9 and three span 13, at a seventh of the comparisons.
        pool5 = F.max_pool2d(y, 5, 1, 2)
        pool9 = F.max_pool2d(pool5, 5, 1, 2)
        pool13 = F.max_pool2d(pool9, 5, 1, 2)
        return merge(torch.cat((y, pool5, pool9, pool13), 1))


def fuse_norms(module: nn.Module) -> None:
    """Fuse every ``Fusible`` block inside ``module``, in place."""
    for part in list(module.modules()):
        if isinstance(part, Fusible):
            part.fuse()


def offset_norms(network: nn.Module, bias: float) -> None:
    """Start every BatchNorm of a new network with ``bias``, in place; published weights overwrite it.

    Dozens of BatchNorm and SiLU layers with random weights are chaotic when centred on zero, where SiLU bends most:
    each enlarges small differences, until rounding to bfloat16 decides the gradient (cf. "shattered gradients",
    Balduzzi et al., 2017). A little to the right SiLU is almost straight.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias, bias)


def prior_bias(probability: float) -> float:
    """The bias that makes a sigmoid start at ``probability`` (Focal Loss, section 3.3)."""
    return math.log(probability / (1.0 - probability))
