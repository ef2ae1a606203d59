"""Cross-entropy of every labelled pixel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.targets import IGNORED, MaskTargets


class PixelCrossEntropy:
    """Mean over the labelled pixels of the batches of all ranks; 0 when there is none. No class weights, no auxiliary
    head. The one term is called ``sem``.

    The logits are resized to the annotation (bilinear) in float32, also under mixed precision.
    """

    def __init__(self, network: nn.Module) -> None:
        pass

    def __call__(self, outputs: Tensor, targets: MaskTargets, step: Step) -> LossTerms:
        """``outputs`` logits [N, C, h, w]; ``targets.masks`` uint8 [N, H, W], 255 where nothing is known."""
        return LossTerms({"sem": _pixel_cross_entropy(outputs, targets.masks, step)})


@float32_island
def _pixel_cross_entropy(logits: Tensor, masks: Tensor, step: Step) -> Tensor:
    if logits.shape[-2:] != masks.shape[-2:]:
        logits = F.interpolate(logits, size=masks.shape[-2:], mode="bilinear", align_corners=False)
    total = F.cross_entropy(logits, masks.long(), ignore_index=IGNORED, reduction="sum")
    return total / step.ranks.normaliser((masks != IGNORED).sum())
