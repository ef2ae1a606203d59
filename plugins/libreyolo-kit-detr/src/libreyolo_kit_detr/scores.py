"""Classification terms of set criteria. Each maps (logits, quality) to one unreduced sum for every set.

``logits`` is float32 [S, N, Q, C]; ``quality`` has the same shape and holds the IoU of the matched box at the matched
class and -1 everywhere else; the result is float32 [S]. To add one, write such a function and enter it in ``SCORES``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def varifocal(logits: Tensor, quality: Tensor) -> Tensor:
    """Varifocal loss (Zhang et al., 2021, equation 2): the target of a match is its IoU; alpha 0.75, gamma 2."""
    background = logits.detach().sigmoid().square() * 0.75
    weight = torch.where(quality < 0, background, quality)
    return _weighted(logits, quality.clamp(min=0), weight)


def focal(logits: Tensor, quality: Tensor) -> Tensor:
    """Focal loss (Lin et al., 2017, equation 5): the target of a match is 1; alpha 0.25, gamma 2."""
    matched = quality >= 0
    p = logits.sigmoid()
    weight = torch.where(matched, 0.25 * (1 - p).square(), 0.75 * p.square())
    return _weighted(logits, matched.to(logits.dtype), weight)


def _weighted(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return (F.binary_cross_entropy_with_logits(logits, target, reduction="none") * weight).sum((1, 2, 3))


SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"vfl": varifocal, "focal": focal}
