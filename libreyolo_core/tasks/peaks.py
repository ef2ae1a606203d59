"""Points from a grid of class probabilities: the peaks, with weaker cells around each suppressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from libreyolo_core.data.batch import Placement
from libreyolo_core.predictions import Predictions


@dataclass(frozen=True)
class Peaks:
    """The points of one image, best first.

    Args:
        xy: float32 [n, 2], pixels of the photo.
        scores: float32 [n].
        labels: int64 [n], class indices.
        cell: (width, height) of a cell of the grid in pixels of the photo.
    """

    xy: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    cell: tuple[float, float]

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, conf: float) -> Peaks:
        """Those with a score above ``conf``: the same as decoding with that threshold, because only a stronger cell
        suppresses."""
        kept = int(np.searchsorted(-self.scores, -conf, side="left"))
        return Peaks(self.xy[:kept], self.scores[:kept], self.labels[:kept], self.cell)


@torch.no_grad()
def decode(
    predictions: Predictions,
    placements: Sequence[Placement],
    *,
    conf: float,
    radius: int,
    max_det: int,
    classes: Sequence[int] | None = None,
) -> list[Peaks]:
    """The points of every image of a batch.

    A cell's class is its most probable one but the background (channel 0). Cells with a probability above ``conf`` are
    visited from the strongest to the weakest, equal ones row by row; each that is not suppressed is a point, and
    suppresses the square of ``2 radius + 1`` cells around it, whatever their class. A point lies in the middle of its
    cell; cells whose middle is beside the photo (in padding) count for nothing.

    Args:
        predictions: ``scores`` [N, 1 + C, gh, gw], softmax over channels.
        placements: where each photo lies in the input.
        classes: cells of these classes only.
    """
    assert predictions.scores is not None
    best, label = predictions.scores[:, 1:].float().max(dim=1)  # [N, gh, gw]
    scores, labels = best.cpu().numpy(), label.cpu().numpy()
    return [
        _peaks(s, c, placement, conf, radius, max_det, classes)
        for s, c, placement in zip(scores, labels, placements, strict=True)
    ]


def _peaks(
    scores: np.ndarray,
    labels: np.ndarray,
    placement: Placement,
    conf: float,
    radius: int,
    max_det: int,
    classes: Sequence[int] | None,
) -> Peaks:
    gh, gw = scores.shape
    x = ((np.arange(gw) + 0.5) * placement.size[1] / gw - placement.offset[0]) / placement.scale[0]
    y = ((np.arange(gh) + 0.5) * placement.size[0] / gh - placement.offset[1]) / placement.scale[1]
    inside = ((y >= 0) & (y <= placement.photo[0]))[:, None] & ((x >= 0) & (x <= placement.photo[1]))
    usable = (scores > conf) & inside & np.isfinite(scores)
    if classes is not None:
        usable &= np.isin(labels, list(classes))
    row, column = usable.nonzero()
    order = np.argsort(-scores[row, column], kind="stable")
    suppressed = np.zeros((gh, gw), dtype=bool)
    kept: list[tuple[int, int]] = []
    for r, c in zip(row[order].tolist(), column[order].tolist(), strict=True):
        if suppressed[r, c]:
            continue
        kept.append((r, c))
        if len(kept) == max_det:
            break
        suppressed[max(0, r - radius) : r + radius + 1, max(0, c - radius) : c + radius + 1] = True
    rows, columns = np.array(kept, dtype=np.int64).reshape(-1, 2).T
    return Peaks(
        np.stack([x[columns], y[rows]], axis=1).astype(np.float32),
        scores[rows, columns].astype(np.float32),
        labels[rows, columns].astype(np.int64),
        (placement.size[1] / gw / placement.scale[0], placement.size[0] / gh / placement.scale[1]),
    )
