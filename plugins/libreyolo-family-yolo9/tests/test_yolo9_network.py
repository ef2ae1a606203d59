"""The network against recorded numbers, and its inference form."""

import pytest
import torch
from torch import nn

from libreyolo_core.testing.deterministic import image_for, tensor_for
from libreyolo_core.testing.rounding import gradient_agreement
from libreyolo_kit_yolo.blocks import offset_norms
from libreyolo_kit_yolo.elan import RepConv
from libreyolo_kit_yolo.grids import level_sizes

# Evaluation of a network filled with ``tensor_for(key, shape, gain=1.4)`` on ``image_for("sheet", (1, 3, 96, 96))``:
# mean, standard deviation, and values at four flat positions, of the raw maps at two strides and of the predictions.
RECORDED = {
    ("t", 8): (-0.001296, 0.110207, (-0.026851, 0.070339, -0.088411, -0.022669)),
    ("t", 32): (0.001507, 0.119862, (-0.061075, -0.113710, 0.006140, -0.078024)),
    ("t", 0): (2.777929, 23.042089, (-55.096851, 0.499447, 0.492630, 0.480504)),
    ("s", 8): (0.009394, 0.109785, (0.008546, 0.000938, -0.193283, 0.206041)),
    ("s", 32): (-0.014926, 0.108492, (-0.051497, -0.069626, 0.163539, -0.055619)),
    ("s", 0): (2.788168, 23.070861, (-54.540817, 0.508987, 0.440737, 0.486099)),
    ("m", 8): (0.002777, 0.124442, (-0.018891, 0.065702, -0.233717, -0.056358)),
    ("m", 32): (0.000713, 0.109613, (-0.075561, -0.073516, 0.046888, -0.205663)),
    ("m", 0): (2.795500, 23.075515, (-54.780682, 0.484692, 0.491554, 0.448765)),
    ("c", 8): (-0.004870, 0.124632, (-0.023397, 0.069612, -0.036039, 0.228509)),
    ("c", 32): (-0.002097, 0.110758, (-0.077241, -0.164336, -0.068943, -0.158025)),
    ("c", 0): (2.765519, 23.003466, (-54.690884, 0.450567, 0.481328, 0.460576)),
}


def fill(network, gain):
    """Give every entry its deterministic value; on a meta network this is also what allocates it."""
    state = {
        key: torch.from_numpy(tensor_for(key, tuple(value.shape), gain))
        if value.is_floating_point()
        else torch.tensor(0)
        for key, value in network.state_dict().items()
    }
    network.load_state_dict(state, assign=True)
    return network


def evaluated(network, images):
    """Raw maps by stride and, under 0, the predictions, flat and in the layout of the recorded numbers."""
    outputs, side = network(images), tuple(images.shape[-2:])
    rows = torch.cat((outputs["distributions"], outputs["classes"]), -1).mT
    levels = rows.split(level_sizes(side, network.strides), 2)
    found = network.predictions(outputs, side)
    maps = {stride: level.flatten() for stride, level in zip(network.strides, levels, strict=True)}
    return {**maps, 0: torch.cat((found.boxes, found.scores), -1).mT.flatten()}


