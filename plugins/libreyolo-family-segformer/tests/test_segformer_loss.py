"""The loss: recorded values, unlabelled pixels, ranks, precision, and how many operations a step takes."""

import math

import pytest
import torch
from segformer_cases import (
    REFERENCE,
    SHEET,
    batch,
    keys,
    network,
    reference_images,
    reference_network,
    reference_targets,
    terms_of,
)
from torch.nn import functional as F

from libreyolo_core.data.batch import prepare
from libreyolo_core.engine.optimizer import build_optimizer
from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import MaskTargets
from libreyolo_core.testing import OperationCounter, count_step
from libreyolo_core.testing.deterministic import image_for
from libreyolo_family_segformer.loss import PixelCrossEntropy


def test_loss_and_gradients_equal_the_reference():
    net, recorded = reference_network().train(), REFERENCE.content["loss"]
    terms = terms_of(net, reference_images(), reference_targets())
    terms.total.backward()
    # 1e-3 relative is the reference's own bound; gradients that are 0 but for rounding are told by their size
    assert terms.named()["sem"].item() == pytest.approx(recorded["components"]["sem"], rel=1e-3)
    norms = {k: p.grad.norm().item() for k, p in net.named_parameters()}
    total = math.sqrt(sum(n * n for n in norms.values()))
    assert total == pytest.approx(recorded["gradient"]["total_l2_norm"], rel=1e-3)
    for name, value in recorded["gradient"]["l2_norm_by_parameter"].items():
        assert norms[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


def test_loss_of_evaluation_logits_equals_the_recorded_value():
    net = reference_network().eval()
    images = prepare(torch.from_numpy(image_for("segformerb0", (1, 3, 64, 96))) * 255, SHEET.input)
    masks = torch.arange(64 * 96) % 151
    masks[masks == 150] = 255
    with torch.no_grad():
        terms = terms_of(net, images, MaskTargets(masks.reshape(1, 64, 96).to(torch.uint8)))
    assert terms.total.item() == pytest.approx(5.17620, abs=2e-5)  # recorded with five decimals


def test_a_batch_without_any_labelled_pixel_costs_nothing_and_still_reaches_every_parameter():
    net = network().train()
    images, targets, draw = batch(2)
    total = terms_of(net, images, MaskTargets(torch.full_like(targets.masks, 255)), draw).total
    total.backward()
    assert total.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


def test_an_image_without_labels_adds_nothing_to_its_batch():
    net = network().train()
    net.decode_head.batch_norm.eval()
    images, targets, draw = batch(2)
    alone = terms_of(net, images[:1], MaskTargets(targets.masks[:1]), draw[:1]).total
    targets.masks[1] = 255
    both = terms_of(net, images, targets, draw).total
    assert both.item() == pytest.approx(alone.item(), rel=1e-5)


class HalfOfTwo(Ranks):
    """One of two ranks; the other one has ``others`` labelled pixels."""

    size = 2

    def __init__(self, others: int) -> None:
        self.others = others

    def sum(self, value):
        return value + self.others


def test_two_uneven_ranks_give_the_mean_over_all_labelled_pixels():
    logits = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    masks = torch.randint(0, 4, (3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    masks[0, :9] = 255
    loss = PixelCrossEntropy(None)
    whole = loss(logits, MaskTargets(masks), Step()).total
    labelled = (masks != 255).sum((1, 2))
    shards = [
        loss(logits[part], MaskTargets(masks[part]), Step(ranks=HalfOfTwo(others))).total
        for part, others in ((slice(0, 1), labelled[1:].sum()), (slice(1, 3), labelled[0]))
    ]
    assert (sum(shards) / 2).item() == pytest.approx(whole.item(), rel=1e-6)  # gradients are averaged over ranks


def test_half_precision_logits_are_resized_and_compared_in_float32():
    logits = torch.randn(1, 5, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    masks = torch.zeros(1, 32, 32, dtype=torch.uint8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = PixelCrossEntropy(None)(logits, MaskTargets(masks), Step()).total
    exact = F.interpolate(logits.double(), size=(32, 32), mode="bilinear", align_corners=False)
    assert total.dtype == torch.float32
    # bfloat16 anywhere in between would be off by 4e-3
    assert total.item() == pytest.approx(F.cross_entropy(exact, masks.long()).item(), rel=1e-6)


def test_squares_of_three_colours_are_learnt_by_heart_with_dropping_on():
    net = network().train()
    images, targets, draw = batch(2)
    optimizer, history = torch.optim.AdamW(net.parameters(), lr=1e-3), []
    for _ in range(25):
        total = terms_of(net, images, targets, draw).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        history.append(total.item())
    assert min(history[-5:]) < 0.3 * history[0]


@pytest.mark.parametrize("recorded, draw", [("aten_ops", None), ("aten_ops_default_training", keys(2))])
def test_a_step_dispatches_fewer_operations_than_the_reference(recorded, draw):
    net = reference_network().train()
    count = count_step(net, PixelCrossEntropy(net), reference_images(), reference_targets(), draw)
    shares = count.shares(REFERENCE.content["loss"][recorded])
    assert shares["all"] <= 0.9 and shares["all without views"] <= 0.95
    assert count.host_sync == 0


def test_the_captured_region_and_evaluation_take_fewer_operations_than_the_reference():
    net = reference_network().train()
    recorded = REFERENCE.content["loss"]["aten_ops_graph_region_forward"]
    with OperationCounter() as region:
        net.region(reference_images(), keys(2))
    assert region.total <= 0.9 * recorded["total"] and region.without_views <= 0.9 * recorded["without_views"]
    recorded = REFERENCE.content["aten_ops_eval_forward"]
    with torch.no_grad(), OperationCounter() as forward:
        net.eval()(reference_images())
    assert forward.total <= 0.9 * recorded["total"] and forward.without_views <= 0.95 * recorded["without_views"]


def test_operations_do_not_grow_with_the_batch():
    net, found = network().train(), []
    for size in (2, 5):
        found.append([c.total for c in count_step(net, PixelCrossEntropy(net), *batch(size))])
    assert found[0] == found[1]


def test_the_recipe_makes_the_four_published_parameter_groups():
    optimizer = build_optimizer(network(nc=150), SHEET.recipe, fused=False, device=torch.device("cpu"))
    found = {
        (round(g["lr"] / 6e-5), g["weight_decay"]): (len(g["params"]), sum(p.numel() for p in g["params"]))
        for g in optimizer.param_groups
    }
    assert found == {
        (1, 0.01): (58, 3_261_024),
        (1, 0): (134, 58_368),
        (10, 0.01): (6, 431_616),
        (10, 0): (7, 1_686),
    }
