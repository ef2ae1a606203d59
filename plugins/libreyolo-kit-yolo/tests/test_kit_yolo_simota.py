"""SimOTA over padded tensors against SimOTA written as loops, and its behaviour at the edges."""

import math

import pytest
import torch

from libreyolo_core.losses import Ranks, Step
from libreyolo_core.network import Network
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_yolo.boxes import boxes_from_offsets
from libreyolo_kit_yolo.grids import cell_grid
from libreyolo_kit_yolo.simota import SimOTALoss, near_cells

STRIDES = (8, 16, 32)


def assign_by_loops(boxes, objectness, classes, cells, gts, labels):
    """SimOTA box by box and cell by cell, in float64: which box each positive cell of one image is given.

    Args:
        boxes: per cell (x1, y1, x2, y2); objectness: logits; classes: logits per class; cells: (column, row, stride).
        gts: true boxes; labels: their classes.

    Returns:
        {cell: index of the true box}.
    """

    def near(gt, cell):
        column, row, stride = cells[cell]
        x, y = (column + 0.5) * stride, (row + 0.5) * stride
        gx, gy = (gt[0] + gt[2]) / 2, (gt[1] + gt[3]) / 2
        r = 1.5 * stride
        return x - (gx - r) > 0 and (gx + r) - x > 0 and y - (gy - r) > 0 and (gy + r) - y > 0

    candidates = [c for c in range(len(cells)) if any(near(gt, c) for gt in gts)]
    if not candidates:
        return {}
    cost, taken = {}, {}
    for g, gt in enumerate(gts):
        overlaps = {c: iou(gt, boxes[c]) for c in candidates}
        for c in candidates:
            cost[g, c] = (
                cross_entropy(classes[c], objectness[c], labels[g])
                + 3.0 * -math.log(overlaps[c] + 1e-8)
                + (0.0 if near(gt, c) else 1e6)
            )
        k = max(1, int(sum(sorted(overlaps.values(), reverse=True)[:10])))
        for c in sorted(candidates, key=lambda c: cost[g, c])[:k]:
            taken.setdefault(c, []).append(g)
    return {
        c: owners[0] if len(owners) == 1 else min(range(len(gts)), key=lambda g: cost[g, c])
        for c, owners in taken.items()
    }


