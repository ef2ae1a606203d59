"""Weighted softmax cross-entropy over the cells of the grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.network import Network
from libreyolo_core.targets import BoxTargets


class GridCrossEntropy:
    """Cross-entropy in which cells with an object weigh more: the sum of weight times -log p over the sum of weights,
    both over all ranks. The one term is called ``ce``.

    Nearly all cells are background: with equal weights a network that says nothing is right almost everywhere.

    Args:
        network: its first stride is the side of a cell in pixels.
        fg_weight: weight of a cell that holds an object; background weighs 1.
    """

    def __init__(self, network: Network, *, fg_weight: float = 100.0) -> None:
        self.stride, self.fg_weight = network.strides[0], fg_weight

    def __call__(self, outputs: Tensor, targets: BoxTargets, step: Step) -> LossTerms:
        """``outputs``: logits [N, 1 + C, gh, gw], channel 0 background; ``targets``: boxes in pixels of the input."""
        return LossTerms({"ce": self._weighted(outputs, targets, step)})

    @float32_island
    def _weighted(self, logits: Tensor, targets: BoxTargets, step: Step) -> Tensor:
        classes = grid_classes(targets, channels=logits.shape[1], grid=logits.shape[-2:], stride=self.stride)
        weights = 1.0 + (self.fg_weight - 1.0) * (classes > 0)  # [N, 1, gh, gw]
        share = weights / -step.ranks.normaliser(weights.sum())
        # a product with one-hot rows instead of an index: its gradient needs no atomic addition, so it is deterministic
        channel = torch.arange(logits.shape[1], device=logits.device).reshape(-1, 1, 1)
        wanted = (classes == channel) * share  # [N, 1 + C, gh, gw]
        return (F.log_softmax(logits, 1) * wanted).sum()


def grid_classes(targets: BoxTargets, *, channels: int, grid: tuple[int, int] | torch.Size, stride: int) -> Tensor:
    """The class of every cell: 1 + class where the centre of a box lies, 0 elsewhere.

    Of several centres in one cell the last box counts, on every device. Shapes are static, nothing is read on the host.

    Args:
        targets: ``boxes`` float [N, M, 4] xyxy in pixels.
        channels: number of classes and one for background.
        grid: (height, width) in cells; ``stride`` pixels per cell.

    Returns:
        int64 [N, 1, gh, gw].
    """
    height, width = grid
    boxes, valid = targets.boxes, targets.valid
    n, m = valid.shape
    centre = (boxes[..., :2] + boxes[..., 2:]) * (0.5 / stride)
    column, row = centre.long().unbind(-1)
    cell = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # [N, M]
    # the row number leads in the value, so that the maximum in a cell is the last box; padding competes as 0
    order = torch.arange(channels + 1, channels * (m + 1) + 1, channels, device=valid.device)  # [M]
    value = (targets.labels + order) * valid
    latest = torch.zeros(n, height * width, dtype=torch.int64, device=valid.device)
    latest = latest.scatter_reduce(1, cell, value, "amax")
    return latest.reshape(n, 1, height, width) % channels
