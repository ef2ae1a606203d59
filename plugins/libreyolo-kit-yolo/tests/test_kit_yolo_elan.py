"""ELAN blocks, box distributions and complete IoU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.ops import complete_box_iou

from libreyolo_kit_yolo.blocks import ConvNormAct, fuse_norms
from libreyolo_kit_yolo.boxes import paired_ciou, pairwise_ciou
from libreyolo_kit_yolo.dfl import boxes_from_distributions, distribution_focal, expectation
from libreyolo_kit_yolo.elan import ELAN, AConv, ADown, RepBottleneck, RepConv, rep_csp_conv


def settled(module):
    """The module in evaluation, with norms that are not the identity."""
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            for values in (norm.running_mean, norm.weight, norm.bias):
                nn.init.normal_(values)
    return module.eval()


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (5, 1)])
def test_a_pair_of_convolutions_becomes_one_that_computes_the_same(kernel, stride):
    layer, x = settled(RepConv(4, 6, kernel, stride)), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        wanted = layer(x)
        torch.testing.assert_close(wanted, F.silu(layer.conv1(x) + layer.conv2(x)))
        fuse_norms(layer)
        fuse_norms(layer)
        # Scaling and adding weights instead of sums rounds differently.
        torch.testing.assert_close(layer(x), wanted, atol=1e-5, rtol=1e-5)
    assert list(layer.state_dict()) == ["conv1.weight", "conv1.bias"]


def test_a_layer_of_pairs_fuses_as_a_whole():
    layer, x = settled(ELAN(6, 10, 8, block=lambda c: rep_csp_conv(c, 2))), torch.randn(2, 6, 8, 8)
    with torch.no_grad():
        wanted = layer(x)
        fuse_norms(layer)
        torch.testing.assert_close(layer(x), wanted, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in layer.modules())


def test_the_second_half_passes_through_both_blocks_and_all_parts_are_merged():
    layer = settled(ELAN(4, 6, 8, block=lambda c: ConvNormAct(c, c, 3)))
    x = torch.randn(1, 4, 6, 6)
    y = layer.cv1(x)
    first = layer.cv2(y[:, 4:])
    wanted = layer.cv4(torch.cat((y[:, :4], y[:, 4:], first, layer.cv3(first)), 1))
    torch.testing.assert_close(layer(x), wanted)


def test_names_inside_a_layer_are_those_of_published_weights():
    keys = set(ELAN(4, 6, 8, block=lambda c: rep_csp_conv(c, 1)).state_dict())
    for key in ("cv1", "cv2.0.cv1", "cv2.0.m.0.cv1.conv1", "cv2.0.m.0.cv1.conv2", "cv2.0.m.0.cv2", "cv3.1", "cv4"):
        assert f"{key}.conv.weight" in keys


def test_a_bottleneck_of_a_pair_is_residual():
    layer, x = settled(RepBottleneck(4)), torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(layer(x), x + layer.cv2(layer.cv1(x)))


@pytest.mark.parametrize("side", [8, 18])
def test_strided_layers_halve_even_maps_and_average_without_padding(side):
    x = torch.randn(1, 4, side, side + 2)
    mean = (x[..., :-1, :-1] + x[..., 1:, :-1] + x[..., :-1, 1:] + x[..., 1:, 1:]) / 4
    plain, split = settled(AConv(4, 6)), settled(ADown(4, 6))
    torch.testing.assert_close(plain(x), plain.cv(mean))
    pooled = F.max_pool2d(mean[:, 2:], 3, 2, 1)
    torch.testing.assert_close(split(x), torch.cat((split.cv1(mean[:, :2]), split.cv2(pooled)), 1))
    assert plain(x).shape == split(x).shape == (1, 6, side // 2, side // 2 + 1)


def random_boxes(*shape):
    boxes = torch.rand(*shape, 4) * 50
    boxes[..., 2:] += boxes[..., :2] + 0.5
    return boxes


def by_axis(boxes):
    return boxes.mT.unflatten(0, (2, 2)).unbind()


def test_complete_overlaps_agree_with_torchvision():
    torch.manual_seed(0)
    boxes = random_boxes(2, 40)
    found = pairwise_ciou(boxes[:, :9], boxes)
    for i in range(2):
        torch.testing.assert_close(found[i], complete_box_iou(boxes[i, :9], boxes[i]), atol=1e-5, rtol=1e-5)
    paired = paired_ciou(by_axis(boxes[0]), by_axis(boxes[1]))
    torch.testing.assert_close(paired, complete_box_iou(*boxes).diagonal(), atol=1e-5, rtol=1e-5)


def test_complete_overlap_pulls_a_box_towards_its_target_and_is_finite_at_the_edges():
    truth = torch.tensor([[10.0, 10, 30, 30], [10, 10, 30, 30], [0, 0, 0, 0], [5, 5, 25, 45]])
    boxes = torch.tensor([[40.0, 40, 50, 50], [10, 10, 30, 30], [0, 0, 0, 0], [6, 5, 25, 45]], requires_grad=True)
    found = paired_ciou(by_axis(boxes), by_axis(truth))
    found.sum().backward()
    found = found.detach()
    assert found[0] < 0 and found[1] == pytest.approx(1.0, abs=1e-6) and 0.9 < found[3] < 1
    assert torch.isfinite(found).all() and torch.isfinite(boxes.grad).all()
    assert (boxes.grad[0, :2] < 0).all() and boxes.grad[3, 0] < 0
    assert torch.isfinite(pairwise_ciou(truth[None], boxes.detach()[None])).all()


def test_distributions_are_read_as_their_mean_distance_from_the_middle():
    bins = torch.full((1, 2, 4, 16), -1e4)
    bins[0, 0, :, 3] = bins[0, 0, :, 4] = 0.0  # half and half
    bins[0, 1, torch.arange(4), torch.tensor([0, 1, 2, 15])] = 0.0
    middle, stride = torch.tensor([[100.0, 60], [16, 16]]), torch.tensor([[8.0], [32]])
    boxes = boxes_from_distributions(bins.flatten(2).half(), middle, stride)
    assert boxes.tolist() == [[[72.0, 32, 128, 88], [16, -16, 80, 496]]]
    assert float(expectation(torch.full((16,), 1 / 16))) == pytest.approx(7.5)


def test_distribution_focal_loss_is_cross_entropy_of_the_two_nearest_bins():
    torch.manual_seed(0)
    logits, distances = torch.randn(5, 4, 16), torch.rand(5, 4) * 14.99
    distances[0] = torch.tensor([0.0, 3.0, 14.0, 14.99])
    log_p, low = logits.log_softmax(-1), distances.floor().long()
    picked = [log_p.gather(-1, (low + i)[..., None])[..., 0] for i in (0, 1)]
    wanted = -(picked[0] * (low + 1 - distances) + picked[1] * (distances - low)).mean(-1)
    torch.testing.assert_close(distribution_focal(log_p, distances), wanted)
