"""RT-DETR (Zhao et al., 2024, figure 4): backbone, hybrid encoder, query selection, decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets
from libreyolo_family_rtdetr.decoder import RTDETRDecoder
from libreyolo_kit_detr.boxes import absolute_xyxy
from libreyolo_kit_detr.encoder import HybridEncoder
from libreyolo_kit_detr.hgnetv2 import HGNetV2
from libreyolo_kit_detr.layers import fuse_all
from libreyolo_kit_detr.presnet import PResNet


class RTDETR(Network):
    """The network; the captured region ends where the decoder begins to look at targets.

    Args:
        nc: number of classes.
        backbone: ``r18``, ``r34``, ``r50``, ``r101`` (ResNet-d) or ``l``, ``x`` (HGNetV2).
        hidden, ffn: channels of the encoder's maps and width of its feed-forward network.
        expansion: width of the encoder's CSP blocks as a share of ``hidden``.
        layers: decoder layers. ``eval_layer``: index of the one whose answer counts, the later ones only train.
        freeze_norm: the backbone's norms are fixed affine maps.
        queries: object queries. ``denoising``: about how many denoising queries to train with, 0 for none.
    """

    strides = (8, 16, 32)

    def __init__(
        self,
        nc: int = 80,
        *,
        backbone: str = "r50",
        hidden: int = 256,
        ffn: int = 1024,
        expansion: float = 1.0,
        layers: int = 6,
        eval_layer: int = -1,
        freeze_norm: bool = False,
        queries: int = 300,
        denoising: int = 100,
    ) -> None:
        super().__init__()
        self.backbone = make_backbone(backbone, freeze_norm=freeze_norm)
        self.encoder = HybridEncoder(self.backbone.channels, hidden=hidden, ffn=ffn, expansion=expansion)
        self.decoder = RTDETRDecoder(
            nc, hidden, layers=layers, eval_layer=eval_layer, queries=queries, denoising=denoising
        )

    def region(self, images: Tensor, draw: Tensor | None = None) -> list[Tensor]:
        """Three fused maps of strides 8, 16 and 32 from images float [N, 3, H, W], sides a multiple of 32 pixels."""
        return self.encoder(self.backbone(images))

    def finish(
        self, features: list[Tensor], targets: BoxTargets | None = None, draw: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Decode the maps; see ``RTDETRDecoder.forward`` for what comes out."""
        height, width = features[0].shape[-2:]
        return self.decoder(features, (height * self.strides[0], width * self.strides[0]), targets, draw)

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

    def deploy(self) -> RTDETR:
        """Fold norms into convolutions and merge re-parameterised branches, in place."""
        fuse_all(self)
        return self


def make_backbone(name: str, *, freeze_norm: bool) -> PResNet | HGNetV2:
    """``r18`` ... ``r101`` or ``l``, ``x``; see ``RTDETR``."""
    if name.startswith("r"):
        return PResNet(int(name[1:]), freeze_norm=freeze_norm)
    return HGNetV2({"l": "b4", "x": "b5"}[name], freeze_norm=freeze_norm)
