"""HGNetV2 (PaddleClas, PaddleDetection): long chains of convolutions whose outputs are all concatenated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_detr.layers import ConvNorm, FrozenBatchNorm2d, NormMaker, init_convolutions

# stem (middle, out); then per stage: in, middle, out, blocks, layers per block
SIZES = {
    "b0": ((16, 16), ((16, 16, 64, 1, 3), (64, 32, 256, 1, 3), (256, 64, 512, 2, 3), (512, 128, 1024, 1, 3))),
    "b2": ((24, 32), ((32, 32, 96, 1, 4), (96, 64, 384, 1, 4), (384, 128, 768, 3, 4), (768, 256, 1536, 1, 4))),
    "b4": ((32, 48), ((48, 48, 128, 1, 6), (128, 96, 512, 1, 6), (512, 192, 1024, 3, 6), (1024, 384, 2048, 1, 6))),
    "b5": ((32, 64), ((64, 64, 128, 1, 6), (128, 128, 512, 2, 6), (512, 256, 1024, 5, 6), (1024, 512, 2048, 2, 6))),
}


class HGNetV2(nn.Module):
    """Maps of strides 8, 16 and 32 from an image.

    Args:
        size: ``b0``, ``b2``, ``b4`` or ``b5``.
        levels: how many of the three maps are wanted, the coarsest ones.
        freeze_norm: every BatchNorm is a fixed affine map.
        lab: a learnable scalar scale and bias after every activation.

    Attributes:
        channels: of the maps, finest first.
    """

    def __init__(self, size: str, *, levels: int = 3, freeze_norm: bool = False, lab: bool = False) -> None:
        super().__init__()
        norm: NormMaker = FrozenBatchNorm2d if freeze_norm else nn.BatchNorm2d
        (middle, out), stages = SIZES[size]
        self.levels = levels
        self.stem = Stem(middle, out, norm, lab)
        self.stages = nn.ModuleList()
        for index, (c_in, width, c_out, blocks, layers) in enumerate(stages):
            self.stages.append(
                Stage(c_in, width, c_out, blocks, layers, downsample=index > 0, light=index >= 2, norm=norm, lab=lab)
            )
        self.channels = tuple(stage[2] for stage in stages[-levels:])
        init_convolutions(self)

    def forward(self, images: Tensor) -> list[Tensor]:
        """``images`` float [N, 3, H, W]; sides a multiple of 32 pixels."""
        x = self.stem(images)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-self.levels :]


class LearnableAffine(nn.Module):
    """One scale and one bias for a whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float of any shape."""
        return self.scale * x + self.bias


class ConvBN(ConvNorm):
    """Convolution, BatchNorm and, where ``act``, ReLU, which alone may be followed by a learnable affine."""

    norm_key = "bn"

    def __init__(self, *args, act: bool = True, lab: bool = False, **kwargs) -> None:
        super().__init__(*args, act=nn.ReLU(inplace=True) if act else None, **kwargs)
        self.lab: nn.Module = LearnableAffine() if act and lab else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.lab(super().forward(x))


class Stem(nn.Module):
    """Stride 4, with a pooled branch beside two small convolutions."""

    def __init__(self, middle: int, out: int, norm: NormMaker, lab: bool) -> None:
        super().__init__()
        self.stem1 = ConvBN(3, middle, 3, 2, norm=norm, lab=lab)
        self.stem2a = ConvBN(middle, middle // 2, 2, norm=norm, lab=lab)
        self.stem2b = ConvBN(middle // 2, middle, 2, norm=norm, lab=lab)
        self.stem3 = ConvBN(2 * middle, middle, 3, 2, norm=norm, lab=lab)
        self.stem4 = ConvBN(middle, out, 1, norm=norm, lab=lab)

    def forward(self, images: Tensor) -> Tensor:
        """``images`` float [N, 3, H, W] to [N, out, H/4, W/4]."""
        # The 2x2 windows need one zero column on the right and one zero row at the bottom.
        x = F.pad(self.stem1(images), (0, 1, 0, 1))
        fine = self.stem2b(F.pad(self.stem2a(x), (0, 1, 0, 1)))
        return self.stem4(self.stem3(torch.cat((F.max_pool2d(x, 2, 1), fine), 1)))


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
        lab: bool,
    ) -> None:
        super().__init__()
        self.downsample = ConvBN(c_in, c_in, 3, 2, groups=c_in, act=False, norm=norm) if downsample else nn.Identity()
        self.blocks = nn.Sequential(
            *(
                Block(
                    c_in if index == 0 else c_out,
                    width,
                    c_out,
                    layers,
                    light=light,
                    residual=index > 0,
                    norm=norm,
                    lab=lab,
                )
                for index in range(blocks)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.blocks(self.downsample(x))


class Block(nn.Module):
    """A chain of units whose input and outputs are all concatenated, squeezed and excited."""

    def __init__(
        self,
        c_in: int,
        width: int,
        c_out: int,
        layers: int,
        *,
        light: bool,
        residual: bool,
        norm: NormMaker,
        lab: bool,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.layers = nn.ModuleList()
        for index in range(layers):
            source = c_in if index == 0 else width
            unit = LightUnit(source, width, norm, lab) if light else ConvBN(source, width, 3, norm=norm, lab=lab)
            self.layers.append(unit)
        self.aggregation = nn.Sequential(
            ConvBN(c_in + layers * width, c_out // 2, 1, norm=norm, lab=lab),
            ConvBN(c_out // 2, c_out, 1, norm=norm, lab=lab),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        chain = [x]
        for layer in self.layers:
            chain.append(layer(chain[-1]))
        out = self.aggregation(torch.cat(chain, 1))
        return out + x if self.residual else out


class LightUnit(nn.Module):
    """1x1 convolution without activation, then a depthwise 5x5."""

    def __init__(self, c_in: int, c_out: int, norm: NormMaker, lab: bool) -> None:
        super().__init__()
        self.conv1 = ConvBN(c_in, c_out, 1, act=False, norm=norm)
        self.conv2 = ConvBN(c_out, c_out, 5, groups=c_out, norm=norm, lab=lab)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.conv2(self.conv1(x))
