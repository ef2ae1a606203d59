"""SimOTA and the loss built on it (YOLOX, Ge et al., 2021, section 2.1), for heads with an objectness.

A network that uses it returns, while training:

    boxes        float32 [N, A, 4], decoded, x1 y1 x2 y2 in pixels
    objectness   [N, A], logits
    classes      [N, A, C], logits
    cells        float32 [A, 3] and
    levels       float32 [L, 4], as in ``grids.Cells``

Only cells near some target's centre can become positive: some dozens per target of several thousand. They are listed
by arithmetic and packed, and everything but the objectness is computed on the packed columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, autocast_off
from libreyolo_core.network import Network
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_yolo.assign import Columns, Matches, cheapest, overlap_count, pack, settle
from libreyolo_kit_yolo.boxes import paired_iou, pairwise_iou

LOG_FLOOR = -100.0
"""Lower bound of logarithms of probabilities, as in torch's binary cross entropy."""


@dataclass
class Assignment:
    """What SimOTA decided, per packed column; ``boxes`` and ``classes`` carry gradients.

    Args:
        columns: which cells the K columns are.
        matches: which target each column was given.
        boxes, classes: the predictions of the columns, float32 [N, K, 4] and [N, K, C].
        target_boxes: float32 [N, K, 4].
        target_labels: int64 [N, K].
    """

    columns: Columns
    matches: Matches
    boxes: Tensor
    classes: Tensor
    target_boxes: Tensor
    target_labels: Tensor


def near_cells(levels: Tensor, targets: BoxTargets, cells: int) -> tuple[Tensor, Tensor]:
    """The cells near each target: those whose centre lies less than 1.5 strides from the target's in x and in y.

    These are at most three columns by three rows of every level, around the cell that holds the target's centre.

    Args:
        levels: float32 [L, 4], (columns, rows, stride, first cell).
        targets: M rows per image.
        cells: A, their number over all levels.

    Returns:
        Cell numbers int64 [N, M, R], R = 9 * L, and which of them are near cells, bool [N, M, R]; the others (off the
        map, too far, of padding targets) have the number A.
    """
    images, rows = targets.valid.shape
    size, stride, first = levels[..., None].split((2, 1, 1), 1)  # [L, 2 or 1, 1]
    middle = targets.boxes.reshape(images, rows, 1, 2, 2, 1).mean(3) / stride  # [N, M, L, 2, 1], x y in strides
    place = middle.floor() + torch.arange(-1.0, 2.0, device=middle.device)  # [N, M, L, 2, 3]
    # The last of three may be too far; the first never is, because the floor lies within one stride.
    near = (place < middle + 1.0) & (place >= 0.0) & (place < size)
    (x, y), (near_x, near_y) = place.unbind(3), near.unbind(3)
    near = near_x[..., None, :] & near_y[..., None] & targets.valid.reshape(images, rows, 1, 1, 1)  # [N, M, L, 3, 3]
    number = torch.addcmul(x[..., None, :] + first, y[..., None], size[:, :1])
    return number.masked_fill_(~near, cells).flatten(2).long(), near.flatten(2)


def class_cost(classes: Tensor, objectness: Tensor, labels: Tensor, column: Tensor) -> Tensor:
    """Binary cross entropy, summed over classes, of sqrt(class * objectness) against the one-hot label of a target.

    Args:
        classes: logits, float32 [N, K, C].
        objectness: logits, float32 [N, K].
        labels: int64 [N, M].
        column: int64 [N, M, R], the column of each pair.

    Returns:
        float32 [N, M, R].
    """
    score = (classes.sigmoid() * objectness.sigmoid()[..., None]).sqrt_()
    miss = torch.log1p(-score).clamp_(min=LOG_FLOOR)
    # A target differs from "no class at all" in one class only, so nothing is made per pair and class.
    cost = miss - score.log_().clamp_(min=LOG_FLOOR) - miss.sum(2, keepdim=True)  # [N, K, C]
    entry = column * classes.shape[2] + labels[..., None]
    return cost.flatten(1).gather(1, entry.flatten(1)).view_as(column)


