"""D-FINE (Peng et al., 2024, figure 2): HGNetV2, hybrid encoder, fine-grained distribution refinement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import ElanEncoder, FDRDecoder, HGNetV2
from libreyolo_kit_detr.boxes import absolute_xyxy
from libreyolo_kit_detr.layers import fuse_all


class DFINE(Network):
    """The network; the captured region ends where the decoder begins to look at targets.

    Args:
        nc: number of classes.
        backbone: ``b0``, ``b2``, ``b4`` or ``b5`` of HGNetV2. ``lab``: with learnable affines after its activations.
        freeze_norm: the backbone's norms are fixed affine maps.
        hidden, encoder_ffn: channels of the encoder's maps and width of its feed-forward network.
        elan, depth: width of the chains in its GELAN blocks, and re-parameterised blocks in each of their stages.
        dim, ffn, layers: channels, feed-forward width and number of the decoder's layers.
        points: deformable points in each map, finest map first; two maps have strides 16 and 32, three also 8.
        reg_scale: offsets per width of an initial box.
        queries: object queries. ``denoising``: about how many denoising queries to train with, 0 for none.
    """

    def __init__(
        self,
        nc: int = 80,
        *,
        backbone: str = "b0",
        lab: bool = False,
        freeze_norm: bool = False,
        hidden: int = 256,
        encoder_ffn: int = 1024,
        elan: int = 128,
        depth: int = 3,
        dim: int = 256,
        ffn: int = 1024,
        layers: int = 6,
        points: Sequence[int] = (3, 6, 3),
        reg_scale: float = 4.0,
        queries: int = 300,
        denoising: int = 100,
    ) -> None:
        super().__init__()
        self.strides = (8, 16, 32)[-len(points) :]
        self.backbone = HGNetV2(backbone, levels=len(points), freeze_norm=freeze_norm, lab=lab)
        self.encoder = ElanEncoder(self.backbone.channels, hidden=hidden, ffn=encoder_ffn, width=elan, depth=depth)
        self.decoder = FDRDecoder(
            nc,
            hidden,
            dim=dim,
            ffn=ffn,
            layers=layers,
            points=points,
            reg_scale=reg_scale,
            queries=queries,
            denoising=denoising,
        )

    def region(self, images: Tensor, draw: Tensor | None = None) -> list[Tensor]:
        """Fused maps of ``strides`` from images float [N, 3, H, W], sides a multiple of 32 pixels."""
        return self.encoder(self.backbone(images))

    def finish(
        self, features: list[Tensor], targets: BoxTargets | None = None, draw: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Decode the maps; see ``FDRDecoder.forward`` for what comes out."""
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

    def deploy(self) -> DFINE:
        """Fold norms into convolutions and merge re-parameterised branches, in place."""
        fuse_all(self)
        return self
