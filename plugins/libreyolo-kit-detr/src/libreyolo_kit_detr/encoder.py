"""The hybrid encoder of RT-DETR (Zhao et al., 2024, figure 4): attention in the coarsest map, convolution between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import fuse_conv_bn
from libreyolo_kit_detr.layers import ConvNorm, keep_layout, memory_format
from libreyolo_kit_detr.transformer import TransformerEncoderLayer, grid_position, to_tokens


class Pyramid(nn.Module):
    """What hybrid encoders share: attention in the coarsest map (AIFI), a top-down and a bottom-up path (CCFF).

    Args:
        channels: of the incoming maps, finest first.
        aifi: makes the module for the coarsest map.
        project: ``project(c_in)`` makes the module that brings a map to the common number of channels.
        lateral, down: make the 1x1 module before a map goes up, and the module that halves a map.
        fuse: makes the module that joins two concatenated maps, twice the
            channels to one.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        aifi: Callable[[], nn.Module],
        project: Callable[[int], nn.Module],
        lateral: Callable[[], nn.Module],
        down: Callable[[], nn.Module],
        fuse: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        steps = range(len(channels) - 1)
        self.input_proj = nn.ModuleList(project(c) for c in channels)
        self.encoder = nn.ModuleList([aifi()])
        self.lateral_convs = nn.ModuleList(lateral() for _ in steps)
        self.fpn_blocks = nn.ModuleList(fuse() for _ in steps)
        self.downsample_convs = nn.ModuleList(down() for _ in steps)
        self.pan_blocks = nn.ModuleList(fuse() for _ in steps)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Fuse maps [N, C, H, W] of halving size, finest first; the outgoing ones have equal channels."""
        *finer, coarsest = [keep_layout(project(x)) for project, x in zip(self.input_proj, maps, strict=True)]
        high = self.encoder[0](coarsest)
        laterals = []
        for lateral, fuse, low in zip(self.lateral_convs, self.fpn_blocks, reversed(finer), strict=True):
            high = lateral(high)
            laterals.append(high)
            high = fuse(torch.cat((F.interpolate(high, scale_factor=2.0, mode="nearest"), low), 1))
        out = [high]
        for down, fuse, lateral_map in zip(self.downsample_convs, self.pan_blocks, reversed(laterals), strict=True):
            out.append(fuse(torch.cat((down(out[-1]), lateral_map), 1)))
        return out


class HybridEncoder(Pyramid):
    """The encoder of RT-DETR.

    Args:
        channels: of the incoming maps, finest first.
        hidden: channels of every outgoing map.
        ffn: width of the feed-forward network inside AIFI.
        expansion: width of a CSP block as a share of ``hidden``.
        heads: attention heads.
        depth: re-parameterised blocks in each CSP block.
    """

    def __init__(
        self,
        channels: Sequence[int],
        *,
        hidden: int = 256,
        ffn: int = 1024,
        expansion: float = 1.0,
        heads: int = 8,
        depth: int = 3,
    ) -> None:
        super().__init__(
            channels,
            aifi=lambda: AIFI(hidden, ffn, heads),
            project=lambda c_in: Projection(c_in, hidden),
            lateral=lambda: ConvNorm(hidden, hidden, 1, act=nn.SiLU(inplace=True)),
            down=lambda: ConvNorm(hidden, hidden, 3, 2, act=nn.SiLU(inplace=True)),
            fuse=lambda: CSPBlock(2 * hidden, hidden, expansion, depth),
        )


class Projection(nn.Sequential):
    """1x1 convolution without bias and BatchNorm, under the keys ``0`` and ``1``."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__(nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out))

    def fuse(self) -> None:
        """Fold the normalisation into the convolution, in place."""
        if isinstance(self[1], nn.BatchNorm2d):
            self[0], self[1] = fuse_conv_bn(self[0], self[1]), nn.Identity()  # type: ignore[arg-type]


class AIFI(nn.Module):
    """One transformer encoder layer over the cells of a map."""

    def __init__(self, dim: int, ffn: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TransformerEncoderLayer(dim, ffn, heads)])

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        height, width = x.shape[-2:]
        pos = grid_position(height, width, x.shape[1], x.device).to(x.dtype)
        tokens = self.layers[0](to_tokens(x), pos)  # [N, HW, C]
        return tokens.transpose(1, 2).unflatten(2, (height, width)).contiguous(memory_format=memory_format(x))


class CSPBlock(nn.Module):
    """Two 1x1 branches, one of them through ``depth`` re-parameterised blocks, summed (Wang et al., 2020)."""

    def __init__(self, c_in: int, c_out: int, expansion: float, depth: int) -> None:
        super().__init__()
        width = int(c_out * expansion)
        self.conv1 = ConvNorm(c_in, width, 1, act=nn.SiLU(inplace=True))
        self.conv2 = ConvNorm(c_in, width, 1, act=nn.SiLU(inplace=True))
        self.bottlenecks = nn.Sequential(*(RepBlock(width) for _ in range(depth)))
        self.conv3 = ConvNorm(width, c_out, 1, act=nn.SiLU(inplace=True)) if width != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.conv3(self.bottlenecks(self.conv1(x)) + self.conv2(x))


class RepBlock(nn.Module):
    """3x3 and 1x1 branch, summed, then SiLU; ``fuse`` makes one 3x3 of them (Ding et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1: nn.Module = ConvNorm(width, width, 3)
        self.conv2: nn.Module | None = ConvNorm(width, width, 1)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return self.act(self.conv1(x) if self.conv2 is None else self.conv1(x) + self.conv2(x))

    @torch.no_grad()
    def fuse(self) -> None:
        """Merge both branches into one biased 3x3 convolution, in place."""
        if self.conv2 is None:
            return
        branches = (self.conv1, self.conv2)
        wide, narrow = (fuse_conv_bn(branch.conv, branch.norm) for branch in branches)  # type: ignore[arg-type]
        wide.weight += F.pad(narrow.weight, (1, 1, 1, 1))
        wide.bias += narrow.bias  # type: ignore[operator]
        self.conv1, self.conv2 = wide, None
