"""The FOMO network: MobileNetV2 (Sandler et al., 2018, table 2) cut at an eighth of the input, and a 1x1 convolution.

The padding is that of TensorFlow's ``SAME``, which the original backbone was trained with: a 3x3 convolution of stride
2 on an even side pads the right and the bottom only.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import Network, fuse_conv_bn
from libreyolo_core.predictions import Predictions

EXPANSION = 6


def width(channels: float) -> int:
    """``channels`` rounded to a multiple of 8, at least 8, and never below 90% of what was asked for."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class SameConv(nn.Module):
    """A 3x3 convolution without bias, padded as TensorFlow's ``SAME``."""

    def __init__(self, cin: int, cout: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        # at stride 1 SAME is one pixel on all sides, which the convolution does without a copy
        self.conv = nn.Conv2d(cin, cout, 3, stride, 1 if stride == 1 else 0, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, ceil(H / stride), ceil(W / stride)]."""
        if self.conv.stride[0] == 2:
            h, w = x.shape[-2:]
            x = F.pad(x, (w % 2, 1, h % 2, 1))  # an even side needs one more pixel, an odd one two
        return self.conv(x)


def norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with the epsilon of the original backbone."""
    return nn.BatchNorm2d(channels, eps=1e-3)


def activated(conv: nn.Module, channels: int) -> nn.Sequential:
    """``conv``, BatchNorm, ReLU6."""
    return nn.Sequential(conv, norm(channels), nn.ReLU6())


def pointwise(cin: int, cout: int) -> nn.Conv2d:
    """A 1x1 convolution without bias."""
    return nn.Conv2d(cin, cout, 1, bias=False)


class Expand(nn.Module):
    """The widening 1x1 convolution, one level deeper in the names of weight files than the narrowing one."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = pointwise(cin, cout)

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H, W]."""
        return self.conv(x)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without activation (section 3.3); adds its input where shapes agree.

    Args:
        expansion: factor of the widening; 1 leaves it out.
        residual: whether the input is added.
    """

    def __init__(
        self, cin: int, cout: int, *, stride: int = 1, expansion: int = EXPANSION, residual: bool = False
    ) -> None:
        super().__init__()
        hidden = cin * expansion
        layers: list[nn.Module] = [activated(Expand(cin, hidden), hidden)] if expansion > 1 else []
        layers += [
            activated(SameConv(hidden, hidden, stride=stride, groups=hidden), hidden),
            nn.Sequential(pointwise(hidden, cout), norm(cout)),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        """[N, cin, H, W] to [N, cout, H / stride, W / stride]."""
        return x + self.conv(x) if self.residual else self.conv(x)


class Backbone(nn.Module):
    """MobileNetV2 up to the widening of its seventh block, where the side is an eighth of the input.

    Args:
        alpha: factor on the channels.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        c0, c1, c2, c3 = (width(c * alpha) for c in (32, 16, 24, 32))
        self.conv1 = activated(SameConv(3, c0, stride=2), c0)
        self.expanded_conv = InvertedResidual(c0, c1, expansion=1)
        self.block_1 = InvertedResidual(c1, c2, stride=2)
        self.block_2 = InvertedResidual(c2, c2, residual=True)
        self.block_3 = InvertedResidual(c2, c3, stride=2)
        self.block_4 = InvertedResidual(c3, c3, residual=True)
        self.block_5 = InvertedResidual(c3, c3, residual=True)
        self.channels = c3 * EXPANSION
        self.block_6_expand = activated(Expand(c3, self.channels), self.channels)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] to [N, channels, H / 8, W / 8]."""
        x = self.block_1(self.expanded_conv(self.conv1(images)))  # [N, c2, H/4, W/4]
        x = self.block_3(self.block_2(x))  # [N, c3, H/8, W/8]
        return self.block_6_expand(self.block_5(self.block_4(x)))


class FOMO(Network):
    """A class, or background, for every cell of 8 by 8 pixels.

    Args:
        nc: number of classes.
        alpha: factor on the backbone's channels.
    """

    strides = (8,)

    def __init__(self, nc: int = 1, *, alpha: float) -> None:
        super().__init__()
        self.backbone = Backbone(alpha)
        self.head = nn.Conv2d(self.backbone.channels, nc + 1, 1)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        """Images [N, 3, H, W] in [-1, 1] to logits [N, 1 + C, H / 8, W / 8]: the whole network; channel 0 is
        background, channel c + 1 is class c."""
        return self.head(self.backbone(images))

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        """Softmax over background and classes, float32 [N, 1 + C, H / 8, W / 8]."""
        return Predictions(scores=outputs.float().softmax(1))

    def reset_classes(self, names: list[str] | None = None) -> None:
        """A fresh head, background included, initialised as ``nn.Conv2d`` is."""
        self.head.reset_parameters()

    def deploy(self) -> FOMO:
        """Every BatchNorm folded into the convolution before it, in place."""
        self.eval()
        for module in self.modules():
            if isinstance(module, nn.Sequential):
                _fold(module)
        return self


def _fold(layers: nn.Sequential) -> None:
    for i in range(1, len(layers)):
        bn, before = layers[i], layers[i - 1]
        if not isinstance(bn, nn.BatchNorm2d):
            continue
        if isinstance(before, nn.Conv2d):
            layers[i - 1] = fuse_conv_bn(before, bn)
        else:
            before.conv = fuse_conv_bn(before.get_submodule("conv"), bn)  # type: ignore[arg-type]
        layers[i] = nn.Identity()
