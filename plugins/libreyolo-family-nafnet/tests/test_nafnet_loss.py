"""The loss and the recipe: recorded values, ranks, precision, operations, parameter groups."""

import math

import pytest
import torch

from libreyolo_core.engine.optimizer import build_optimizer
from libreyolo_core.hub import find, released
from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import ImageTargets
from libreyolo_core.testing.counting import OperationCounter
from libreyolo_core.testing.deterministic import image_for
from libreyolo_family_nafnet.loss import Charbonnier
from libreyolo_family_nafnet.plugin import NAFNET as FAMILY


def uint8(name: str, count: int = 2, side: int = 16) -> ImageTargets:
    """Clean images."""
    return ImageTargets(torch.from_numpy(image_for(name, (count, 3, side, side)) * 255).round().to(torch.uint8))


def test_a_step_equals_the_reference_with_fewer_operations(filled, reference, sheet):
    network = filled.train()
    images = reference.images(reference.content["loss"]["input"], sheet.input)
    targets = reference.targets((64, 64))
    network.zero_grad()
    with OperationCounter() as counter:
        terms = Charbonnier(network)(network(images), targets, Step())
        terms.total.backward()
    named = {k: float(v) for k, v in terms.named().items()} | {"total_loss": float(terms.total.detach())}
    problems, compared = reference.compare_loss(named)
    assert problems == []
    assert set(compared) == {"loss_restore", "psnr", "total_loss"}
    recorded = reference.content["loss"]["gradient"]
    gradients = {name: float(p.grad.norm()) for name, p in network.named_parameters()}
    total = math.sqrt(sum(g * g for g in gradients.values()))
    assert total == pytest.approx(recorded["total_l2_norm"], rel=1e-3)
    for name, norm in recorded["l2_norm_by_parameter"].items():
        assert gradients[name] == pytest.approx(norm, rel=1e-3, abs=1e-6), name
    counts = reference.content["loss"]["aten_ops"]["all"]
    assert counter.total <= 0.6 * counts["total"]
    assert counter.without_views <= 0.6 * counts["without_views"]
    assert counter.host_sync == 0


def test_charbonnier_of_the_recorded_image_against_its_mirror(filled):
    network = filled.eval()
    image = torch.from_numpy(image_for("nafnets", (1, 3, 90, 410)))
    network.configure(local=False)
    with torch.no_grad():
        out = network(image)
    network.configure(local=True)
    total = Charbonnier(network)(out, ImageTargets(image.flip(-1) * 255), Step()).total
    assert float(total) == pytest.approx(1.34028, abs=1e-5)


def test_targets_are_read_as_pixels_of_a_byte():
    targets = uint8("a")
    exact = targets.images / 255.0
    terms = Charbonnier(None, eps=1e-3)(exact, targets, Step())
    assert float(terms.total) == pytest.approx(1e-3, rel=1e-5)
    assert float(terms.extra["psnr"]) == pytest.approx(120.0)  # a mean squared error of 0 counts as 1e-12


def test_psnr_is_of_the_mean_squared_error_and_no_part_of_the_total():
    targets = uint8("b")
    out = (targets.images / 255.0 + 0.1).requires_grad_()
    terms = Charbonnier(None)(out, targets, Step())
    assert float(terms.extra["psnr"]) == pytest.approx(20.0, abs=1e-3)
    assert not terms.extra["psnr"].requires_grad
    assert terms.total.requires_grad


class OneOfTwo(Ranks):
    """A rank whose fellow has ``others`` values."""

    size = 2

    def __init__(self, others: int) -> None:
        self.others = others

    def sum(self, value):
        return value + self.others


def test_two_uneven_ranks_give_the_mean_over_all_images():
    targets = uint8("c", count=3)
    out = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whole = Charbonnier(None)(out, targets, Step()).total
    one = 3 * 16 * 16
    halves = [
        Charbonnier(None)(out[part], ImageTargets(targets.images[part]), Step(ranks=OneOfTwo(others))).total
        for part, others in ((slice(0, 1), 2 * one), (slice(1, 3), one))
    ]
    assert float(sum(halves) / 2) == pytest.approx(float(whole), rel=1e-6)  # gradients are averaged over ranks


def test_half_precision_output_is_compared_in_float32():
    targets = uint8("d")
    out = (targets.images / 255.0).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = Charbonnier(None)(out, targets, Step()).total
    assert total.dtype == torch.float32


def test_scales_of_the_residuals_train_and_are_never_decayed(tiny, sheet):
    network = tiny()
    optimizer = build_optimizer(network, sheet.recipe, fused=False, device=torch.device("cpu"))
    held = [id(p) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in network.parameters())
    scales = {id(p) for n, p in network.named_parameters() if n.endswith(("beta", "gamma"))}
    (group,) = [g for g in optimizer.param_groups if scales & {id(p) for p in g["params"]}]
    assert scales == {id(p) for p in group["params"]}
    assert group["weight_decay"] == 0.0
    assert {g["lr"] for g in optimizer.param_groups} == {1e-3}


def test_released_names_are_those_of_both_layouts():
    families = {"nafnet": FAMILY}
    stems = {f"LibreNAFNet{s}-restore{v}" for s in "sl" for v in ("", "-sidd")}
    assert set(released(families)) == stems
    assert find("LibreNAFNetl-restore-sidd.pt", families).variant == "sidd"
    assert find("nafnet-s", families).stem == "LibreNAFNets-restore"


def test_input_and_augmentation_are_those_of_the_original(sheet):
    rule = sheet.input
    assert (rule.fit, rule.border, rule.multiple, rule.colour) == ("native", "reflect", 16, "rgb")
    assert [(a.name, a.p) for a in sheet.augment] == [
        ("random_crop", 1.0),
        ("flip", 0.5),
        ("flip_vertical", 0.5),
        ("rotate90", 1.0),
    ]
