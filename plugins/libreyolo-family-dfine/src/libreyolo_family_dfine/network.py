"""D-FINE (Peng et al., 2024, figure 2): HGNetV2, hybrid encoder, fine-grained distribution refinement."""

from __future__ import annotations

from collections.abc import Sequence

from libreyolo_kit_detr import DetectionTransformer, ElanEncoder, FDRDecoder, HGNetV2


class DFINE(DetectionTransformer):
    """The network.

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
        levels = len(points)
        maps = HGNetV2(backbone, levels=levels, freeze_norm=freeze_norm, lab=lab)
        super().__init__(
            maps,
            ElanEncoder(maps.channels, hidden=hidden, ffn=encoder_ffn, width=elan, depth=depth),
            FDRDecoder(
                nc,
                hidden,
                dim=dim,
                ffn=ffn,
                layers=layers,
                points=points,
                reg_scale=reg_scale,
                queries=queries,
                denoising=denoising,
            ),
            (8, 16, 32)[-levels:],
        )
