"""HGNetV2 (PaddleDetection), backbone of the larger RT-DETR sizes: long chains whose outputs are all concatenated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_detr.layers import ConvNorm, FrozenBatchNorm2d, NormMaker, init_convolutions

# stem (middle, out); then per stage: in, middle, out, blocks, layers per block
SIZES = {
    "l": (
        (32, 48),
        ((48, 48, 128, 1, 6), (128, 96, 512, 1, 6), (512, 192, 1024, 3, 6), (1024, 384, 2048, 1, 6)),
    ),
    "x": (
        (32, 64),
        ((64, 64, 128, 1, 6), (128, 128, 512, 2, 6), (512, 256, 1024, 5, 6), (1024, 512, 2048, 2, 6)),
    ),
}


class HGNetV2(nn.Module):
    """Three maps of strides 8, 16 and 32 from an image.

    Args:
        size: ``l`` or ``x``.
        freeze_norm: every BatchNorm is a fixed affine map.

    Attributes:
        channels: of the three maps, finest first.
    """

    def __init__(self, size: str, *, freeze_norm: bool = False) -> None:
        super().__init__()
        norm: NormMaker = FrozenBatchNorm2d if freeze_norm else nn.BatchNorm2d
        (middle, out), stages = SIZES[size]
        self.stem = Stem(middle, out, norm)
        self.stages = nn.ModuleList()
        for index, (c_in, width, c_out, blocks, layers) in enumerate(stages):
            light = index >= 2
            stage = Stage(c_in, width, c_out, blocks, layers, downsample=index > 0, light=light, norm=norm)
            self.stages.append(stage)
        self.channels = tuple(stage[2] for stage in stages[1:])
        init_convolutions(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """``images`` float [N, 3, H, W]; sides a multiple of 32 pixels."""
        x = self.stem(images)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[1:]


class ConvBN(ConvNorm):
    """Convolution, BatchNorm and, where ``act``, ReLU."""

    norm_key = "bn"

    def __init__(self, *args, act: bool = True, **kwargs) -> None:
        super().__init__(*args, act=nn.ReLU(inplace=True) if act else None, **kwargs)


class PaddedConvBN(ConvBN):
    """A 2x2 convolution after one zero column on the right and one zero row at the bottom."""

    def __init__(self, c_in: int, c_out: int, norm: NormMaker) -> None:
        super().__init__(c_in, c_out, 2, norm=norm)
        self.conv = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), self.conv)


class Stem(nn.Module):
    """Stride 4, with a pooled branch beside two small convolutions."""

    def __init__(self, middle: int, out: int, norm: NormMaker) -> None:
        super().__init__()
        self.stem1 = ConvBN(3, middle, 3, 2, norm=norm)
        self.stem2a = PaddedConvBN(middle, middle // 2, norm)
        self.stem2b = PaddedConvBN(middle // 2, middle, norm)
        self.stem3 = ConvBN(2 * middle, middle, 3, 2, norm=norm)
        self.stem4 = ConvBN(middle, out, 1, norm=norm)

    def forward(self, images: Tensor) -> Tensor:
        """``images`` float [N, 3, H, W] to [N, out, H/4, W/4]."""
        x = self.stem1(images)
        pooled = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 2, 1)
        x = torch.cat((pooled, self.stem2b(self.stem2a(x))), 1)
        return self.stem4(self.stem3(x))


class Stage(nn.Module):
    """An optional depthwise halving, then blocks."""

    def __init__(
        self,
        c_in: int,
        width: int,
        c_out: int,
        blocks: int,
        layers: int,
        *,
        downsample: bool,
        light: bool,
        norm: NormMaker,
    ) -> None:
        super().__init__()
        self.downsample = ConvBN(c_in, c_in, 3, 2, groups=c_in, act=False, norm=norm) if downsample else nn.Identity()
        self.blocks = nn.Sequential(
            *(
                Block(c_in if index == 0 else c_out, width, c_out, layers, light=light, residual=index > 0, norm=norm)
                for index in range(blocks)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.blocks(self.downsample(x))


class Block(nn.Module):
    """A chain of units whose input and outputs are all concatenated, squeezed and excited."""

    def __init__(
        self, c_in: int, width: int, c_out: int, layers: int, *, light: bool, residual: bool, norm: NormMaker
    ) -> None:
        super().__init__()
        self.residual = residual
        self.layers = nn.ModuleList()
        for index in range(layers):
            source = c_in if index == 0 else width
            self.layers.append(LightUnit(source, width, norm) if light else ConvBN(source, width, 3, norm=norm))
        self.aggregation_squeeze_conv = ConvBN(c_in + layers * width, c_out // 2, 1, norm=norm)
        self.aggregation_excitation_conv = ConvBN(c_out // 2, c_out, 1, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        chain = [x]
        for layer in self.layers:
            chain.append(layer(chain[-1]))
        out = self.aggregation_excitation_conv(self.aggregation_squeeze_conv(torch.cat(chain, 1)))
        return out + x if self.residual else out


class LightUnit(nn.Module):
    """1x1 convolution without activation, then a depthwise 5x5."""

    def __init__(self, c_in: int, c_out: int, norm: NormMaker) -> None:
        super().__init__()
        self.conv1 = ConvBN(c_in, c_out, 1, act=False, norm=norm)
        self.conv2 = ConvBN(c_out, c_out, 5, groups=c_out, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.conv2(self.conv1(x))
