"""What the families of the DETR line share.

    layers, presnet, hgnetv2     convolutions and backbones
    encoder, elan_encoder        hybrid encoders; transformer: the attention inside
    deformable, decoder          deformable cross-attention and the decoder layer around it
    queries, denoising           anchors, query selection, denoising queries
    matcher, criterion, scores   Hungarian matching and the set losses
    fdr, fdr_decoder             boxes as distributions of their edges (D-FINE), and the decoder that refines them
    fdr_criterion                the set loss for those

A family writes its network out of these and names ``libreyolo_kit_detr:SetCriterion`` in its data sheet. To change the
loss, subclass ``SetCriterion``; to add a classification term, add a function to ``scores.SCORES``.
"""

from libreyolo_kit_detr.criterion import SetCriterion
from libreyolo_kit_detr.decoder import DecoderLayer
from libreyolo_kit_detr.deformable import DeformableAttention
from libreyolo_kit_detr.elan_encoder import ElanEncoder
from libreyolo_kit_detr.encoder import HybridEncoder
from libreyolo_kit_detr.fdr_criterion import FDRCriterion
from libreyolo_kit_detr.fdr_decoder import FDRDecoder
from libreyolo_kit_detr.hgnetv2 import HGNetV2
from libreyolo_kit_detr.presnet import PResNet

__all__ = [
    "DecoderLayer",
    "DeformableAttention",
    "ElanEncoder",
    "FDRCriterion",
    "FDRDecoder",
    "HGNetV2",
    "HybridEncoder",
    "PResNet",
    "SetCriterion",
]