@pytest.mark.parametrize("size", ["t", "s", "m", "c"])
def test_every_size_computes_the_recorded_values(build, size):
    with torch.device("meta"):
        network = build(size)
    fill(network, 1.4).eval()
    with torch.no_grad():
        arrays = evaluated(network, torch.from_numpy(image_for("sheet", (1, 3, 96, 96))))
    for (of, what), (mean, std, values) in RECORDED.items():
        if of == size:
            flat = arrays[what]
            count = flat.numel()
            found = flat[[0, count // 3, 2 * count // 3, count - 1]]
            # Six digits after the point were recorded; sums of other kernels may differ in the last one.
            torch.testing.assert_close(found, torch.tensor(values), atol=2e-6, rtol=1e-6)
            assert float(flat.mean()) == pytest.approx(mean, abs=2e-6)
            assert float(flat.std()) == pytest.approx(std, abs=2e-6, rel=1e-6)


def test_predictions_equal_the_reference_before_and_after_deployment(build, reference, sheet):
    network = build("t", auxiliary=True).eval()
    network.load_state_dict(reference.state(network.state_dict()), strict=False)
    images = reference.images(reference.content["input"], sheet.input)
    side = tuple(images.shape[-2:])
    with torch.no_grad():
        before = network.predictions(network(images), side)
        after = network.deploy().predictions(network(images), side)
    assert reference.compare_predictions(before) == reference.compare_predictions(after) == []
    assert before.levels == (400, 100, 25)


def test_the_deployed_network_has_one_convolution_for_each_pair_and_no_norm(build):
    network = build("t", nc=3, auxiliary=True).deploy()
    pairs = [m for m in network.modules() if isinstance(m, RepConv)]
    assert len(pairs) == 42 and all(type(p.conv1) is nn.Conv2d and p.conv2 is None for p in pairs)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    assert not any("aux" in name for name, _ in network.named_parameters())


def test_rectangular_inputs_keep_rows_and_cells_together(build):
    network = build("t", nc=3).eval()
    with torch.no_grad():
        outputs = network(torch.zeros(1, 3, 64, 96))
    predictions = network.predictions(outputs, (64, 96))
    assert predictions.levels == (96, 24, 6)
    assert predictions.boxes.shape == (1, 126, 4)
    assert outputs["cells"][[0, 95, 96, 125]].tolist() == [[0, 0, 8], [11, 7, 8], [0, 0, 16], [2, 1, 32]]


def test_boxes_are_distances_from_the_middle_of_a_cell(build):
    network = build("t", nc=3).eval()
    with torch.no_grad():
        outputs = network(torch.zeros(1, 3, 32, 32))
        sides = torch.full((4, 16), -1e4)
        sides[torch.arange(4), torch.tensor([0, 1, 2, 15])] = 0.0
        outputs["distributions"][:] = sides.flatten()
        boxes = network.predictions(outputs, (32, 32)).boxes[0]
    assert boxes[1].tolist() == [12.0, -4.0, 12.0 + 16.0, 4.0 + 15 * 8.0]
    assert boxes[-1].tolist() == [16.0, 16.0 - 32.0, 16.0 + 64.0, 16.0 + 15 * 32.0]


def test_channels_last_computes_the_same(build):
    network, images = fill(build("t", nc=3), 1.4).eval(), torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        plain = network(images)
        last = network.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    for name, value in plain.items():
        # Sums run in another order.
        torch.testing.assert_close(last[name], value, atol=1e-4, rtol=1e-4)


def test_a_network_from_scratch_starts_with_the_published_biases(build):
    network = build("t", nc=3, auxiliary=True)
    for head in (network.head, network.aux_head):
        assert all((tower[2].bias == 1.0).all() for tower in head.cv2)
        assert all((tower[2].bias == -10.0).all() for tower in head.cv3)


def test_only_new_class_layers_get_their_bias_again(build):
    network = fill(build("t", nc=3, auxiliary=True), 1.0)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    network.reset_classes()
    changed = {k for k, v in network.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {f"{head}.cv3.{i}.2.bias" for head in ("head", "aux_head") for i in range(3)}


def test_the_class_towers_have_the_width_they_are_given_whatever_the_class_count(build):
    assert build("t", nc=1).head.cv3[0][2].weight.shape == (1, 80, 1, 1)
    assert build("t", nc=1, class_width=64).head.cv3[2][1].conv.weight.shape == (64, 64, 3, 3)


@pytest.mark.parametrize("size, count", [("t", 221), ("s", 221), ("m", 149), ("c", 154)])
def test_norm_constants_are_those_of_the_architecture(build, size, count):
    with torch.device("meta"):
        norms = [m for m in build(size).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == count
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.03)}


def test_rounding_does_not_decide_the_first_gradient(build):
    network, images = build("t"), torch.from_numpy(image_for("rounding", (4, 3, 64, 64)))
    kept = gradient_agreement(network, images)
    offset_norms(network, 0.0)
    assert gradient_agreement(network, images) < 0.4 < 0.75 < kept