def iou(a, b):
    """Overlap of two boxes."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    inter = width * height
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


def cross_entropy(class_logits, objectness_logit, label):
    """Of sqrt(class * objectness) against the one-hot label, summed over classes."""
    total = 0.0
    for index, logit in enumerate(class_logits):
        score = math.sqrt(sigmoid(logit) * sigmoid(objectness_logit))
        total -= max(math.log(score if index == label else 1.0 - score), -100.0)
    return total


def sigmoid(x):
    """The logistic function."""
    return 1.0 / (1.0 + math.exp(-x))


def head_outputs(images, side, nc, *, seed=0, dtype=torch.float32, cells=None):
    """Outputs of an imagined head with boxes of all sizes."""
    draw = torch.Generator().manual_seed(seed)
    height, width = side if isinstance(side, tuple) else (side, side)
    grid = cell_grid([torch.zeros(1, 1, height // s, width // s) for s in STRIDES], STRIDES)
    count = len(grid.table)
    raw = torch.randn(images, count, 4, generator=draw) * torch.tensor([0.7, 0.7, 0.9, 0.9]) + 0.5
    return {
        "boxes": boxes_from_offsets(raw, grid.table),
        "objectness": (torch.randn(images, count, generator=draw) * 2).to(dtype),
        "classes": (torch.randn(images, count, nc, generator=draw) * 2).to(dtype),
        "cells": grid.table,
        "levels": grid.levels,
    }


def crowd(counts, side, nc, *, seed=0, smallest=1.0):
    """Boxes inside the image, many of them around the same places."""
    draw = torch.Generator().manual_seed(1000 + seed)
    boxes, labels = [], []
    for count in counts:
        places = torch.rand(3, 2, generator=draw) * side
        middle = places[torch.randint(3, (count,), generator=draw)] + torch.randn(count, 2, generator=draw) * 6
        half = smallest / 2 + torch.rand(count, 2, generator=draw) ** 3 * side / 2
        # Not on a round number: there float32 and float64 may see another side of a cell's border.
        edge = smallest + torch.rand(count, 2, generator=draw) * 3
        middle = torch.minimum(torch.maximum(middle, edge), side - edge)
        half = torch.minimum(half, torch.minimum(middle, side - middle))
        boxes.append(torch.cat((middle - half, middle + half), 1))
        labels.append(torch.randint(nc, (count,), generator=draw))
    return BoxTargets.pad(boxes, labels)


def assigned(outputs, targets):
    """What the padded form decides, per image {cell: target}."""
    found = SimOTALoss(Network()).assign(outputs, targets)
    result = []
    for cell, target, positive in zip(found.columns.cell, found.matches.target, found.matches.positive, strict=True):
        pairs = [(int(c), int(t)) for c, t, p in zip(cell, target, positive, strict=True) if p]
        assert len(dict(pairs)) == len(pairs), "a cell stands in two columns"
        result.append(dict(pairs))
    return result


def expected(outputs, targets):
    """The same by loops."""
    cells = outputs["cells"].double().tolist()
    result = []
    for i, valid in enumerate(targets.valid):
        result.append(
            assign_by_loops(
                outputs["boxes"][i].double().tolist(),
                outputs["objectness"][i].double().tolist(),
                outputs["classes"][i].double().tolist(),
                cells,
                targets.boxes[i][valid].double().tolist(),
                targets.labels[i][valid].tolist(),
            )
        )
    return result


@pytest.mark.parametrize("seed", range(12))
def test_padded_form_decides_as_the_loops_do(seed):
    outputs = head_outputs(3, 96, 3, seed=seed)
    targets = crowd([1, 0, 7], 96, 3, seed=seed)
    wanted = expected(outputs, targets)
    assert assigned(outputs, targets) == wanted
    assert wanted[0] and not wanted[1] and wanted[2]


@pytest.mark.parametrize("seed", range(4))
def test_crowds_with_more_boxes_than_cells_agree(seed):
    outputs = head_outputs(1, 64, 2, seed=seed)
    targets = crowd([40], 64, 2, seed=seed)
    assert assigned(outputs, targets) == expected(outputs, targets)


@pytest.mark.parametrize("seed", range(4))
def test_good_boxes_take_several_cells_and_conflicts_go_to_the_cheapest(seed):
    targets = crowd([6, 6], 96, 3, seed=seed, smallest=24.0)
    outputs = head_outputs(2, 96, 3, seed=seed)
    # Predictions next to the truth: then k exceeds one and neighbours want the same cells.
    draw = torch.Generator().manual_seed(seed)
    which = torch.randint(6, (2, outputs["boxes"].shape[1]), generator=draw)
    copied = targets.boxes.gather(1, which[..., None].expand(-1, -1, 4))
    outputs["boxes"] = copied + torch.randn(copied.shape, generator=draw).abs() * torch.tensor([-1.0, -1.0, 1.0, 1.0])
    wanted = expected(outputs, targets)
    assert assigned(outputs, targets) == wanted
    assert all(len(image) > 12 for image in wanted)


def test_rectangular_images_agree():
    outputs = head_outputs(1, (64, 160), 3)
    targets = crowd([6], 64, 3)
    targets.boxes[..., 0::2] *= 2.5
    assert assigned(outputs, targets) == expected(outputs, targets)


def test_boxes_on_cell_borders_agree():
    outputs = head_outputs(1, 64, 2)
    boxes = torch.tensor([[0.0, 0, 16, 16], [8, 8, 24, 24], [0, 0, 2, 2], [62, 62, 64, 64], [32, 0, 64, 64]])
    targets = BoxTargets.pad([boxes], [torch.tensor([0, 1, 0, 1, 0])])
    assert assigned(outputs, targets) == expected(outputs, targets)


def test_a_box_whose_centre_is_outside_takes_only_near_cells():
    outputs = head_outputs(1, 64, 2)
    inside, outside = torch.tensor([[8.0, 8, 40, 40]]), torch.tensor([[-400.0, 8, -300, 40]])
    alone = BoxTargets.pad([outside], [torch.tensor([0])])
    both = BoxTargets.pad([torch.cat((outside, inside))], [torch.tensor([0, 1])])
    assert assigned(outputs, alone) == [{}]
    assert set(assigned(outputs, both)[0].values()) == {1}


def test_near_cells_are_at_most_nine_of_a_level():
    outputs = head_outputs(1, 96, 1)
    targets = crowd([8], 96, 1)
    _, near = near_cells(outputs["levels"], targets, len(outputs["cells"]))
    counts = near.unflatten(2, (3, 9)).sum(3)
    assert counts.shape == (1, 8, 3)
    assert int(counts.min()) >= 4 and int(counts.max()) == 9


def test_padding_rows_change_nothing():
    outputs, targets = head_outputs(2, 96, 3), crowd([5, 2], 96, 3)
    boxes = [b[v] for b, v in zip(targets.boxes, targets.valid, strict=True)]
    labels = [c[v] for c, v in zip(targets.labels, targets.valid, strict=True)]
    wider = BoxTargets.pad(boxes, labels, rows=40)
    assert assigned(outputs, wider) == assigned(outputs, targets)
    loss = SimOTALoss(Network())
    assert loss(outputs, wider, Step()).total == pytest.approx(float(loss(outputs, targets, Step()).total), rel=1e-6)


def test_images_do_not_influence_each_other():
    outputs, targets = head_outputs(3, 96, 3), crowd([4, 0, 9], 96, 3)
    together = assigned(outputs, targets)
    for i in range(3):
        own = {k: v[i : i + 1] if k in ("boxes", "objectness", "classes") else v for k, v in outputs.items()}
        assert assigned(own, targets.map(lambda t, i=i: t[i : i + 1])) == [together[i]]


def test_the_normaliser_is_asked_of_all_ranks():
    class Halved(Ranks):
        size = 2

        def sum(self, value):
            return value * 2

    outputs, targets = head_outputs(2, 64, 3), crowd([3, 2], 64, 3)
    loss = SimOTALoss(Network())
    one, two = loss(outputs, targets, Step()).named(), loss(outputs, targets, Step(ranks=Halved())).named()
    assert one == {name: pytest.approx(float(value)) for name, value in two.items()}


def test_saturated_logits_stay_finite():
    outputs, targets = head_outputs(1, 64, 3), crowd([4], 64, 3)
    for sign in (-200.0, 200.0):
        outputs["objectness"] = torch.full_like(outputs["objectness"], sign)
        outputs["classes"] = torch.full_like(outputs["classes"], sign)
        assert all(math.isfinite(v) for v in SimOTALoss(Network())(outputs, targets, Step()).named().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_at_1280_pixels_stay_finite(dtype):
    outputs = head_outputs(1, 1280, 2, dtype=dtype)
    outputs["boxes"] = torch.cat((outputs["boxes"][..., :2] - 600, outputs["boxes"][..., 2:] + 600), -1)
    for name in ("boxes", "objectness", "classes"):
        outputs[name].requires_grad_()
    targets = BoxTargets.pad([torch.tensor([[0.0, 0, 1280, 1280], [100, 100, 130, 140]])], [torch.tensor([0, 1])])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = SimOTALoss(Network())(outputs, targets, Step())
    terms.total.backward()
    assert terms.total.dtype == torch.float32
    assert all(math.isfinite(v) for v in terms.named().values())
    assert all(torch.isfinite(outputs[n].grad).all() for n in ("boxes", "objectness", "classes"))


def test_shapes_never_depend_on_data():
    from torch._subclasses.fake_tensor import FakeTensorMode

    # Fake tensors hold no data: an operation whose shape or control flow needs some raises.
    with FakeTensorMode() as mode:
        outputs = {k: mode.from_tensor(v) for k, v in head_outputs(2, 64, 3).items()}
        targets = crowd([3, 0], 64, 3).map(mode.from_tensor)
        assert SimOTALoss(Network())(outputs, targets, Step()).total.shape == ()
