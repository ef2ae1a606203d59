"""The network: recorded values, padding, keys, weight files, the deployed form."""

import copy

import pytest
import torch
from torch.nn import functional as F

from libreyolo_core.checkpoint import File, fit_classes, identify, load_into, payload, read, write
from libreyolo_core.errors import CheckpointError
from libreyolo_core.testing.counting import OperationCounter
from libreyolo_family_fomo.network import FOMO, SameConv, width
from libreyolo_family_fomo.plugin import FOMO as FAMILY


@pytest.mark.parametrize("size, one, eighty", [("s", 16_034, 23_697), ("m", 21_922, 29_585), ("l", 62_402, 77_649)])
def test_every_size_has_the_stated_number_of_parameters(build, sheet, size, one, eighty):
    assert sum(p.numel() for p in build(size, 1).parameters()) == sheet.sizes[size].params == one
    assert sum(p.numel() for p in build(size, 80).parameters()) == eighty


def test_keys_are_those_of_the_reference_in_its_order(build, reference):
    state = build("s").state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == reference.shapes()
    assert list(state) == list(reference.shapes())


def test_scores_equal_the_reference(build, reference, sheet):
    network = build("s").eval()
    load_into(network, reference.state(network.state_dict()), FAMILY.checkpoint)
    images = reference.images(reference.content["input"], sheet.input)
    with torch.no_grad(), OperationCounter() as counter:
        outputs = network(images)
    found = network.predictions(outputs, (96, 96))
    assert reference.compare_predictions(found) == []
    assert found.scores.sum(1).allclose(torch.ones(2, 12, 12))
    recorded = reference.content["aten_ops_eval_forward"]
    assert counter.total <= recorded["total"]
    assert counter.host_sync == 0


@pytest.mark.parametrize("alpha, widths", [(0.35, [16, 8, 8, 16]), (0.5, [16, 8, 16, 16]), (1.0, [32, 16, 24, 32])])
def test_widths_are_multiples_of_eight(alpha, widths):
    assert [width(c * alpha) for c in (32, 16, 24, 32)] == widths


@pytest.mark.parametrize("side", [6, 7])
def test_a_stride_of_two_pads_an_even_side_at_its_end_only(side):
    conv = SameConv(1, 1, stride=2)
    image = torch.rand(1, 1, side, side)
    before = side % 2
    padded = F.pad(image, (before, 1, before, 1))
    expected = F.conv2d(padded, conv.conv.weight, stride=2)
    assert torch.equal(conv(image), expected)
    assert expected.shape[-1] == (side + 1) // 2


def test_the_grid_has_a_cell_for_every_eight_pixels(build, sheet):
    for size, grid in (("s", 12), ("m", 24), ("l", 28)):
        side = sheet.sizes[size].imgsz
        with torch.no_grad():
            assert build(size, 3).eval()(torch.zeros(1, 3, side, side)).shape == (1, 4, grid, grid)


def test_the_deployed_form_gives_the_same_logits(build, reference, sheet):
    network = build("s").eval()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["input"], sheet.input)
    with torch.no_grad():
        before = network(images)
        deployed = copy.deepcopy(network).deploy()
        after = deployed(images)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in deployed.modules())
    assert (after - before).abs().max() <= 1e-5 * before.abs().max()  # folding changes the rounding of every layer


@pytest.mark.parametrize("size", ["s", "m", "l"])
@pytest.mark.parametrize("nc", [1, 80])
def test_bare_files_tell_size_and_class_count(build, size, nc, tmp_path):
    torch.save({f"module.{k}": v for k, v in build(size, nc).state_dict().items()}, tmp_path / "mine.pth")
    found = identify(read(tmp_path / "mine.pth"), {"fomo": FAMILY})
    assert (found.family, found.task, found.size, found.nc) == ("fomo", "point", size, nc)


def test_another_mobilenet_with_a_head_is_not_claimed(build):
    state = {k: v for k, v in build("s").state_dict().items() if "block_2" not in k}
    with pytest.raises(CheckpointError, match="no installed family recognises"):
        identify(File(state, content=state), {"fomo": FAMILY}, "mine.pth")


def test_files_of_schema_1_0_keep_their_class_names(build, tmp_path):
    names = {0: "nut", 1: "bolt"}
    content = payload(build("m", 2).state_dict(), family="fomo", size="m", task="point", nc=2, names=names, imgsz=192)
    found = identify(read(write(tmp_path / "mine.pt", content)), {"fomo": FAMILY})
    assert (found.size, found.nc, found.imgsz, dict(found.names)) == ("m", 2, 192, names)


def test_eighty_classes_become_three_with_a_fresh_head(build):
    old, new = build("s", 80), FOMO(3, alpha=0.35)
    fresh = fit_classes(new, old.state_dict(), FAMILY.checkpoint, old_nc=80, new_nc=3)
    assert fresh == ["head.weight", "head.bias"]
    after = new.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in old.state_dict().items() if not k.startswith("head"))
