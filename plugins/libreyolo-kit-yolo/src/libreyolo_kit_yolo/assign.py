"""Pieces of dense assigners over padded targets.

N images, M target rows (padded), A cells, K columns (all cells or some of them, packed). Shapes depend on shapes alone:
no loop over images, no boolean indexing, no ``nonzero``, no host read, so a graph can record them. What is impossible
is not left out: it costs infinitely much, or counts for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Columns(NamedTuple):
    """Some of the A cells of each image, packed.

    Args:
        cell: int64 [N, K], which cell a column is, ascending; padding columns repeat the last cell.
        found: bool [N, K], false for padding.
    """

    cell: Tensor
    found: Tensor

    def pick(self, values: Tensor) -> Tensor:
        """[N, K, C] from [N, A, C], differentiable; gradients of padding columns are the caller's to mask."""
        return pick(values, self.cell)

    def of(self, cells: Tensor) -> Tensor:
        """The columns of ``cells`` int64 [N, ...]; a cell without a column gets some other one."""
        place = torch.searchsorted(self.cell, cells.flatten(1))
        return place.clamp_(max=self.cell.shape[1] - 1).view_as(cells)


def pick(values: Tensor, cell: Tensor) -> Tensor:
    """The rows [N, K, C] of ``values`` [N, A, C] that ``cell`` int64 [N, K] names, differentiable."""
    images, cells, channels = values.shape
    first = torch.arange(0, images * cells, cells, device=values.device)[:, None]
    return values.flatten(0, 1).index_select(0, (cell + first).flatten()).view(images, -1, channels)


def pack(mask: Tensor, columns: int) -> Columns:
    """The true entries of each row of ``mask`` [N, A] in order, padded to min(``columns``, A) columns.

    ``columns`` must be a bound that holds for every row: entries beyond it would be lost.
    """
    cells = mask.shape[1]
    backwards = torch.arange(cells, 0, -1, device=mask.device)
    rank = (mask * backwards).topk(min(columns, cells), dim=1).values
    return Columns((cells - rank).clamp_(max=cells - 1), rank > 0)


def overlap_count(iou: Tensor, most: int = 10) -> Tensor:
    """How many cells a target deserves: the sum of its ``most`` largest overlaps, at least 1, not yet rounded down
    (OTA, Ge et al., 2021, section 3.3, as simplified in YOLOX, section 2.1).

    Args:
        iou: float32 [N, M, K], zero for impossible pairs.

    Returns:
        float32 [N, M].
    """
    return iou.topk(min(most, iou.shape[2]), dim=2, sorted=False).values.sum(2).clamp_(min=1)


def cheapest(cost: Tensor, count: Tensor, most: int = 10) -> tuple[Tensor, Tensor]:
    """What each target takes: the ``count`` cheapest of its R candidates.

    Args:
        cost: float32 [N, M, R], infinite for impossible pairs.
        count: [N, M], rounded down; 0 for padding targets.
        most: upper bound of ``count``.

    Returns:
        Positions int64 [N, M, T] on the last axis, T = min(``most``, R), and which are taken, bool [N, M, T].
    """
    lowest, position = cost.topk(min(most, cost.shape[2]), dim=2, largest=False)
    place = torch.arange(1, lowest.shape[2] + 1, device=cost.device)
    return position, (place <= count[..., None]) & (lowest < torch.inf)


class Matches(NamedTuple):
    """Which target each column was given.

    Args:
        target: int64 [N, K], a row of the targets; 0 where nothing was given.
        positive: bool [N, K].
    """

    target: Tensor
    positive: Tensor

    def of(self, values: Tensor) -> Tensor:
        """The values [N, M, C] of each column's target, [N, K, C]."""
        return values.gather(1, self.target[..., None].expand(-1, -1, values.shape[-1]))


def settle(column: Tensor, taken: Tensor, contested: Tensor) -> Matches:
    """Give every column that one target takes to it, and one that several take to its ``contested`` target.

    Args:
        column: int64 [N, M, T], the columns each target wants.
        taken: bool [N, M, T], which of these it takes.
        contested: int64 [N, K], who gets a column that several take.
    """
    rows = column.shape[1]
    # One sum per column tells who took it and whether it was one alone: row m adds rows + m.
    label = torch.arange(rows, 2 * rows, device=column.device)[:, None]
    votes = torch.zeros_like(contested).scatter_add_(1, column.flatten(1), (taken * label).flatten(1))
    target = torch.where(votes >= 2 * rows, contested, (votes - rows).clamp_(min=0))
    return Matches(target, votes > 0)
