"""The loss: recorded values, the L1 term, edges, learning, and how many operations it takes."""

import math

import pytest
import torch

from libreyolo_core.errors import ConfigError
from libreyolo_core.losses import Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing import count_step
from libreyolo_family_yolox.loss import YOLOXLoss
from libreyolo_kit_yolo.boxes import boxes_from_offsets
from libreyolo_kit_yolo.grids import cell_grid, flatten_levels


def recorded_step(build, reference, sheet):
    """Network, input and targets of the reference's training step."""
    network = build("n").train()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["loss"]["input"], sheet.input)
    return network, images, reference.targets(tuple(images.shape[-2:]))


def test_terms_and_gradients_equal_the_reference(build, reference, sheet):
    network, images, targets = recorded_step(build, reference, sheet)
    terms = YOLOXLoss(network, **sheet.loss.options)(network(images), targets, Step())
    named = {k: float(v) for k, v in terms.named().items()} | {"total_loss": float(terms.total.detach())}
    problems, compared = reference.compare_loss(named)
    assert problems == []
    assert {"total_loss", "iou_loss", "obj_loss", "cls_loss", "num_fg"} <= set(compared)
    terms.total.backward()
    recorded = reference.content["loss"]["gradient"]
    gradients = {name: float(p.grad.norm()) for name, p in network.named_parameters()}
    total = math.sqrt(sum(g * g for g in gradients.values()))
    assert total == pytest.approx(recorded["total_l2_norm"], rel=1e-3)
    for name, norm in recorded["l2_norm_by_parameter"].items():
        assert gradients[name] == pytest.approx(norm, rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize("l1, wanted", [(0.0, 107.54613), (1.0, 109.66395)])
def test_hand_made_maps_give_the_recorded_terms(build, l1, wanted):
    network = build("n", nc=3)
    maps = []
    for level, stride in enumerate(network.strides):
        shape = (2, 8, 128 // stride, 128 // stride)
        index = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
        maps.append(torch.sin(0.37 * index + level).float())
    cells = cell_grid(maps, network.strides)
    rows = flatten_levels(maps)
    outputs = {
        "boxes": boxes_from_offsets(rows[..., :4], cells.table),
        "objectness": rows[..., 4],
        "classes": rows[..., 5:],
        "cells": cells.table,
        "levels": cells.levels,
        "raw": rows[..., :4],
    }
    first = torch.tensor([[0.10, 0.15, 0.45, 0.60], [0.40, 0.30, 0.95, 0.85], [0.02, 0.02, 0.06, 0.05]]) * 128
    second = torch.tensor([[0.0, 0.0, 1.0, 1.0]]) * 128
    targets = BoxTargets.pad([first, second], [torch.tensor([0, 2, 1]), torch.tensor([1])])
    terms = YOLOXLoss(network, l1=l1)(outputs, targets, Step())
    named = {k: float(v) for k, v in terms.named().items() if k != "num_fg"}
    recorded = {"iou": 4.554731, "obj": 100.62525, "cls": 2.366140} | ({"l1": 2.117818} if l1 else {})
    assert named == {k: pytest.approx(v, rel=1e-5) for k, v in recorded.items()}
    assert float(terms.total) == pytest.approx(wanted, rel=1e-6)


def test_switching_l1_on_adds_one_term_and_changes_no_other(build, random_targets):
    network, targets = build("n", nc=3).eval(), random_targets([3, 1], 64, 3)
    images = torch.rand(2, 3, 64, 64) * 255
    with torch.no_grad():
        off = YOLOXLoss(network)(network(images), targets, Step()).named()
        network.configure(l1=True)
        on = YOLOXLoss(network, l1=1.0)(network(images), targets, Step()).named()
    assert set(on) == {*off, "l1"}
    assert {k: v for k, v in on.items() if k != "l1"} == off
    assert on["l1"] > 0


def test_l1_without_the_undecoded_boxes_is_an_error_that_says_what_to_set(build, random_targets):
    network = build("n", nc=3).eval()
    with pytest.raises(ConfigError, match=r"network\.l1"):
        YOLOXLoss(network, l1=1.0)(network(torch.zeros(1, 3, 64, 64)), random_targets([1], 64, 3), Step())


@pytest.mark.parametrize("counts", [[0, 0], [3, 0]])
def test_images_without_boxes_give_every_parameter_a_finite_gradient(build, random_targets, counts):
    network = build("n", nc=3).train()
    network.configure(l1=True)
    terms = YOLOXLoss(network, l1=1.0)(network(torch.rand(2, 3, 64, 64) * 255), random_targets(counts, 64, 3), Step())
    terms.total.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())
    named = terms.named()
    assert all(torch.isfinite(v) for v in named.values())
    assert (float(named["num_fg"]) > 0) == any(counts)
    if not any(counts):
        assert named["iou"] == named["cls"] == named["l1"] == 0 < named["obj"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_steps_are_finite_and_boxes_stay_float32(build, random_targets, dtype):
    network = build("n", nc=3).train()
    with torch.autocast("cpu", dtype=dtype):
        outputs = network(torch.rand(2, 3, 64, 64) * 255)
        terms = YOLOXLoss(network)(outputs, random_targets([3, 1], 64, 3), Step())
    assert outputs["classes"].dtype == dtype and outputs["boxes"].dtype == torch.float32
    terms.total.backward()
    assert all(torch.isfinite(v) for v in terms.named().values())
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_one_batch_is_learnt_by_heart(build, random_targets):
    network, targets = build("n", nc=2).train(), random_targets([2, 1], 64, 2, seed=3, smallest=12.0)
    images = torch.rand(2, 3, 64, 64) * 60
    for i, (boxes, labels, valid) in enumerate(zip(targets.boxes, targets.labels, targets.valid, strict=True)):
        for (x1, y1, x2, y2), label in zip(boxes[valid].int().tolist(), labels[valid].tolist(), strict=True):
            images[i, label, y1:y2, x1:x2] = 230.0
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    loss, history = YOLOXLoss(network), []
    for _ in range(100):
        total = loss(network(images), targets, Step()).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        history.append(float(total.detach()))
    assert min(history[-10:]) < 0.5 * history[0]


def test_a_step_takes_fewer_operations_than_the_reference(build, reference, sheet):
    network, images, targets = recorded_step(build, reference, sheet)
    count = count_step(network, YOLOXLoss(network), images, targets)
    shares = count.shares(reference.content["loss"]["aten_ops"])
    assert shares["loss"] <= 0.6 and shares["loss without views"] <= 0.6
    assert shares["all"] <= 0.85 and shares["all without views"] <= 0.85
    assert count.host_sync == 0


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_operations_do_not_grow_with_the_batch(build, random_targets, memory_format):
    network = build("n", nc=3).train().to(memory_format=memory_format)
    found = []
    for batch in (2, 16):
        images = torch.rand(batch, 3, 64, 64).contiguous(memory_format=memory_format)
        targets = random_targets([5, 0] * (batch // 2), 64, 3)
        found.append([c.total for c in count_step(network, YOLOXLoss(network), images, targets)])
    assert found[0] == found[1]


def test_more_than_a_hundred_boxes_in_an_image_all_count(build, random_targets):
    network, targets = build("n", nc=3).eval(), random_targets([130], 256, 3)
    loss = YOLOXLoss(network)
    with torch.no_grad():
        found = loss.assign(network(torch.zeros(1, 3, 256, 256)), targets)
    matched = found.matches.target[found.matches.positive]
    assert int(matched.max()) > 100
