"""The loss: recorded values, edges, learning, and how many operations it takes."""

import math

import pytest
import torch

from libreyolo_core.losses import Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing import count_step
from libreyolo_family_yolo9.loss import YOLO9Loss
from libreyolo_kit_yolo.grids import cell_grid, flatten_levels
from libreyolo_kit_yolo.tal import Branch, TaskAlignedLoss


def recorded_step(build, reference, sheet):
    """Network, input and targets of the reference's training step, which has no auxiliary branch."""
    network = build("t").train()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["loss"]["input"], sheet.input)
    return network, images, reference.targets(tuple(images.shape[-2:]))


def test_terms_and_gradients_equal_the_reference(build, reference, sheet):
    network, images, targets = recorded_step(build, reference, sheet)
    terms = YOLO9Loss(network, **sheet.loss.options)(network(images), targets, Step())
    named = {k: float(v) for k, v in terms.named().items()} | {"total_loss": float(terms.total.detach())}
    problems, compared = reference.compare_loss(named)
    assert problems == []
    assert {"total_loss", "box_loss", "dfl_loss", "cls_loss", "num_fg"} <= set(compared)
    terms.total.backward()
    recorded = reference.content["loss"]["gradient"]
    gradients = {name: float(p.grad.norm()) for name, p in network.named_parameters()}
    total = math.sqrt(sum(g * g for g in gradients.values()))
    assert total == pytest.approx(recorded["total_l2_norm"], rel=1e-3)
    for name, norm in recorded["l2_norm_by_parameter"].items():
        assert gradients[name] == pytest.approx(norm, rel=2e-3), name


