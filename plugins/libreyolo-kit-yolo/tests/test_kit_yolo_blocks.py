"""Blocks, necks, grids and boxes."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from libreyolo_kit_yolo.blocks import CSP, SPP, Bottleneck, ConvNormAct, DepthwiseSeparable, fuse_norms, prior_bias
from libreyolo_kit_yolo.boxes import boxes_from_distances, boxes_from_offsets, paired_iou, pairwise_iou
from libreyolo_kit_yolo.grids import cell_grid, flatten_levels, level_sizes
from libreyolo_kit_yolo.necks import path_aggregation


def settle_norms(module):
    """Give norms statistics and scales that are not the identity."""
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.normal_(norm.running_mean)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return module.eval()


def test_one_partial_sets_norm_and_activation_of_nested_blocks():
    conv = partial(ConvNormAct, act=nn.Hardswish, eps=1e-5, momentum=0.1)
    spatial = partial(DepthwiseSeparable, conv=conv, names=("depthwise_conv", "pointwise_conv"))
    layer = CSP(
        8,
        12,
        hidden=6,
        blocks=[Bottleneck(6, kernel=5, add=False, conv=conv, spatial=spatial)],
        conv=conv,
        names=("main_conv", "blocks", "short_conv", "final_conv"),
    )
    assert {m.eps for m in layer.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-5}
    assert {type(m.act) for m in layer.modules() if isinstance(m, ConvNormAct)} == {nn.Hardswish}
    assert "blocks.0.conv2.depthwise_conv.conv.weight" in layer.state_dict()
    assert layer(torch.zeros(1, 8, 4, 4)).shape == (1, 12, 4, 4)


def test_csp_puts_the_processed_half_first():
    layer = settle_norms(CSP(4, 8, hidden=4, blocks=[Bottleneck(4)]))
    x = torch.randn(1, 4, 5, 5)
    wanted = layer.conv3(torch.cat((layer.m(layer.conv1(x)), layer.conv2(x)), 1))
    torch.testing.assert_close(layer(x), wanted)


def test_pyramid_pooling_equals_parallel_windows():
    layer, x = settle_norms(SPP(8, 8)), torch.randn(2, 8, 15, 11)
    y = layer.conv1(x)
    wanted = layer.conv2(torch.cat([y, *(F.max_pool2d(y, k, 1, k // 2) for k in (5, 9, 13))], 1))
    assert torch.equal(layer(x), wanted)


def test_fused_blocks_compute_the_same_and_fusing_twice_is_harmless():
    layer = settle_norms(nn.Sequential(ConvNormAct(3, 8, 3, 2), DepthwiseSeparable(8, 8), ConvNormAct(8, 4, act=None)))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        wanted = layer(x)
        fuse_norms(layer)
        fuse_norms(layer)
        # Scaling the weights instead of the sums rounds differently.
        torch.testing.assert_close(layer(x), wanted, atol=1e-5, rtol=1e-5)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in layer.modules())


def test_prior_bias_is_the_logit():
    assert prior_bias(0.01) == pytest.approx(-4.59512, abs=1e-5)


def test_path_aggregation_goes_down_and_back_up():
    levels = [torch.full((1, 1, 8 >> i, 8 >> i), float(10**i)) for i in range(3)]
    added = [lambda x: x.sum(1, keepdim=True)] * 2
    halved = [lambda x: F.avg_pool2d(x, 2)] * 2
    outputs = path_aggregation(
        levels, top_down=added, bottom_up=added, down=halved, reduce=[lambda x: x * 2, lambda x: x * 3]
    )
    assert [o.shape[-1] for o in outputs] == [8, 4, 2]
    # coarse 100*2 -> middle 200+10, *3 -> fine 630+1; back: 631+630, 1261+200
    assert [float(o.mean()) for o in outputs] == [631.0, 1261.0, 1461.0]


def test_cells_and_flattened_maps_run_in_the_same_order():
    maps = [torch.arange(2 * 3 * 2.0).reshape(1, 2, 3, 2), torch.arange(2.0).reshape(1, 2, 1, 1)]
    rows, cells = flatten_levels(maps), cell_grid(maps, (8, 16))
    assert rows[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert cells.table.tolist() == [
        [0, 0, 8],
        [1, 0, 8],
        [0, 1, 8],
        [1, 1, 8],
        [0, 2, 8],
        [1, 2, 8],
        [0, 0, 16],
    ]
    assert cells.levels.tolist() == [[2, 3, 8, 0], [1, 1, 16, 6]]
    assert level_sizes((24, 16), (8, 16)) == (6, 1)


def test_boxes_decode_from_corners_and_from_points():
    table = torch.tensor([[2.0, 1.0, 8.0]])
    assert boxes_from_offsets(torch.tensor([[[0.5, 0.25, 0.0, 0.0]]]), table).tolist() == [[[16.0, 6.0, 24.0, 14.0]]]
    points = torch.tensor([[10.0, 20.0]])
    assert boxes_from_distances(torch.tensor([[[1.0, 2, 3, 4]]]), points).tolist() == [[[9.0, 18.0, 13.0, 24.0]]]


def test_overlaps_agree_with_torchvision():
    from torchvision.ops import box_iou

    torch.manual_seed(0)
    boxes = torch.rand(2, 30, 4) * 50
    boxes[..., 2:] += boxes[..., :2]
    found = pairwise_iou(boxes[:, :7], boxes)
    for i in range(2):
        torch.testing.assert_close(found[i], box_iou(boxes[i, :7], boxes[i]))
    torch.testing.assert_close(paired_iou(boxes[:, :7], boxes[:, 7:14]), found[:, :, 7:14].diagonal(0, 1, 2))


def test_empty_boxes_overlap_nothing_and_have_finite_gradients():
    empty = torch.zeros(1, 2, 4, requires_grad=True)
    assert pairwise_iou(empty, torch.zeros(1, 3, 4)).tolist() == [[[0.0] * 3] * 2]
    paired_iou(empty, torch.zeros(1, 2, 4)).sum().backward()
    assert torch.isfinite(empty.grad).all()
