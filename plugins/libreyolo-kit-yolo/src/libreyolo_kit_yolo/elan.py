"""ELAN blocks with re-parameterised convolutions (GELAN: YOLOv9, Wang et al., 2024, section 4.2 and figure 4).

Families choose widths and depths. Every block takes its convolutions as a factory, as in ``blocks``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_yolo.blocks import CSP, Conv, ConvNormAct, Fusible


class RepConv(Fusible):
    """A spatial and a pointwise convolution, each with its norm, added before the activation; one convolution once
    fused (RepVGG, Ding et al., 2021, section 3, without the identity branch). Keys: ``conv1``, ``conv2``.

    Args:
        cin, cout: channels.
        kernel, stride: in cells, of the spatial convolution; the other shares the stride.
        conv: block with an ``act`` argument.
    """

    def __init__(
        self,
        cin: int,
        cout: int,
        kernel: int = 3,
        stride: int = 1,
        *,
        conv: Conv = ConvNormAct,
        act: Callable[[], nn.Module] = nn.SiLU,
    ) -> None:
        super().__init__()
        self.conv1: nn.Module = conv(cin, cout, kernel, stride, act=None)
        self.conv2: nn.Module | None = conv(cin, cout, 1, stride, act=None)
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H / stride, W / stride]."""
        y = self.conv1(x)
        return self.act(y if self.conv2 is None else y + self.conv2(x))

    @torch.no_grad()
    def fuse(self) -> None:
        """Fold norms and the pointwise branch into the spatial convolution, in place; for inference only."""
        if not isinstance(self.conv1, ConvNormAct) or not isinstance(self.conv2, ConvNormAct):
            return
        self.conv1.fuse()
        self.conv2.fuse()
        spatial, pointwise = self.conv1.conv, self.conv2.conv
        assert spatial.bias is not None and pointwise.bias is not None
        spatial.weight += F.pad(pointwise.weight, (spatial.kernel_size[0] // 2,) * 4)
        spatial.bias += pointwise.bias
        self.conv1, self.conv2 = spatial, None


class RepBottleneck(nn.Module):
    """A ``RepConv`` and a 3x3 ``conv`` of equal width, residual. Keys: ``cv1``, ``cv2``."""

    def __init__(self, channels: int, *, conv: Conv = ConvNormAct) -> None:
        super().__init__()
        self.cv1 = RepConv(channels, channels, conv=conv)
        self.cv2 = conv(channels, channels, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same shape."""
        return x + self.cv2(self.cv1(x))


def rep_csp(cin: int, cout: int, repeats: int, *, conv: Conv = ConvNormAct) -> CSP:
    """A CSP layer of ``repeats`` re-parameterised bottlenecks over half of its output channels."""
    blocks: list[nn.Module] = [RepBottleneck(cout // 2, conv=conv) for _ in range(repeats)]
    return CSP(cin, cout, hidden=cout // 2, blocks=blocks, conv=conv, names=("cv1", "m", "cv2", "cv3"))


def rep_csp_conv(channels: int, repeats: int, *, conv: Conv = ConvNormAct) -> nn.Sequential:
    """The spatial block of a GELAN layer: ``rep_csp``, then a 3x3 ``conv``."""
    return nn.Sequential(rep_csp(channels, channels, repeats, conv=conv), conv(channels, channels, 3, 1))


class ELAN(nn.Module):
    """A pointwise ``conv`` whose second half passes through two spatial blocks in a row; all four parts are merged
    (ELAN, Wang et al., 2022, section 3.1; with ``rep_csp_conv`` the GELAN layer). Keys: ``cv1`` to ``cv4``.

    Args:
        cin, cout: channels outside.
        part: channels of the first convolution, even.
        block: makes a spatial block, ``part // 2`` channels to as many.
    """

    def __init__(
        self, cin: int, cout: int, part: int, *, block: Callable[[int], nn.Module], conv: Conv = ConvNormAct
    ) -> None:
        super().__init__()
        self.cv1 = conv(cin, part, 1, 1)
        self.cv2 = block(part // 2)
        self.cv3 = block(part // 2)
        self.cv4 = conv(2 * part, cout, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H, W]."""
        aside, y = self.cv1(x).chunk(2, 1)
        first = self.cv2(y)
        return self.cv4(torch.cat((aside, y, first, self.cv3(first)), 1))


class AConv(nn.Module):
    """Halves a map: the mean of 2x2 windows at stride 1 without padding, then a strided 3x3 ``conv``. Key: ``cv``."""

    def __init__(self, cin: int, cout: int, *, conv: Conv = ConvNormAct) -> None:
        super().__init__()
        self.cv = conv(cin, cout, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W], H and W even, to [N, cout, H / 2, W / 2]."""
        return self.cv(F.avg_pool2d(x, 2, 1))


class ADown(nn.Module):
    """Halves a map: the mean of 2x2 windows at stride 1 without padding, then one half of the channels through a
    strided 3x3 ``conv``, the other through a strided maximum and a pointwise ``conv``. Keys: ``cv1``, ``cv2``."""

    def __init__(self, cin: int, cout: int, *, conv: Conv = ConvNormAct) -> None:
        super().__init__()
        self.cv1 = conv(cin // 2, cout // 2, 3, 2)
        self.cv2 = conv(cin // 2, cout // 2, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W], H and W even, to [N, cout, H / 2, W / 2]."""
        first, second = F.avg_pool2d(x, 2, 1).chunk(2, 1)
        return torch.cat((self.cv1(first), self.cv2(F.max_pool2d(second, 3, 2, 1))), 1)
