"""The network of the DETR line: a backbone, an encoder of its maps, and a decoder of object queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr.boxes import absolute_xyxy
from libreyolo_kit_detr.layers import fuse_all
from libreyolo_kit_detr.query_decoder import QueryDecoder


class DetectionTransformer(Network):
    """Base of a network; the captured region ends where the decoder begins to look at targets.

    Args:
        backbone: images to maps. ``encoder``: maps to maps of ``strides``, finest first.
        decoder: called with maps, input size, targets and random keys.
    """

    def __init__(
        self, backbone: nn.Module, encoder: nn.Module, decoder: QueryDecoder, strides: Sequence[int] = (8, 16, 32)
    ) -> None:
        super().__init__()
        self.strides = tuple(strides)
        self.backbone, self.encoder, self.decoder = backbone, encoder, decoder

    def region(self, images: Tensor, draw: Tensor | None = None) -> list[Tensor]:
        """Fused maps of ``strides`` from images float [N, 3, H, W], sides a multiple of the last stride in pixels."""
        maps: list[Tensor] = self.encoder(self.backbone(images))
        return maps

    def finish(
        self, features: list[Tensor], targets: BoxTargets | None = None, draw: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Decode the maps; the decoder's ``forward`` says what comes out."""
        height, width = features[0].shape[-2:]
        size = (height * self.strides[0], width * self.strides[0])
        outputs: dict[str, Tensor] = self.decoder(features, size, targets, draw)
        return outputs

    def predictions(self, outputs: dict[str, Tensor], image_size: tuple[int, int]) -> Predictions:
        """Boxes and scores of all queries; they may reach beyond the image."""
        return Predictions(
            boxes=absolute_xyxy(outputs["pred_boxes"], image_size), scores=outputs["pred_logits"].float().sigmoid()
        )

    def configure(self, **options: Any) -> None:
        """``denoising``: about how many denoising queries to train with, 0 for none."""
        self.decoder.denoising = options.pop("denoising", self.decoder.denoising)
        super().configure(**options)

    def reset_classes(self, names: list[str] | None = None) -> None:
        """Class biases such that every score starts at 0.01."""
        self.decoder.reset_scores()

    def deploy(self) -> DetectionTransformer:
        """Fold norms into convolutions and merge re-parameterised branches, in place."""
        fuse_all(self)
        return self
