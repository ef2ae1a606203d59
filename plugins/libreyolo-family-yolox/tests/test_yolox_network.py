"""The network against recorded numbers, and its inference form."""

import pytest
import torch

from libreyolo_core.testing.deterministic import image_for, tensor_for
from libreyolo_core.testing.rounding import gradient_agreement
from libreyolo_kit_yolo.blocks import offset_norms
from libreyolo_kit_yolo.grids import level_sizes

# Raw evaluation maps (boxes, sigmoid of objectness and of classes) of a network filled with ``tensor_for(key, shape,
# gain=1.3)`` on ``image_for("sheet", (1, 3, 96, 96))``: mean, standard deviation, and values at four flat positions.
RECORDED = {
    ("n", 8): (0.477813, 0.095632, (0.151086, 0.463170, 0.486581, 0.480788)),
    ("n", 16): (0.479865, 0.110909, (-0.000575, 0.495328, 0.516563, 0.493732)),
    ("n", 32): (0.478958, 0.119152, (-0.009191, 0.451686, 0.521866, 0.500034)),
    ("t", 8): (0.481351, 0.091946, (0.224408, 0.483195, 0.527417, 0.524794)),
    ("t", 32): (0.475492, 0.116159, (-0.048070, 0.461557, 0.527216, 0.504236)),
    ("s", 8): (0.482620, 0.092348, (0.129904, 0.453235, 0.517979, 0.512631)),
    ("s", 16): (0.474456, 0.102116, (0.125935, 0.487184, 0.481925, 0.494001)),
    ("s", 32): (0.475446, 0.123771, (-0.024520, 0.481930, 0.494682, 0.530391)),
    ("m", 8): (0.474287, 0.117197, (0.027950, 0.479029, 0.481680, 0.515475)),
    ("m", 32): (0.471794, 0.132142, (-0.196209, 0.468351, 0.506690, 0.468070)),
    ("l", 8): (0.480121, 0.084871, (0.076413, 0.482651, 0.509202, 0.494527)),
    ("l", 32): (0.477537, 0.122363, (-0.043303, 0.480703, 0.534354, 0.500924)),
    ("x", 8): (0.483298, 1.134006, (0.587051, 0.908478, 0.686853, 0.134765)),
    ("x", 32): (0.447045, 0.577615, (0.265834, 0.631144, 0.041083, 0.532113)),
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


def raw_maps(network, images):
    """Evaluation maps by stride, in the layout of the recorded numbers."""
    network.configure(l1=True)
    outputs = network(images)
    rows = torch.cat((outputs["raw"], outputs["objectness"].sigmoid()[..., None], outputs["classes"].sigmoid()), -1)
    counts = level_sizes(images.shape[-2:], network.strides)
    levels = rows.transpose(1, 2).split(counts, 2)
    return {stride: level.flatten() for stride, level in zip(network.strides, levels, strict=True)}


@pytest.mark.parametrize("size", ["n", "t", "s", "m", "l", "x"])
def test_every_size_computes_the_recorded_values(build, size):
    with torch.device("meta"):
        network = build(size)
    fill(network, 1.3).eval()
    with torch.no_grad():
        maps = raw_maps(network, torch.from_numpy(image_for("sheet", (1, 3, 96, 96))))
    for (of, stride), (mean, std, values) in RECORDED.items():
        if of == size:
            flat = maps[stride]
            count = flat.numel()
            found = flat[[0, count // 3, 2 * count // 3, count - 1]]
            # Six digits were recorded; sums of other kernels may differ in the last one.
            torch.testing.assert_close(found, torch.tensor(values), atol=5e-6, rtol=5e-6)
            assert float(flat.mean()) == pytest.approx(mean, abs=2e-6)
            assert float(flat.std()) == pytest.approx(std, abs=2e-6)


def test_predictions_equal_the_reference(build, reference, sheet):
    network = build("n").eval()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["input"], sheet.input)
    with torch.no_grad():
        predictions = network.predictions(network(images), tuple(images.shape[-2:]))
    assert reference.compare_predictions(predictions) == []
    assert predictions.levels == (400, 100, 25)


def test_deployed_network_predicts_the_same(build, reference, sheet):
    network = build("n").eval()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["input"], sheet.input)
    with torch.no_grad():
        predictions = network.deploy().predictions(network(images), tuple(images.shape[-2:]))
    assert reference.compare_predictions(predictions) == []
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules())


def test_rectangular_inputs_keep_rows_and_cells_together(build):
    network = build("n", nc=3).eval()
    with torch.no_grad():
        outputs = network(torch.zeros(1, 3, 64, 96))
    predictions = network.predictions(outputs, (64, 96))
    assert predictions.levels == (96, 24, 6)
    assert predictions.boxes.shape == (1, 126, 4)
    assert outputs["levels"].tolist() == [[12, 8, 8, 0], [6, 4, 16, 96], [3, 2, 32, 120]]
    assert outputs["cells"][[0, 95, 96, 125]].tolist() == [[0, 0, 8], [11, 7, 8], [0, 0, 16], [2, 1, 32]]


def test_outputs_have_one_structure_in_both_modes_and_l1_adds_to_it(build):
    network, images = build("n", nc=3), torch.zeros(2, 3, 64, 64)
    names = ["boxes", "objectness", "classes", "cells", "levels"]
    assert list(network.train()(images)) == list(network.train()(images)) == list(network.eval()(images)) == names
    network.configure(l1=True)
    assert list(network.train()(images)) == [*names, "raw"]
    network.configure(l1=False)
    assert list(network.train()(images)) == names


def test_unknown_options_are_refused(build):
    with pytest.raises(TypeError, match="l2"):
        build("n", nc=3).configure(l2=True)


def test_channels_last_computes_the_same(build):
    network, images = build("n", nc=3).eval(), torch.rand(1, 3, 64, 64) * 255
    with torch.no_grad():
        plain = network(images)
        last = network.to(memory_format=torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    for name, value in plain.items():
        # Sums run in another order.
        torch.testing.assert_close(last[name], value, atol=1e-4, rtol=1e-4)


def test_a_network_from_scratch_starts_at_the_prior(build):
    head = build("n", nc=3).head
    for layer in [*head.cls_preds, *head.obj_preds]:
        torch.testing.assert_close(layer.bias.sigmoid(), torch.full_like(layer.bias, 0.01))


def test_only_new_class_heads_get_the_prior_again(build):
    network = build("n", nc=3)
    before = fill(network, 1.0).state_dict()
    before = {k: v.clone() for k, v in before.items()}
    network.reset_classes()
    changed = {k for k, v in network.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {f"head.cls_preds.{i}.bias" for i in range(3)}


def test_norm_constants_are_those_of_the_architecture(build):
    norms = [m for m in build("n").modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 104
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.03)}


def test_rounding_does_not_decide_the_first_gradient(build):
    network, images = build("n"), torch.from_numpy(image_for("rounding", (4, 3, 64, 64))) * 255
    kept = gradient_agreement(network, images)
    offset_norms(network, 0.0)
    assert gradient_agreement(network, images) < 0.4 < 0.75 < kept
