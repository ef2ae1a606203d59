"""RT-DETR (Zhao et al., 2024, figure 4): backbone, hybrid encoder, query selection, decoder."""

from __future__ import annotations

from libreyolo_family_rtdetr.decoder import RTDETRDecoder
from libreyolo_kit_detr import DetectionTransformer, HGNetV2, HybridEncoder, PResNet


class RTDETR(DetectionTransformer):
    """The network.

    Args:
        nc: number of classes.
        backbone: ``r18``, ``r34``, ``r50``, ``r101`` (ResNet-d) or ``l``, ``x`` (HGNetV2).
        hidden, ffn: channels of the encoder's maps and width of its feed-forward network.
        expansion: width of the encoder's CSP blocks as a share of ``hidden``.
        layers: decoder layers. ``eval_layer``: index of the one whose answer counts, the later ones only train.
        freeze_norm: the backbone's norms are fixed affine maps.
        queries: object queries. ``denoising``: about how many denoising queries to train with, 0 for none.
    """

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
        maps = make_backbone(backbone, freeze_norm=freeze_norm)
        super().__init__(
            maps,
            HybridEncoder(maps.channels, hidden=hidden, ffn=ffn, expansion=expansion),
            RTDETRDecoder(nc, hidden, layers=layers, eval_layer=eval_layer, queries=queries, denoising=denoising),
        )


def make_backbone(name: str, *, freeze_norm: bool) -> PResNet | HGNetV2:
    """``r18`` ... ``r101`` or ``l``, ``x``; see ``RTDETR``."""
    if name.startswith("r"):
        return PResNet(int(name[1:]), freeze_norm=freeze_norm)
    return HGNetV2({"l": "b4", "x": "b5"}[name], freeze_norm=freeze_norm)
