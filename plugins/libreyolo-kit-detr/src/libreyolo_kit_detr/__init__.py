"""What the families of the DETR line share.

    layers, presnet, hgnetv2     convolutions and backbones
    encoder, transformer         the hybrid encoder and its transformer layer
    deformable, decoder          deformable cross-attention and the decoder layer around it
    queries, denoising           anchors, query selection, denoising queries
    matcher, criterion, scores   Hungarian matching and the set losses

A family writes its network out of these and names ``libreyolo_kit_detr:SetCriterion`` in its data sheet. To change the
loss, subclass ``SetCriterion``; to add a classification term, add a function to ``scores.SCORES``.
"""

from libreyolo_kit_detr.criterion import SetCriterion
from libreyolo_kit_detr.decoder import DecoderLayer
from libreyolo_kit_detr.deformable import DeformableAttention
from libreyolo_kit_detr.encoder import HybridEncoder
from libreyolo_kit_detr.hgnetv2 import HGNetV2
from libreyolo_kit_detr.presnet import PResNet

__all__ = ["DecoderLayer", "DeformableAttention", "HGNetV2", "HybridEncoder", "PResNet", "SetCriterion"]
