"""Task-aligned assignment and the loss built on it, for anchor-free heads with box distributions
(TOOD, Feng et al., 2021, section 3.3; distributions: Generalized Focal Loss, Li et al., 2020).

A network that uses it returns, while training:

    distributions  [N, A, 4 * R], logits, as in ``dfl``
    classes        [N, A, C], logits
    cells          float32 [A, 3], as in ``grids.Cells``

and for every further branch of heads the first two again under a prefix. All branches go through one computation, as
if they were further images, so a second branch costs no further operations.

Each of the M targets of an image has K slots, the cells it takes at most; everything but the classification of the
background is computed on slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Step, autocast_off
from libreyolo_core.network import Network
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_yolo.assign import pick
from libreyolo_kit_yolo.boxes import paired_ciou, pairwise_ciou
from libreyolo_kit_yolo.dfl import boxes_from_distributions, distribution_focal, expectation, split_sides

MARGIN = 0.01
"""True distances end this far before the last bin, so that a bin above them always exists."""


class Slots(NamedTuple):
    """The cells that targets take.

    Args:
        cell: int64 [N, M, K].
        weight: float32 [N, M, K], the class score a cell should have; 0 where a slot is empty.
        positive: bool [N, M, K]; no cell of an image is positive in two slots.
    """

    cell: Tensor
    weight: Tensor
    positive: Tensor


def within_reach(boxes: Tensor, points: Tensor, reach: Tensor) -> Tensor:
    """Which points lie inside which boxes with no side further than ``reach``.

    Args:
        boxes: float32 [N, M, 4].
        points: float32 [A, 2], in pixels like the boxes.
        reach: float32 [A], in pixels.

    Returns:
        bool [N, M, A].
    """
    low, high = boxes.unflatten(-1, (2, 2)).permute(2, 3, 0, 1)[..., None]  # [2, N, M, 1]
    place = points.mT[:, None, None]  # [2, 1, 1, A]
    sides = torch.stack((place - low, high - place))  # [2, 2, N, M, A]
    return (sides.amin((0, 1)) >= 0) & (sides.amax((0, 1)) <= reach)


@torch.no_grad()
def task_aligned(
    boxes: Tensor,
    classes: Tensor,
    targets: BoxTargets,
    inside: Tensor,
    *,
    topk: int = 10,
    fewer: Tensor | None = None,
    score_power: float = 0.5,
    iou_power: float = 6.0,
) -> Slots:
    """Give cells to targets by how well they already predict them (TOOD, section 3.3.1).

    A target takes the ``topk`` cells with the highest alignment, score to one power times complete IoU to another,
    among those ``inside`` allows; one that finds none there takes the best cell anywhere. A cell that several targets
    take goes to the one it overlaps most. Of each target's cells the best aligned gets its highest overlap as class
    score, the others a share in proportion.

    Args:
        boxes: decoded predictions, float32 [N, A, 4].
        classes: logits, float32 [N, A, C].
        targets: M rows per image.
        inside: bool [N, M, A].
        topk: cells per target, which is also the number of slots K, if there are as many cells.
        fewer: int64 [N, 1, 1], a smaller ``topk`` of each image.
    """
    rows, cells = targets.valid.shape[1], boxes.shape[1]
    iou = pairwise_ciou(targets.boxes, boxes).clamp_(min=0, max=1)  # [N, M, A], 0 for padding targets
    score = classes.mT.gather(1, targets.labels[..., None].expand(-1, -1, cells)).sigmoid_()
    alignment = score.pow_(score_power).mul_(iou.pow(iou_power))
    allowed = alignment * inside
    reachable = allowed.amax(2, keepdim=True) > 0
    value, cell = torch.where(reachable, allowed, alignment).topk(min(topk, cells), 2)  # [N, M, K]
    place = torch.arange(value.shape[2], device=value.device)
    taken = (value > 0) & (reachable | (place < 1))
    if fewer is not None:
        taken &= place < fewer
    overlap = iou.gather(2, cell) * taken
    # Every pair's overlap is known by now where it matters, so its memory can hold the overlaps of taken pairs.
    owner = iou.zero_().scatter_(2, cell, overlap).argmax(1)  # [N, A]
    row = torch.arange(rows, device=owner.device)[:, None]
    positive = taken & (owner.gather(1, cell.flatten(1)).view_as(cell) == row)
    value = value * positive
    best = (overlap * positive).amax(2, keepdim=True)
    return Slots(cell, value / (value.amax(2, keepdim=True) + 1e-9) * best, positive)


class Branch(NamedTuple):
    """One set of heads: the prefix of its outputs and terms, the weight of its loss, the cells per target."""

    name: str = ""
    weight: float = 1.0
    topk: int = 10


class TaskAlignedLoss:
    """Terms ``box``, ``dfl`` and ``cls`` of every branch, each divided by the branch's sum of class scores over all
    ranks. The terms of a branch with a name come as ``<name>_box`` and so on.

    Args:
        network: the network whose outputs it gets.
        box, dfl, cls: weights of the terms.
        branches: those whose outputs may be there; the first must be.
    """

    def __init__(
        self,
        network: Network,
        *,
        box: float = 7.5,
        dfl: float = 1.5,
        cls: float = 0.5,
        branches: tuple[Branch, ...] = (Branch(),),
    ) -> None:
        self.weights = {"box": box, "dfl": dfl, "cls": cls}
        self.branches = branches

    def __call__(self, outputs: Mapping[str, Tensor], targets: BoxTargets, step: Step) -> LossTerms:
        """The loss of a batch; ``extra`` holds ``num_fg``, positives of the first branch per image."""
        present = [b for b in self.branches if prefixed(b.name, "classes") in outputs]
        with autocast_off():
            distributions = _stacked(outputs, present, "distributions")  # [B * N, A, 4 * R]
            classes = _stacked(outputs, present, "classes").float()  # [B * N, A, C]
            many = targets.map(lambda t: t.repeat(len(present), *[1] * (t.dim() - 1))) if len(present) > 1 else targets
            slots = self.assign(distributions, classes, outputs["cells"], many, present)
            sums = self.sums(distributions, classes, outputs["cells"], many, slots)
            each = {name: value.reshape(len(present), -1).sum(1) for name, value in sums.items()}
            normaliser = step.ranks.normaliser(slots.weight.view(len(present), -1).sum(1))  # [B]
            terms = {
                prefixed(branch.name, name): of_branch * (weight * branch.weight)
                for name, weight in self.weights.items()
                for branch, of_branch in zip(present, (each[name] / normaliser).unbind(), strict=True)
            }
            positives = slots.positive[: len(targets.valid)].sum()
            return LossTerms(terms, extra={"num_fg": positives / len(targets.valid)})

    @torch.no_grad()
    def assign(
        self, distributions: Tensor, classes: Tensor, cells: Tensor, targets: BoxTargets, branches: list[Branch]
    ) -> Slots:
        """Give cells to targets, float32, without gradient."""
        corner, stride = cells.split((2, 1), -1)
        middle = (corner + 0.5) * stride
        furthest = distributions.shape[-1] // 4 - 1 - MARGIN
        inside = within_reach(targets.boxes, middle, furthest * stride.squeeze(-1))
        boxes = boxes_from_distributions(distributions, middle, stride)
        counts, fewer = [b.topk for b in branches], None
        if len(set(counts)) > 1:
            one = torch.ones(len(classes) // len(counts), 1, 1, dtype=torch.int64, device=classes.device)
            fewer = torch.cat([one * count for count in counts])
        return task_aligned(boxes, classes.detach(), targets, inside, topk=max(counts), fewer=fewer)

    def sums(
        self, distributions: Tensor, classes: Tensor, cells: Tensor, targets: BoxTargets, slots: Slots
    ) -> dict[str, Tensor]:
        """Every term before weight and normaliser: tensors whose first axis is images and whose sum counts."""
        images, rows, count = slots.cell.shape
        cell = slots.cell.flatten(1)
        place = cells.index_select(0, cell.flatten()).view(images, rows, count, 3)
        corner, stride = place.split((2, 1), -1)
        middle = corner + 0.5
        low, high = (targets.boxes[:, :, None] / stride).chunk(2, -1)  # [N, M, K, 2], in strides
        logits = split_sides(pick(distributions, cell).float()).view(images, rows, count, 4, -1)
        log_probabilities = logits.log_softmax(-1)
        before, after = expectation(log_probabilities.exp()).chunk(2, -1)
        found = (middle - before).movedim(-1, 0), (middle + after).movedim(-1, 0)
        overlap = paired_ciou(found, (low.movedim(-1, 0), high.movedim(-1, 0)))
        distances = torch.cat((middle - low, high - middle), -1).clamp_(0, logits.shape[-1] - 1 - MARGIN)
        entry = slots.cell * classes.shape[2] + targets.labels[..., None]
        wanted = classes.flatten(1).gather(1, entry.flatten(1)).view_as(slots.weight)
        # Cross entropy with a soft target t is softplus(x) - t * x, and t is 0 nearly everywhere.
        background = F.softplus(classes).sum((1, 2)) - (wanted * slots.weight).sum((1, 2))
        return {
            "box": (1.0 - overlap) * slots.weight,
            "dfl": distribution_focal(log_probabilities, distances) * slots.weight,
            "cls": background,
        }


def prefixed(branch: str, name: str) -> str:
    """The name of an output or a term of a branch."""
    return f"{branch}_{name}" if branch else name


def _stacked(outputs: Mapping[str, Tensor], branches: list[Branch], name: str) -> Tensor:
    values = [outputs[prefixed(branch.name, name)] for branch in branches]
    return values[0] if len(values) == 1 else torch.cat(values)
