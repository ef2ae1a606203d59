"""Two losses: one for our own family, one that anybody may choose for a classifier that is not ours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.network import Network
from libreyolo_core.targets import BoxTargets, ClassTargets


class PoissonLoss:
    """Negative log-likelihood of Poisson-distributed counts around the predicted mean, without its constant."""

    def __init__(self, network: Network) -> None:
        pass

    @float32_island
    def __call__(self, outputs: Tensor, targets: BoxTargets, step: Step) -> LossTerms:
        """``outputs`` float [N, C], logarithms of the means; of the targets only labels are looked at."""
        counts = torch.zeros_like(outputs).scatter_add(1, targets.labels, targets.valid.float())
        error = outputs.exp() - counts * outputs
        return LossTerms({"poisson": error.sum() / step.ranks.normaliser(error.new_full((), error.numel()))})


class FocalLoss:
    """Focal loss of a softmax classifier (Lin et al., 2017, section 3.2): samples that are right already count little.

    Args:
        gamma: how little; 0 is cross-entropy.
    """

    def __init__(self, network: Network, *, gamma: float = 2.0) -> None:
        self.gamma = gamma

    @float32_island
    def __call__(self, outputs: Tensor, targets: ClassTargets, step: Step) -> LossTerms:
        """``outputs`` logits [N, C]; ``targets.labels`` int64 [N], or float [N, C] when batches are mixed."""
        labels = targets.labels
        wanted = labels if labels.is_floating_point() else F.one_hot(labels, outputs.shape[1]).float()
        log_p = outputs.log_softmax(1)
        focus = (1.0 - log_p.exp()) ** self.gamma
        total = -(wanted * focus * log_p).sum()
        return LossTerms({"focal": total / step.ranks.normaliser(torch.full_like(total, len(outputs)))})
