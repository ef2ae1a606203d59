"""Fine-grained distribution refinement (Peng et al., 2024, "D-FINE", section 4.1): box edges as distributions.

A box is an initial box and, for each of its edges left, top, right, bottom, a distribution over 33 offsets. Offsets are
counted in units of the initial box: ``reg_scale`` of them are its width (or height).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from libreyolo_kit_detr.layers import MLP, Activation

BINS = 33
"""Offsets an edge may have (``reg_max`` 32, both ends included)."""


def bin_values(up: Tensor, reg_scale: Tensor) -> Tensor:
    """The offsets W, float32 [33], ascending and odd about the middle (section 4.1, equation 4).

    They grow exponentially from 0 up to ``up * reg_scale``; the last one on either side is twice that.

    Args:
        up, reg_scale: [1] each. No gradient reaches them.
    """
    reach = (up.detach() * reg_scale.detach()).abs().float()
    exponent = torch.arange(1, BINS // 2, device=up.device) * (2 / (BINS - 3))
    positive = torch.cat(((reach + 1) ** exponent - 1, reach * 2))
    return torch.cat((-positive.flip(0), torch.zeros_like(reach), positive))


def decode(initial: Tensor, probabilities: Tensor, bins: Tensor, reg_scale: Tensor) -> Tensor:
    """The boxes that distributions mean.

    Args:
        initial: float32 [..., 4], cx cy w h. ``probabilities``: float32 [..., 4, 33].
        bins: [33], see ``bin_values``. ``reg_scale``: [1].

    Returns:
        float32 [..., 4], cx cy w h; edges that crossed make a negative size.
    """
    low, high = (probabilities @ bins).split(2, -1)  # left and top, right and bottom
    centre, size = initial.split(2, -1)
    scale = reg_scale.detach().abs()
    unit = size / scale
    return torch.cat((centre + (high - low) * (unit * 0.5), size + (low + high) * unit), -1)


def encode(initial: Tensor, corners: Tensor, bins: Tensor, reg_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Where the edges of true boxes lie among the offsets.

    Args:
        initial: float32 [..., 4], cx cy w h. ``corners``: float32 [..., 4], x1 y1 x2 y2 of true boxes.
        bins: [33]. ``reg_scale``: [1].

    Returns:
        The offset at or below each edge, int64 [..., 4] from 0 to 31, and the share float32 [..., 4] that belongs to
        the next one. Edges beyond the outermost offsets count as lying on them.
    """
    centre, size = initial.split(2, -1)
    scale = reg_scale.detach().abs()
    low, high = corners.split(2, -1)
    distance = torch.cat((centre - low, high - centre), -1)
    edge = distance / (size / scale + 1e-16).repeat(*[1] * (size.dim() - 1), 2) - 0.5 * scale
    edge = torch.minimum(torch.maximum(edge, bins[0]), bins[-1])
    left = (torch.bucketize(edge, bins, right=True) - 1).clamp(0, BINS - 2)
    below = bins[left]
    return left, (edge - below) / (bins[left + 1] - below)


class QualityHead(nn.Module):
    """Location quality estimation: how far the class scores may be trusted, from how peaked the distributions are.

    Args:
        hidden: width of its network. ``top``: how many probabilities of each edge it sees, beside their mean.
    """

    def __init__(self, hidden: int = 64, top: int = 4, *, act: Activation) -> None:
        super().__init__()
        self.top = top
        self.reg_conf = MLP(4 * (top + 1), hidden, 1, 2, act=act)
        nn.init.zeros_(self.reg_conf.layers[-1].weight)
        nn.init.zeros_(self.reg_conf.layers[-1].bias)

    def forward(self, probabilities: Tensor) -> Tensor:
        """``probabilities`` float [..., 4, 33] to a correction of every class logit, [..., 1]."""
        best = probabilities.topk(self.top, dim=-1).values
        return self.reg_conf(torch.cat((best, best.mean(-1, keepdim=True)), -1).flatten(-2))
