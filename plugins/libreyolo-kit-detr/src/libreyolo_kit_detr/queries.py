"""Where object queries come from: anchors on the maps' cells and the choice of the most promising ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOGIT_EPS = 1e-5
"""Boxes are kept this far from 0 and 1 before their logit is taken."""


def anchor_logits(
    shapes: Sequence[tuple[int, int]], device: torch.device, *, size: float = 0.05, margin: float = 0.01
) -> tuple[Tensor, Tensor]:
    """One anchor a cell: centred there, ``size`` of the image on the finest map and twice as large on each next one.

    Args:
        shapes: (height, width) of each map, finest first.
        margin: an anchor with any coordinate this close to 0 or 1 is invalid.

    Returns:
        Logits of cx cy w h, float32 [S, 4], plus infinity for invalid anchors, and validity, bool [S, 1]; rows as in
        the flattened maps, computed on ``device``.
    """
    anchors = []
    for level, (height, width) in enumerate(shapes):
        x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / width
        y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / height
        side = torch.full((1, 1), size * 2**level, device=device).expand(height, width)
        anchors.append(
            torch.stack((x.expand(height, width), y[:, None].expand(height, width), side, side), -1).flatten(0, 1)
        )
    boxes = torch.cat(anchors)
    valid = ((boxes > margin) & (boxes < 1 - margin)).all(-1, keepdim=True)
    return boxes.logit().masked_fill(~valid, float("inf")), valid


def best_rows(scores: Tensor, count: int) -> Tensor:
    """Indices of the rows with the highest class score, int64 [N, min(count, S)], from scores or logits [N, S, C]."""
    best = scores.detach().amax(-1)
    return best.topk(min(count, best.shape[1]), dim=1).indices


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` [N, k] of ``x`` [N, S, C], giving [N, k, C]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
