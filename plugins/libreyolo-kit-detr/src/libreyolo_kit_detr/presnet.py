"""ResNet-d (He et al., 2019, "Bag of Tricks", figure 2) as the DETR line uses it: deep stem, pooled shortcuts."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_detr.layers import ConvNorm, FrozenBatchNorm2d, NormMaker, init_convolutions

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
WIDTHS = (64, 128, 256, 512)


class PResNet(nn.Module):
    """Three maps of strides 8, 16 and 32 from an image.

    Args:
        depth: 18, 34, 50 or 101.
        freeze_norm: every BatchNorm is a fixed affine map.

    Attributes:
        channels: of the three maps, finest first.
    """

    def __init__(self, depth: int, *, freeze_norm: bool = False) -> None:
        super().__init__()
        norm: NormMaker = FrozenBatchNorm2d if freeze_norm else nn.BatchNorm2d
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock if depth < 50 else Bottleneck
        self.conv1 = nn.Sequential(
            OrderedDict(
                conv1_1=ConvNorm(3, 32, 3, 2, act=nn.ReLU(inplace=True), norm=norm),
                conv1_2=ConvNorm(32, 32, 3, act=nn.ReLU(inplace=True), norm=norm),
                conv1_3=ConvNorm(32, 64, 3, act=nn.ReLU(inplace=True), norm=norm),
            )
        )
        self.res_layers = nn.ModuleList()
        c_in = 64
        for index, (width, count) in enumerate(zip(WIDTHS, BLOCKS[depth], strict=True)):
            stage = Stage(block, c_in, width, count, stride=1 if index == 0 else 2, norm=norm)
            self.res_layers.append(stage)
            c_in = width * block.expansion
        self.channels = tuple(width * block.expansion for width in WIDTHS[1:])
        init_convolutions(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """``images`` float [N, 3, H, W]; sides a multiple of 32 pixels."""
        x = F.max_pool2d(self.conv1(images), 3, 2, padding=1)
        maps = []
        for stage in self.res_layers:
            x = stage(x)
            maps.append(x)
        return maps[1:]


class Stage(nn.Module):
    """``count`` residual blocks, the first of which changes stride and width."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        c_in: int,
        width: int,
        count: int,
        *,
        stride: int,
        norm: NormMaker,
    ) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        for index in range(count):
            first = index == 0
            self.blocks.append(block(c_in, width, stride if first else 1, shortcut=first, norm=norm))
            c_in = width * block.expansion

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.blocks(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int, *, shortcut: bool, norm: NormMaker) -> None:
        super().__init__()
        self.branch2a = ConvNorm(c_in, width, 3, stride, act=nn.ReLU(inplace=True), norm=norm)
        self.branch2b = ConvNorm(width, width, 3, norm=norm)
        self.short = _shortcut(c_in, width, stride, norm) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return F.relu(self.branch2b(self.branch2a(x)) + self.short(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 to four times the width, and a shortcut."""

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int, *, shortcut: bool, norm: NormMaker) -> None:
        super().__init__()
        self.branch2a = ConvNorm(c_in, width, 1, act=nn.ReLU(inplace=True), norm=norm)
        self.branch2b = ConvNorm(width, width, 3, stride, act=nn.ReLU(inplace=True), norm=norm)
        self.branch2c = ConvNorm(width, width * 4, 1, norm=norm)
        self.short = _shortcut(c_in, width * 4, stride, norm) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return F.relu(self.branch2c(self.branch2b(self.branch2a(x))) + self.short(x), inplace=True)


def _shortcut(c_in: int, c_out: int, stride: int, norm: NormMaker) -> nn.Module:
    project = ConvNorm(c_in, c_out, 1, norm=norm)
    if stride == 1:
        return project
    # ceil_mode keeps the shortcut as large as the strided branch when a side is odd.
    return nn.Sequential(OrderedDict(pool=nn.AvgPool2d(2, 2, ceil_mode=True), conv=project))
