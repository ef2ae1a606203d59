"""Softmax cross-entropy."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.targets import ClassTargets


class CrossEntropy:
    """Mean over the batch of all ranks, for class indices as well as for the soft rows that MixUp and CutMix make.

    No label smoothing, no class weights. The one term is called ``ce``.
    """

    def __init__(self, network: nn.Module) -> None:
        pass

    def __call__(self, outputs: Tensor, targets: ClassTargets, step: Step) -> LossTerms:
        """``outputs`` logits [N, C]; ``targets.labels`` int64 [N] or float [N, C]."""
        return LossTerms({"ce": _cross_entropy(outputs, targets.labels, step)})


@float32_island
def _cross_entropy(logits: Tensor, labels: Tensor, step: Step) -> Tensor:
    if step.ranks.size == 1:
        return F.cross_entropy(logits, labels)
    # ranks may hold shards of different sizes, so the mean is taken over all of them together
    count = logits.new_full((), len(logits))
    return F.cross_entropy(logits, labels, reduction="sum") / step.ranks.normaliser(count)
