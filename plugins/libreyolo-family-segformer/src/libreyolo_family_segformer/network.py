"""SegFormer: Xie et al., "SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers", 2021."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.draw import bits, site
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_family_segformer.encoder import Encoder
from libreyolo_family_segformer.head import DecodeHead

INIT_STD = 0.02
SITE = site("segformer")


class SegFormer(Network):
    """A hierarchical transformer encoder without positional encoding, and a decoder of linear layers only.

    Args:
        nc: number of classes.
        depths: blocks of each of the four stages.
        widths: channels of each stage.
        decoder: channels of the decode head.
    """

    strides = (4,)

    def __init__(
        self,
        nc: int = 150,
        depths: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (32, 64, 160, 256),
        decoder: int = 256,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(depths, widths)
        self.decode_head = DecodeHead(widths, decoder, nc)
        self.apply(initialise)
        # its maps are channels-last, and kernels stored alike need no conversion at every use
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        """Images [N, 3, H, W], normalised, to class logits: [N, C, H/4, W/4] while training (the loss resizes them to
        the annotation), [N, C, H, W] in evaluation. Without ``draw`` neither branches nor features are dropped."""
        for_branches, for_features = self.words(images, draw)
        logits = self.decode_head(self.encoder(images, for_branches), for_features)
        if self.training:
            return logits
        return F.interpolate(logits, size=images.shape[-2:], mode="bilinear", align_corners=False)

    def words(self, images: Tensor, draw: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """All random words of a training forward, for stochastic depth and for dropout in the head; else ``None``."""
        if not self.training or draw is None:
            return None, None
        branches, channels = len(self.encoder.keep), self.decode_head.batch_norm.num_features
        cells = -(-images.shape[-2] // 4) * -(-images.shape[-1] // 4)
        return bits(draw, SITE, branches + channels + cells).split((branches, channels + cells), 1)  # type: ignore[return-value]

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        """Logits, float32 [N, C, H, W], before softmax."""
        return Predictions(logits=outputs.float())

    def reset_classes(self, names: list[str] | None = None) -> None:
        """A fresh classifier, initialised as at construction."""
        initialise(self.decode_head.classifier)

    def deploy(self) -> SegFormer:
        """The linear layers of the decode head merged into one per stage, its BatchNorm folded in."""
        self.eval()
        if isinstance(self.decode_head, DecodeHead):
            self.decode_head = self.decode_head.deployed()  # type: ignore[assignment]
        return self


def initialise(module: nn.Module) -> None:
    """Weights of linear and convolution layers from N(0, 0.02), their biases 0; norms keep 1 and 0."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.normal_(module.weight, std=INIT_STD)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
