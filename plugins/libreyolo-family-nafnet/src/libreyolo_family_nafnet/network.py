"""NAFNet (Chen et al., "Simple Baselines for Image Restoration", 2022): a U-Net of blocks without activation functions
(section 4, figure 2c and figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_family_nafnet.pooling import Pool, spread


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of every pixel; the kernel keeps mean and variance in float32."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def gate(x: Tensor) -> Tensor:
    """SimpleGate, the product of both halves of the channels: [N, 2C, H, W] to [N, C, H, W]."""
    first, second = x.chunk(2, 1)
    return first * second


class Block(nn.Module):
    """Depthwise convolution with channel attention, then a pointwise part, each gated and scaled onto the residual.

    Args:
        window: side of the attention's local window in cells, for inference.
        local: whether inference uses it.
    """

    def __init__(self, channels: int, window: int, *, local: bool = True) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.gamma = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.conv1 = nn.Conv2d(channels, 2 * channels, 1)
        self.conv2 = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.conv3 = nn.Conv2d(channels, channels, 1)
        self.sca = nn.Sequential(Pool(window, local=local), nn.Conv2d(channels, channels, 1))
        self.conv4 = nn.Conv2d(channels, 2 * channels, 1)
        self.conv5 = nn.Conv2d(channels, channels, 1)
        self.norm1 = ChannelNorm(channels)
        self.norm2 = ChannelNorm(channels)
        self.folded = False

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the same."""
        y = gate(self.conv2(self.conv1(self.norm1(x))))
        # the 1x1 convolution works on the few distinct means, before they are repeated at the borders
        y = y * spread(self.sca(y), y.shape[-2:])
        x = self._add(x, self.conv3(y), self.beta)
        return self._add(x, self.conv5(gate(self.conv4(self.norm2(x)))), self.gamma)

    def _add(self, x: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
        return x + branch if self.folded else torch.addcmul(x, branch, scale)

    def fold(self) -> None:
        """Multiply both scales into the convolutions before them, for inference."""
        for conv, scale in ((self.conv3, self.beta), (self.conv5, self.gamma)) if not self.folded else ():
            conv.weight.data.mul_(scale.data.reshape(-1, 1, 1, 1))
            conv.get_parameter("bias").data.mul_(scale.data.reshape(-1))
        self.folded = True


class NAFNet(Network):
    """NAFNet.

    Args:
        nc: always 1; the output is one image.
        width: channels at full resolution, doubled at every level.
        encoder, middle, decoder: number of blocks per level, finest encoder level first, coarsest decoder level first.
        window: side in pixels of the local window of inference (TLC), 1.5 times the side of the training crops.
        local: whether inference averages over that window; training always averages over the whole crop.
    """

    open_sides = False  # photos beyond the window are averaged in another way than those within it

    def __init__(
        self,
        nc: int = 1,
        *,
        width: int,
        encoder: Sequence[int] = (1, 1, 1, 28),
        middle: int = 1,
        decoder: Sequence[int] = (1, 1, 1, 1),
        window: int = 384,
        local: bool = True,
    ) -> None:
        super().__init__()
        levels = len(encoder)
        self.strides = (2**levels,)

        def blocks(count: int, level: int) -> nn.Sequential:
            size = max(1, window >> level)
            return nn.Sequential(*(Block(width << level, size, local=local) for _ in range(count)))

        self.intro = nn.Conv2d(3, width, 3, padding=1)
        self.ending = nn.Conv2d(width, 3, 3, padding=1)
        self.encoders = nn.ModuleList(blocks(n, i) for i, n in enumerate(encoder))
        self.decoders = nn.ModuleList(blocks(n, levels - 1 - i) for i, n in enumerate(decoder))
        self.middle_blks = blocks(middle, levels)
        self.ups = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width << i, width << i + 1, 1, bias=False), nn.PixelShuffle(2))
            for i in range(levels, 0, -1)
        )
        self.downs = nn.ModuleList(nn.Conv2d(width << i, width << i + 1, 2, 2) for i in range(levels))

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        """Degraded images [N, 3, H, W], RGB in [0, 1], to restored ones of the same shape, not clipped: the whole
        network. Sides that are no multiple of ``strides[0]`` are padded with zeros and cropped again."""
        h, w = images.shape[-2:]
        right, bottom = -w % self.strides[0], -h % self.strides[0]
        padded = F.pad(images, (0, right, 0, bottom)) if right or bottom else images
        x = self.intro(padded)
        skips = []
        for encoder, down in zip(self.encoders, self.downs, strict=True):
            x = encoder(x)
            skips.append(x)
            x = down(x)  # [N, 2C, H/2, W/2]
        x = self.middle_blks(x)
        for up, decoder, skip in zip(self.ups, self.decoders, reversed(skips), strict=True):
            x = decoder(up(x) + skip)
        # The bias joins the photo so that torch sums its gradient pairwise: the convolution of the CPU adds up 65,536
        # values of both signs one by one and loses four digits.
        photo = padded + self.ending.get_parameter("bias").reshape(-1, 1, 1)
        restored = F.conv2d(x, self.ending.weight, padding=1) + photo
        return restored[..., :h, :w] if right or bottom else restored

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        """The restored images, float32 [N, 3, H, W], not clipped."""
        return Predictions(image=outputs.float())

    def configure(self, *, local: bool | None = None, **unknown: Any) -> None:
        """``local``: whether inference averages over the local window (the default) or over the whole image."""
        super().configure(**unknown)
        if local is not None:
            for module in self.modules():
                if isinstance(module, Pool):
                    module.local = bool(local)

    def deploy(self) -> NAFNet:
        """Multiply the residual scales into the convolutions before them, in place."""
        self.eval()
        for module in self.modules():
            if isinstance(module, Block):
                module.fold()
        return self
