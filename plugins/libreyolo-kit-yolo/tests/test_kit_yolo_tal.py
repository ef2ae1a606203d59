"""Task-aligned assignment over padded targets against the same written as loops, and its behaviour at the edges."""

import math

import pytest
import torch

from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_yolo.grids import cell_grid
from libreyolo_kit_yolo.tal import Branch, TaskAlignedLoss, task_aligned, within_reach

STRIDES = (8, 16, 32)
REACH = 14.99


def ciou(a, b):
    """Complete IoU of two boxes, in float64."""
    width, height = max(0.0, min(a[2], b[2]) - max(a[0], b[0])), max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    (aw, ah), (bw, bh) = (a[2] - a[0], a[3] - a[1]), (b[2] - b[0], b[3] - b[1])
    overlap = width * height / (aw * ah + bw * bh - width * height + 1e-7)
    diagonal = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2 + 1e-7
    apart = ((a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2) / 4
    v = 4 / math.pi**2 * (math.atan(aw / (ah + 1e-7)) - math.atan(bw / (bh + 1e-7))) ** 2
    return overlap - apart / diagonal - v * v / (v - overlap + 1 + 1e-7)


def assign_by_loops(boxes, logits, cells, gts, labels, topk=10):
    """Target and class score of each positive cell of one image: {cell: (target, score)}."""
    taken, align, overlap = {}, {}, {}
    for g, (x1, y1, x2, y2) in enumerate(gts):
        allowed = []
        for c, (column, row, stride) in enumerate(cells):
            x, y = (column + 0.5) * stride, (row + 0.5) * stride
            sides = [(x - x1) / stride, (y - y1) / stride, (x2 - x) / stride, (y2 - y) / stride]
            overlap[g, c] = min(max(ciou(gts[g], boxes[c]), 0.0), 1.0)
            align[g, c] = overlap[g, c] ** 6 / math.sqrt(1 + math.exp(-logits[c][labels[g]]))
            if min(sides) >= 0 and max(sides) <= REACH and align[g, c] > 0:
                allowed.append(c)
        best = max(range(len(cells)), key=lambda c, g=g: align[g, c])
        if not allowed and align[g, best] > 0:
            allowed = [best]
        for c in sorted(allowed, key=lambda c, g=g: -align[g, c])[:topk]:
            taken.setdefault(c, []).append(g)
    owner = {c: max(gs, key=lambda g, c=c: overlap[g, c]) for c, gs in taken.items()}
    found = {}
    for c, g in owner.items():
        mine = [k for k, o in owner.items() if o == g]
        share = align[g, c] / (max(align[g, k] for k in mine) + 1e-9)
        found[c] = g, share * max(overlap[g, k] for k in mine)
    return found


@pytest.fixture(scope="module")
def cells():
    """The cells of an image of 96 pixels."""
    return cell_grid([torch.zeros(1, 1, 96 // s, 96 // s) for s in STRIDES], STRIDES).table


def scene(cells, counts, nc=3, seed=0, smallest=1.0):
    """Predictions near and far, and targets of all sizes, some of them on top of each other."""
    draw = torch.Generator().manual_seed(seed)
    middle, stride = (cells[:, :2] + 0.5) * cells[:, 2:], cells[:, 2:]
    half = stride * (0.5 + 3 * torch.rand(len(counts), len(cells), 2, generator=draw))
    boxes = torch.cat((middle - half, middle + half), -1)
    logits = torch.randn(len(counts), len(cells), nc, generator=draw) * 2
    gts, labels = [], []
    for count in counts:
        size = smallest + torch.rand(count, 2, generator=draw) ** 2 * 80
        first = torch.rand(count, 2, generator=draw) * (96 - size)
        gts.append(torch.cat((first, first + size), 1))
        labels.append(torch.randint(nc, (count,), generator=draw))
    return boxes, logits, BoxTargets.pad(gts, labels)


def assign(boxes, logits, targets, cells, **options):
    middle, stride = (cells[:, :2] + 0.5) * cells[:, 2:], cells[:, 2]
    return task_aligned(boxes, logits, targets, within_reach(targets.boxes, middle, REACH * stride), **options)


@pytest.mark.parametrize("topk", [1, 10])
@pytest.mark.parametrize("seed", range(4))
def test_padded_tensors_decide_as_loops_do(cells, seed, topk):
    boxes, logits, targets = scene(cells, [7, 0, 1, 20], seed=seed)
    slots = assign(boxes, logits, targets, cells, topk=topk)
    for image in range(4):
        valid = targets.valid[image]
        wanted = assign_by_loops(
            boxes[image].tolist(),
            logits[image].tolist(),
            cells.tolist(),
            targets.boxes[image][valid].tolist(),
            targets.labels[image][valid].tolist(),
            topk,
        )
        row, slot = slots.positive[image].nonzero(as_tuple=True)
        found = {int(slots.cell[image, r, s]): (int(r), float(slots.weight[image, r, s])) for r, s in zip(row, slot)}
        assert {c: g for c, (g, _) in found.items()} == {c: g for c, (g, _) in wanted.items()}
        for c, (_, score) in wanted.items():
            assert found[c][1] == pytest.approx(score, rel=1e-3)  # the sixth power multiplies rounding errors
    assert not slots.weight[~slots.positive].any()


def test_a_target_too_large_or_too_small_for_any_cell_takes_the_best_anywhere(cells):
    boxes = torch.zeros(1, len(cells), 4)
    boxes[0, 5] = torch.tensor([41.0, 41, 44, 44])
    targets = BoxTargets.pad([torch.tensor([[41.0, 41, 43, 43]])], [torch.tensor([0])])
    slots = assign(boxes, torch.zeros(1, len(cells), 2), targets, cells)
    assert slots.positive.sum() == 1 and slots.cell[slots.positive].tolist() == [5]


def test_a_target_that_no_prediction_overlaps_takes_nothing(cells):
    boxes = torch.zeros(1, len(cells), 4)
    targets = BoxTargets.pad([torch.tensor([[40.0, 40, 60, 60]])], [torch.tensor([0])])
    slots = assign(boxes, torch.zeros(1, len(cells), 2), targets, cells)
    assert not slots.positive.any() and not slots.weight.any()


def test_images_with_fewer_cells_than_slots_are_assigned():
    cells = cell_grid([torch.zeros(1, 1, 2, 2)], (32,)).table
    boxes, logits, targets = scene(cells, [2, 1], seed=1, smallest=40.0)
    assert assign(boxes, logits, targets, cells).cell.shape == (2, 8, 4)


def outputs_of(cells, images, seed, nc=3, prefix=""):
    draw = torch.Generator().manual_seed(seed)
    return {
        f"{prefix}distributions": torch.randn(images, len(cells), 64, generator=draw),
        f"{prefix}classes": torch.randn(images, len(cells), nc, generator=draw),
        "cells": cells,
    }


def test_images_of_a_batch_do_not_influence_each_other(cells):
    _, _, targets = scene(cells, [7, 0, 20])
    outputs, loss = outputs_of(cells, 3, seed=2), TaskAlignedLoss(None)
    rows = outputs["distributions"], outputs["classes"]
    together = loss.assign(*rows, cells, targets, [Branch()])
    for i in range(3):
        alone = loss.assign(*(r[i : i + 1] for r in rows), cells, targets.map(lambda t, i=i: t[i : i + 1]), [Branch()])
        assert torch.equal(alone.positive[0], together.positive[i])
        torch.testing.assert_close(alone.weight[0], together.weight[i])


def test_branches_are_weighed_and_normalised_on_their_own(cells):
    _, _, targets = scene(cells, [7, 2], smallest=10.0)
    both = outputs_of(cells, 2, seed=3) | outputs_of(cells, 2, seed=4, prefix="other_")
    loss = TaskAlignedLoss(None, branches=(Branch(), Branch("other", 0.5, topk=3)))
    named = loss(both, targets, Step()).named()
    first = TaskAlignedLoss(None)(outputs_of(cells, 2, seed=3), targets, Step()).named()
    second = TaskAlignedLoss(None, branches=(Branch(topk=3),))(outputs_of(cells, 2, seed=4), targets, Step()).named()
    for name in ("box", "dfl", "cls"):
        torch.testing.assert_close(named[name], first[name])
        torch.testing.assert_close(named[f"other_{name}"], 0.5 * second[name])
    assert named["num_fg"] == first["num_fg"]


class Halves(Ranks):
    """A process that sees one half of the batch and knows the whole sum."""

    size = 2

    def __init__(self, whole):
        self.whole = whole

    def sum(self, value):
        return self.whole.to(value)


def test_two_ranks_with_half_the_batch_give_the_loss_of_one_with_all_of_it(cells):
    _, _, targets = scene(cells, [7, 0, 20, 3], smallest=10.0)
    outputs = outputs_of(cells, 4, seed=5) | outputs_of(cells, 4, seed=6, prefix="other_")
    loss = TaskAlignedLoss(None, branches=(Branch(), Branch("other", 0.25)))
    whole = loss(outputs, targets, Step())
    seen = []

    class Spy(Ranks):
        def sum(self, value):
            seen.append(value)
            return value

    loss(outputs, targets, Step(ranks=Spy()))
    total = 0.0
    for half in (slice(0, 2), slice(2, 4)):
        part = {k: v if k == "cells" else v[half] for k, v in outputs.items()}
        total += loss(part, targets.map(lambda t, half=half: t[half]), Step(ranks=Halves(seen[0]))).total / 2
    torch.testing.assert_close(total, whole.total)


def test_gradients_reach_positive_cells_and_every_class_score(cells):
    _, _, targets = scene(cells, [5], smallest=12.0)
    outputs = outputs_of(cells, 1, seed=7)
    for name in ("distributions", "classes"):
        outputs[name].requires_grad_()
    loss = TaskAlignedLoss(None)
    slots = loss.assign(outputs["distributions"].detach(), outputs["classes"].detach(), cells, targets, [Branch()])
    loss(outputs, targets, Step()).total.backward()
    positive = torch.zeros(len(cells), dtype=torch.bool)
    positive[slots.cell[slots.positive]] = True
    assert torch.equal(outputs["distributions"].grad[0].any(-1), positive)
    assert (outputs["classes"].grad != 0).all()
