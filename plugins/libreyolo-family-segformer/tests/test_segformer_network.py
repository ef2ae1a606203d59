"""The network against recorded numbers, its two resolutions, its randomness, its inference form."""

import copy

import pytest
import torch
from segformer_cases import REFERENCE, SHEET, batch, keys, network, on_meta, reference_images, reference_network
from torch.nn import functional as F

from libreyolo_core.data.batch import prepare
from libreyolo_core.testing.deterministic import image_for
from libreyolo_family_segformer.encoder import to_map, to_tokens

ENTRIES = {"b0": 208, "b1": 208, "b2": 380, "b3": 644, "b4": 930, "b5": 1172}


@pytest.mark.parametrize("size", SHEET.sizes)
def test_every_size_has_the_published_parameters_and_entries(size):
    net = on_meta(size)
    assert sum(p.numel() for p in net.parameters()) == SHEET.sizes[size].params
    assert len(net.state_dict()) == ENTRIES[size]


def test_keys_come_in_the_order_of_the_reference_and_hold_no_pixel_statistics():
    assert list(on_meta("b0").state_dict()) == list(REFERENCE.content["keys"])


def test_eval_logits_equal_the_reference():
    net = reference_network().eval()
    with torch.no_grad():
        outputs = net(reference_images())
    assert REFERENCE.compare_predictions(net.predictions(outputs, (128, 128))) == []


def test_logits_at_stride_4_of_a_wide_image_equal_recorded_values():
    net = reference_network()
    net.train()
    net.decode_head.batch_norm.eval()
    images = prepare(torch.from_numpy(image_for("segformerb0", (1, 3, 64, 96))) * 255, SHEET.input)
    with torch.no_grad():
        logits = net(images)
    assert logits.shape == (1, 150, 16, 24)
    flat = logits.flatten()
    n = len(flat)
    # recorded with six and five decimals
    assert (flat.mean().item(), flat.std().item(), flat.abs().max().item()) == pytest.approx(
        (0.073647, 0.615219, 2.62509), abs=1e-5
    )
    picked = flat[[0, n // 3, n // 2, n - 1]].tolist()
    assert picked == pytest.approx((0.74021, -0.21386, 0.58936, -0.74472), abs=1e-5)


def test_evaluation_answers_at_the_size_of_the_input_even_off_the_grid():
    net = network().eval()
    with torch.no_grad():
        assert net(torch.randn(1, 3, 50, 70)).shape == (1, 3, 50, 70)
    net.train()
    assert net(torch.randn(2, 3, 50, 70), None, keys(2)).shape == (2, 3, 13, 18)


def published_head(head, maps):
    """The decode head as the paper draws it: project, resize, stack from the coarsest stage, convolve."""
    size = maps[0].shape[-2:]
    levels = []
    for part, x in zip(head.linear_projections, maps):
        level = to_map(part.proj(to_tokens(x)), len(x), x.shape[-2:])
        levels.append(F.interpolate(level, size=size, mode="bilinear", align_corners=False))
    return head.classifier(F.relu(head.batch_norm(head.linear_fuse(torch.cat(levels[::-1], 1)))))


@pytest.mark.parametrize("training", [True, False])
def test_the_merged_head_is_the_published_one_with_the_same_gradients(training):
    net = network().double().train(training)
    images, _, _ = batch(2)
    found, gradients = [], []
    for head in (lambda maps: net.decode_head(maps, None), lambda maps: published_head(net.decode_head, maps)):
        net.zero_grad()
        logits = head(net.encoder(images.double(), None))
        logits.square().sum().backward()
        found.append(logits.detach())
        gradients.append({n: p.grad.clone() for n, p in net.named_parameters()})
    # float64, so only the order of summation is left
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)
    scale = max(g.abs().max() for g in gradients[0].values())
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).abs().max() <= 1e-9 * scale, name


def test_the_gradient_of_one_image_does_not_depend_on_memory_layout():
    net = network().train()
    (images, targets, _), found = batch(1), []
    for layout in (torch.contiguous_format, torch.channels_last):
        net.zero_grad()
        net(images.contiguous(memory_format=layout), targets).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()  # other kernels, other rounding


def test_gradients_have_the_memory_layout_of_their_parameters():
    net = network().train()
    images, targets, draw = batch(2)
    net(images, targets, draw).square().sum().backward()
    assert all(p.grad.stride() == p.stride() for p in net.parameters())


def test_a_sample_is_dropped_alike_in_any_batch():
    net = network().train()
    net.decode_head.batch_norm.eval()
    images, _, draw = batch(4)
    with torch.no_grad():
        whole, half = net(images, None, draw), net(images[2:], None, draw[2:])
    assert (whole[2:] - half).abs().max() <= 1e-5 * whole.abs().max()  # kernels may sum differently per batch size


def test_other_keys_drop_other_things_and_none_drop_nothing():
    net = network().train()
    net.decode_head.batch_norm.eval()
    images, _, _ = batch(2)
    with torch.no_grad():
        first, again, other = (net(images, None, k) for k in (keys(2), keys(2), keys(2, first=9)))
        nothing, evaluated = net(images), net.eval()(images)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first, nothing)
    resized = F.interpolate(nothing, size=images.shape[-2:], mode="bilinear", align_corners=False)
    assert torch.equal(resized, evaluated)


def test_depth_is_dropped_more_often_the_deeper_and_never_in_the_first_block():
    keep = network("b0").encoder.keep
    assert keep.tolist() == pytest.approx([1 - 0.1 * block / 7 for block in range(1, 8) for _ in range(2)])


def test_initial_weights_are_small_and_normal_also_in_a_new_classifier():
    net = network(nc=150)
    net.reset_classes()
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            # four standard errors of a standard deviation
            assert parameter.std().item() == pytest.approx(0.02, rel=4 / (2 * parameter.numel()) ** 0.5), name
        else:
            norm = ("layer_norm" in name or "layernorm" in name or "batch_norm" in name) and name.endswith("weight")
            assert torch.equal(parameter, torch.ones_like(parameter) if norm else torch.zeros_like(parameter)), name


@pytest.mark.parametrize("size", ["b0", "b2"])
def test_the_deployed_form_gives_the_same_logits(size):
    net = network(size).eval()
    with torch.no_grad():
        net.decode_head.batch_norm.running_mean.normal_()
        net.decode_head.batch_norm.running_var.uniform_(0.5, 2)
        images, _, _ = batch(1)
        before, after = net(images), copy.deepcopy(net).deploy().deploy()(images)
    assert (after - before).abs().max() <= 1e-4 * before.abs().max()  # folding changes the rounding of every product