def hand_made(offset=0.0):
    """Level maps sin(0.37 k + level), as outputs of a network of 3 classes for two images of 128 pixels."""
    maps = []
    for level, stride in enumerate((8, 16, 32)):
        shape = (2, 67, 128 // stride, 128 // stride)
        index = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
        maps.append(torch.sin(0.37 * index + offset + level).float())
    rows, cells = flatten_levels(maps), cell_grid(maps, (8, 16, 32))
    return {"distributions": rows[..., :64], "classes": rows[..., 64:], "cells": cells.table}


def hand_made_targets():
    first = torch.tensor([[0.10, 0.15, 0.45, 0.60], [0.40, 0.30, 0.95, 0.85], [0.02, 0.02, 0.06, 0.05]]) * 128
    second = torch.tensor([[0.0, 0.0, 1.0, 1.0]]) * 128
    return BoxTargets.pad([first, second], [torch.tensor([0, 2, 1]), torch.tensor([1])])


NO_BOXES = ([torch.zeros(0, 4)] * 2, [torch.zeros(0, dtype=torch.int64)] * 2)
RECORDED = {"box": 3.436445, "dfl": 4.659484, "cls": 86.409576, "num_fg": 15.0}


@pytest.mark.parametrize(
    "targets, total, recorded",
    [
        (hand_made_targets(), 94.505508, RECORDED),
        (BoxTargets.pad(*NO_BOXES), 759.327209, {"box": 0.0, "dfl": 0.0, "cls": 759.327209, "num_fg": 0.0}),
    ],
    ids=["boxes", "no boxes"],
)
def test_hand_made_maps_give_the_recorded_terms(targets, total, recorded):
    terms = YOLO9Loss(None)(hand_made(), targets, Step())
    assert {k: float(v) for k, v in terms.named().items()} == {
        k: pytest.approx(v, rel=2e-6) for k, v in recorded.items()
    }
    assert float(terms.total) == pytest.approx(total, rel=1e-6)


def test_branches_with_other_numbers_of_cells_per_target_give_the_recorded_terms():
    outputs = hand_made() | {f"single_{k}": v for k, v in hand_made(10.0).items()}
    loss = TaskAlignedLoss(None, branches=(Branch(), Branch("single", topk=1)))
    named = {k: float(v) for k, v in loss(outputs, hand_made_targets(), Step()).named().items()}
    single = {"single_box": 2.880495, "single_dfl": 4.342805, "single_cls": 546.564331}
    assert named == {k: pytest.approx(v, rel=2e-6) for k, v in (RECORDED | single).items()}


@pytest.mark.parametrize("counts", [[0, 0], [3, 0]])
def test_images_without_boxes_give_every_parameter_a_finite_gradient(build, random_targets, counts):
    network = build("t", nc=3, auxiliary=True).train()
    terms = YOLO9Loss(network)(network(torch.rand(2, 3, 64, 64)), random_targets(counts, 64, 3), Step())
    terms.total.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())
    named = terms.named()
    assert all(torch.isfinite(v) for v in named.values())
    assert (float(named["num_fg"]) > 0) == any(counts)
    if not any(counts):
        assert named["box"] == named["dfl"] == named["aux_box"] == 0 < named["cls"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_steps_are_finite_and_the_loss_stays_float32(build, random_targets, dtype):
    network = build("t", nc=3, auxiliary=True).train()
    with torch.autocast("cpu", dtype=dtype):
        outputs = network(torch.rand(2, 3, 64, 64))
        terms = YOLO9Loss(network)(outputs, random_targets([3, 1], 64, 3), Step())
    assert outputs["classes"].dtype == outputs["distributions"].dtype == dtype
    assert {t.dtype for t in terms.terms.values()} == {torch.float32}
    terms.total.backward()
    assert all(torch.isfinite(v) for v in terms.named().values())
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_one_batch_is_learnt_by_heart(build, random_targets):
    network, targets = build("t", nc=2).train(), random_targets([2, 1], 64, 2, seed=3, smallest=16.0)
    images = torch.rand(2, 3, 64, 64) * 0.25
    for i, (boxes, labels, valid) in enumerate(zip(targets.boxes, targets.labels, targets.valid, strict=True)):
        for (x1, y1, x2, y2), label in zip(boxes[valid].int().tolist(), labels[valid].tolist(), strict=True):
            images[i, label, y1:y2, x1:x2] = 0.9
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    loss, overlap = YOLO9Loss(network), []
    for _ in range(30):
        terms = loss(network(images), targets, Step())
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        # A cell's class score grows with its overlap, so the box term alone tells how well boxes fit.
        overlap.append(float(terms.terms["box"].detach()))
    assert min(overlap[-10:]) < 0.4 * max(overlap[:20])


def test_a_step_takes_fewer_operations_than_the_reference(build, reference, sheet):
    network, images, targets = recorded_step(build, reference, sheet)
    count = count_step(network, YOLO9Loss(network), images, targets)
    shares = count.shares(reference.content["loss"]["aten_ops"])
    assert shares["loss"] <= 0.6 and shares["loss without views"] <= 0.68
    assert shares["all"] <= 0.95 and shares["all without views"] <= 0.95
    assert count.host_sync == 0


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_operations_do_not_grow_with_the_batch(build, random_targets, memory_format):
    network = build("t", nc=3, auxiliary=True).train().to(memory_format=memory_format)
    found = []
    for batch in (2, 16):
        images = torch.rand(batch, 3, 64, 64).contiguous(memory_format=memory_format)
        targets = random_targets([5, 0] * (batch // 2), 64, 3)
        found.append([c.total for c in count_step(network, YOLO9Loss(network), images, targets)])
    assert found[0] == found[1]


def test_a_second_branch_costs_the_loss_no_more_than_its_stacking(build, random_targets):
    found = []
    for auxiliary in (False, True):
        network = build("t", nc=3, auxiliary=auxiliary).train()
        images, targets = torch.rand(2, 3, 64, 64), random_targets([5, 0], 64, 3)
        found.append(count_step(network, YOLO9Loss(network), images, targets).loss.total)
    assert found[1] - found[0] <= 12


def test_more_than_a_hundred_boxes_in_an_image_all_count(build, random_targets):
    network, targets = build("t", nc=3).eval(), random_targets([130], 256, 3, smallest=16.0)
    loss = YOLO9Loss(network)
    with torch.no_grad():
        out = network(torch.zeros(1, 3, 256, 256))
        slots = loss.assign(out["distributions"], out["classes"], out["cells"], targets, [Branch()])
    assert int(slots.positive[0].any(1).nonzero().max()) > 100
