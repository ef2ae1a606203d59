"""The hybrid encoder of D-FINE (Peng et al., 2024, section 4.3): as RT-DETR's, with GELAN blocks to fuse maps and
separable convolutions to halve them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from libreyolo_kit_detr.encoder import AIFI, CSPBlock, Pyramid
from libreyolo_kit_detr.layers import ConvNorm, keep_layout


class ElanEncoder(Pyramid):
    """AIFI on the coarsest map, then GELAN blocks top-down and bottom-up.

    Args:
        channels: of the incoming maps, finest first.
        hidden: channels of every outgoing map.
        ffn: width of the feed-forward network inside AIFI.
        width: channels of the chain inside a GELAN block.
        depth: re-parameterised blocks in each of its two CSP blocks.
        heads: attention heads.
    """

    def __init__(
        self, channels: Sequence[int], *, hidden: int = 256, ffn: int = 1024, width: int, depth: int, heads: int = 8
    ) -> None:
        super().__init__(
            channels,
            aifi=lambda: AIFI(hidden, ffn, heads),
            project=lambda c_in: ConvNorm(c_in, hidden),
            lateral=lambda: ConvNorm(hidden, hidden),
            down=lambda: nn.Sequential(SeparableDown(hidden)),
            fuse=lambda: ElanBlock(2 * hidden, hidden, width, depth),
        )


class SeparableDown(nn.Module):
    """1x1 convolution, then a depthwise 3x3 of stride 2, both without activation (Wang et al., 2024, YOLOv10)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = ConvNorm(channels, channels)
        self.cv2 = ConvNorm(channels, channels, 3, 2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        return keep_layout(self.cv2(self.cv1(x)))


class ElanBlock(nn.Module):
    """Split, two chained CSP stages, concatenate (GELAN; Wang et al., 2024, YOLOv9, section 4.2)."""

    def __init__(self, c_in: int, c_out: int, width: int, depth: int) -> None:
        super().__init__()
        self.half = c_in // 2
        self.cv1 = ConvNorm(c_in, c_in, act=nn.SiLU(inplace=True))
        self.cv2 = stage(self.half, width, depth)
        self.cv3 = stage(width, width, depth)
        self.cv4 = ConvNorm(c_in + 2 * width, c_out, act=nn.SiLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` float [N, C, H, W]."""
        x = self.cv1(x)
        first = self.cv2(x[:, self.half :])
        return self.cv4(torch.cat((x, first, self.cv3(first)), 1))


def stage(c_in: int, width: int, depth: int) -> nn.Sequential:
    """A CSP block and a 3x3 convolution."""
    return nn.Sequential(CSPBlock(c_in, width, 1.0, depth), ConvNorm(width, width, 3, act=nn.SiLU(inplace=True)))