class SimOTALoss:
    """Terms ``iou``, ``obj`` and ``cls``, each a sum over the batch divided by the number of positives over all ranks.

    Args:
        network: the network whose outputs it gets.
        iou, obj, cls: weights of the terms.
    """

    def __init__(self, network: Network, *, iou: float = 5.0, obj: float = 1.0, cls: float = 1.0) -> None:
        self.weights = {"iou": iou, "obj": obj, "cls": cls}

    def __call__(self, outputs: Mapping[str, Tensor], targets: BoxTargets, step: Step) -> LossTerms:
        """The loss of a batch; ``extra`` holds ``num_fg``, positives per target."""
        with autocast_off():
            assignment = self.assign(outputs, targets)
            positives = assignment.matches.positive.sum()
            # both over all ranks, in one exchange
            count, wanted = step.ranks.normaliser(torch.stack([positives, targets.valid.sum()]).float())
            sums = self.sums(outputs, assignment)
            terms = {name: value * self.weights[name] / count for name, value in sums.items()}
            return LossTerms(terms, extra={"num_fg": positives / wanted})

    def assign(self, outputs: Mapping[str, Tensor], targets: BoxTargets) -> Assignment:
        """Give targets to cells. Float32; gradients flow through the picked predictions, not through the decision.

        In the original a target with fewer near cells than it deserves takes cells near to others. With its centre
        inside the image a target never has too few; one whose centre lies outside gets its near cells alone here.
        """
        with torch.no_grad():
            images, cells = outputs["objectness"].shape
            number, near = near_cells(outputs["levels"], targets, cells)  # [N, M, R]
            reached = torch.zeros((images, cells + 1), dtype=torch.bool, device=number.device)
            reached.scatter_(1, number.flatten(1), True)
            columns = pack(reached[:, :cells], number.shape[1] * number.shape[2])
        boxes, classes = columns.pick(outputs["boxes"]), columns.pick(outputs["classes"]).float()
        with torch.no_grad():
            # Padding targets are empty boxes; padding columns are made empty, so that they overlap nothing either.
            iou = pairwise_iou(targets.boxes, boxes * columns.found[..., None])  # [N, M, K]
            column = columns.of(number)
            objectness = outputs["objectness"].gather(1, columns.cell).float()
            cost = class_cost(classes, objectness, targets.labels, column)
            cost.sub_((iou.gather(2, column) + 1e-8).log_(), alpha=3.0).masked_fill_(~near, torch.inf)
            position, taken = cheapest(cost, overlap_count(iou) * targets.valid)
            # The overlaps have served; their memory now holds the cost of near pairs in columns.
            contested = iou.fill_(torch.inf).scatter_reduce_(2, column, cost, "amin").min(1).indices
            matches = settle(column.gather(2, position), taken, contested)
        labels = targets.labels.gather(1, matches.target)
        return Assignment(columns, matches, boxes, classes, matches.of(targets.boxes), labels)

    def sums(self, outputs: Mapping[str, Tensor], assignment: Assignment) -> dict[str, Tensor]:
        """Every term before weight and normaliser, a scalar summed over the batch."""
        positive = assignment.matches.positive.float()
        objectness = outputs["objectness"].float()
        wanted = torch.zeros_like(objectness).scatter_add_(1, assignment.columns.cell, positive)
        overlap = paired_iou(assignment.boxes, assignment.target_boxes)
        wanted_class = torch.zeros_like(assignment.classes)
        wanted_class.scatter_(2, assignment.target_labels[..., None], overlap.detach()[..., None])
        return {
            "iou": ((1.0 - overlap.square()) * positive).sum(),
            "obj": F.binary_cross_entropy_with_logits(objectness, wanted, reduction="sum"),
            "cls": F.binary_cross_entropy_with_logits(
                assignment.classes, wanted_class, weight=positive[..., None], reduction="sum"
            ),
        }
