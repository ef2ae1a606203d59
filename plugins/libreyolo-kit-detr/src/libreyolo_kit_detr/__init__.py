"""What the families of the DETR line share.

    layers, presnet, hgnetv2     convolutions and backbones
    encoder, elan_encoder        hybrid encoders; transformer: the attention inside
    deformable, decoder          deformable cross-attention and the decoder layer around it
    queries, denoising           anchors and the choice among them, denoising queries
    query_decoder, network       bases of a decoder and of a network
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
from libreyolo_kit_detr.network import DetectionTransformer
from libreyolo_kit_detr.presnet import PResNet
from libreyolo_kit_detr.query_decoder import QueryDecoder

__all__ = [
    "DecoderLayer",
    "DeformableAttention",
    "DetectionTransformer",
    "ElanEncoder",
    "FDRCriterion",
    "FDRDecoder",
    "HGNetV2",
    "HybridEncoder",
    "PResNet",
    "QueryDecoder",
    "SetCriterion",
]
