"""Backbones, encoder and small modules of the kit."""

import pytest
import torch

from libreyolo_kit_detr import ElanEncoder, HGNetV2, HybridEncoder, PResNet
from libreyolo_kit_detr.layers import FrozenBatchNorm2d, fuse_all
from libreyolo_kit_detr.queries import anchor_logits
from libreyolo_kit_detr.transformer import SelfAttention, grid_position, to_tokens


@pytest.mark.parametrize(
    ("make", "channels"), [(lambda: PResNet(18), (128, 256, 512)), (lambda: HGNetV2("b4"), (512, 1024, 2048))]
)
def test_backbones_give_three_maps_of_strides_8_16_32(make, channels):
    backbone = make().eval()
    maps = backbone(torch.rand(1, 3, 64, 96))
    assert backbone.channels == channels
    assert [tuple(m.shape[1:]) for m in maps] == [(c, 64 // s, 96 // s) for c, s in zip(channels, (8, 16, 32))]


def test_a_frozen_norm_computes_what_the_trained_one_did_and_loads_its_file():
    norm = torch.nn.BatchNorm2d(4)
    norm(torch.randn(8, 4, 3, 3) * 3 + 1)
    frozen = FrozenBatchNorm2d(4)
    frozen.load_state_dict(norm.state_dict())  # carries num_batches_tracked
    x = torch.randn(2, 4, 3, 3)
    assert torch.equal(frozen.train()(x), norm.eval()(x))
    assert not list(frozen.parameters())


def test_fusing_keeps_the_numbers():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        PResNet(18, freeze_norm=True), HybridEncoder((128, 256, 512), hidden=32, ffn=64, expansion=0.5)
    )
    for module in net.modules():
        if hasattr(module, "running_var"):
            module.running_var.uniform_(0.8, 1.2)
            module.running_mean.normal_(std=0.1)
    net.eval()
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        before = net(x)
        fuse_all(net)
        after = net(x)
    assert not any(isinstance(m, (torch.nn.BatchNorm2d, FrozenBatchNorm2d)) for m in net.modules())
    for a, b in zip(before, after):
        # about forty float32 layers, each rounded differently once its scale sits in the weights
        torch.testing.assert_close(a, b, atol=1e-4 * a.abs().max().item(), rtol=0)


def test_position_codes_are_listed_column_by_column():
    code = grid_position(2, 3, 8, torch.device("cpu"))
    frequency = torch.tensor([1.0, 0.01])
    for index in range(6):
        x, y = index // 2, index % 2
        wanted = torch.cat([(x * frequency).sin(), (x * frequency).cos(), (y * frequency).sin(), (y * frequency).cos()])
        torch.testing.assert_close(code[index], wanted)


def test_anchors_sit_on_cell_centres_and_border_ones_are_invalid():
    logits, valid = anchor_logits([(80, 80), (40, 40), (20, 20)], torch.device("cpu"))
    assert logits.shape == (8400, 4) and int(valid.sum()) == 8084
    assert torch.isinf(logits[~valid[:, 0]]).all() and torch.isfinite(logits[valid[:, 0]]).all()
    row, column = 10, 30
    torch.testing.assert_close(logits[row * 80 + column].sigmoid(), torch.tensor([30.5 / 80, 10.5 / 80, 0.05, 0.05]))


def test_self_attention_equals_torchs_own():
    torch.manual_seed(0)
    ours, theirs = SelfAttention(16, 4), torch.nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x, pos = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    may_attend = torch.rand(5, 5) > 0.3
    may_attend |= torch.eye(5, dtype=torch.bool)
    wanted, _ = theirs(x + pos, x + pos, x, attn_mask=~may_attend)
    torch.testing.assert_close(ours(x, pos, may_attend), wanted)


def test_gradients_through_tokens_do_not_depend_on_the_batch_size():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4).eval()
    norm.running_var.uniform_(0.5, 1.5)
    x, grad = torch.randn(2, 4, 6, 8), torch.randn(2, 48, 4)

    def gradient(rows):
        part = x[rows].clone().requires_grad_()
        to_tokens(norm(part)).backward(grad[rows])
        return part.grad

    torch.testing.assert_close(torch.cat((gradient(slice(0, 1)), gradient(slice(1, 2)))), gradient(slice(0, 2)))


def test_a_backbone_may_have_learnable_affines_and_give_its_coarsest_maps_only():
    backbone = HGNetV2("b0", levels=2, lab=True).eval()
    assert backbone.channels == (512, 1024)
    assert [tuple(m.shape) for m in backbone(torch.rand(1, 3, 64, 96))] == [(1, 512, 4, 6), (1, 1024, 2, 3)]
    labs = [name for name, _ in backbone.named_parameters() if name.endswith("lab.scale")]
    # every convolution with an activation: 5 in the stem, per block its units and two of the aggregation
    assert len(labs) == 5 + 5 * (3 + 2)
    assert "stages.1.downsample.lab.scale" not in labs


def test_elan_encoders_keep_sizes_and_the_numbers_when_fused():
    torch.manual_seed(0)
    net = ElanEncoder((24, 32, 40), hidden=16, ffn=32, width=9, depth=2)
    maps = [torch.rand(1, c, 32 // s, 64 // s) for c, s in zip((24, 32, 40), (1, 2, 4))]
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.uniform_(0.8, 1.2)
            module.running_mean.normal_(std=0.1)
    net.eval()
    with torch.no_grad():
        before = net(maps)
        fuse_all(net)
        after = net(maps)
    assert [tuple(x.shape[1:]) for x in before] == [(16, 32, 64), (16, 16, 32), (16, 8, 16)]
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    for a, b in zip(before, after):
        # about twenty float32 layers, each rounded differently once its scale sits in the weights
        torch.testing.assert_close(a, b, atol=1e-4 * a.abs().max().item(), rtol=0)


def test_gradients_of_an_elan_encoder_do_not_depend_on_the_batch_size():
    torch.manual_seed(0)
    net = ElanEncoder((8, 8), hidden=16, ffn=32, width=6, depth=1).eval()
    images = [torch.randn(2, 8, 8, 8), torch.randn(2, 8, 4, 4)]

    def gradient(rows):
        parts = [x[rows].clone().requires_grad_() for x in images]
        sum((out**2).sum() for out in net(parts)).backward()
        return [x.grad for x in parts]

    whole, first, second = gradient(slice(0, 2)), gradient(slice(0, 1)), gradient(slice(1, 2))
    for a, b, c in zip(whole, first, second):
        torch.testing.assert_close(torch.cat((b, c)), a)
