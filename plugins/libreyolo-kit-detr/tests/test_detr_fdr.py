"""Boxes as distributions of their edges."""

import pytest
import torch
from torch.nn import functional as F

from libreyolo_kit_detr import FDRDecoder, fdr

UP, SCALE = torch.tensor([0.5]), torch.tensor([4.0])


def known_corners():
    """Edge logits [4, 132] of four queries, and their initial boxes."""
    initial = [[0.5, 0.5, 0.25, 0.2], [0.3, 0.4, 0.2, 0.3], [0.7, 0.6, 0.25, 0.2], [0.2, 0.2, 0.1, 0.1]]
    return torch.sin(0.1 * torch.arange(4 * 132.0)).view(4, 132), torch.tensor(initial)


@pytest.mark.parametrize(
    ("scale", "known"),
    [
        (4.0, {17: 0.07599, 20: 0.340393, 24: 0.796655, 31: 1.999999, 32: 4.0}),
        (8.0, {17: 0.113264, 24: 1.359305, 31: 4.000002, 32: 8.0}),
    ],
)
def test_offsets_have_their_known_values_and_are_odd_about_the_middle(scale, known):
    bins = fdr.bin_values(UP, torch.tensor([scale]))
    assert bins.shape == (33,) and (bins.diff() > 0).all() and torch.equal(bins, -bins.flip(0))
    # the known values are rounded to six digits
    assert {i: bins[i].item() for i in known} == pytest.approx(known, abs=5e-6)


def test_distributions_give_their_known_distances_and_boxes():
    corners, initial = known_corners()
    bins, p = fdr.bin_values(UP, SCALE), corners.unflatten(-1, (4, 33)).softmax(-1)
    assert (p @ bins)[0].tolist() == pytest.approx([-0.018894, 0.231362, -0.222101, 0.563116], abs=1e-6)
    boxes = fdr.decode(initial, p, bins, SCALE)
    assert boxes[0].tolist() == pytest.approx([0.493650, 0.508294, 0.234938, 0.239724], abs=1e-6)
    assert boxes[3].tolist() == pytest.approx([0.200755, 0.197890, 0.058334, 0.127153], abs=1e-6)


def test_true_edges_lie_between_their_known_offsets():
    place, share = fdr.encode(
        torch.tensor([0.5, 0.5, 0.2, 0.1]), torch.tensor([0.42, 0.44, 0.63, 0.56]), fdr.bin_values(UP, SCALE), SCALE
    )
    assert place.tolist() == [11, 20, 22, 20]
    # the known values are rounded to four digits
    assert share.tolist() == pytest.approx([0.4148, 0.5852, 0.4084, 0.5852], abs=1e-4)


def test_decoding_what_was_encoded_gives_the_box_back():
    g = torch.Generator().manual_seed(0)
    bins = fdr.bin_values(UP, SCALE)
    initial = torch.rand(50, 4, generator=g) * 0.3 + 0.3
    centre, size = initial.split(2, -1)
    corners = torch.cat((centre - size * 0.6, centre + size * 0.4), -1)
    place, share = fdr.encode(initial, corners, bins, SCALE)
    p = F.one_hot(place, 33) * (1 - share)[..., None] + F.one_hot(place + 1, 33) * share[..., None]
    boxes = fdr.decode(initial, p, bins, SCALE)
    torch.testing.assert_close(boxes[:, :2] - boxes[:, 2:] / 2, corners[:, :2])
    torch.testing.assert_close(boxes[:, :2] + boxes[:, 2:] / 2, corners[:, 2:])


def test_edges_beyond_the_outermost_offsets_lie_on_them():
    initial = torch.tensor([0.5, 0.5, 0.01, 0.01])
    place, share = fdr.encode(initial, torch.tensor([0.0, 0.9, 0.1, 1.0]), fdr.bin_values(UP, SCALE), SCALE)
    assert (place + share).tolist() == [32, 0, 0, 32]


def test_flat_distributions_leave_the_initial_box_and_the_scores_alone():
    head = fdr.QualityHead(act=F.relu)
    flat = torch.full((2, 4, 33), 1 / 33)
    assert (head(flat) == 0).all()
    initial = torch.tensor([[0.5, 0.5, 0.2, 0.1], [0.4, 0.3, 0.1, 0.1]])
    torch.testing.assert_close(fdr.decode(initial, flat, fdr.bin_values(UP, SCALE), SCALE), initial)


def test_a_quality_head_sees_the_four_highest_probabilities_and_their_mean():
    head = fdr.QualityHead(act=F.relu)
    torch.nn.init.normal_(head.reg_conf.layers[-1].weight)
    p = torch.rand(3, 4, 33).softmax(-1)
    seen = [torch.cat((edge.sort(descending=True).values[:4], edge.topk(4).values.mean()[None])) for edge in p[1]]
    torch.testing.assert_close(head(p)[1], head.reg_conf(torch.cat(seen)))


def decoder(**options):
    torch.manual_seed(0)
    return FDRDecoder(3, 32, dim=32, ffn=64, layers=2, points=(3, 6), queries=20, **options)


def test_a_decoder_starts_with_flat_distributions_half_open_gates_and_rare_classes():
    net = decoder()
    assert not net.up.requires_grad and not net.reg_scale.requires_grad
    maps = [torch.randn(1, 32, 8, 8), torch.randn(1, 32, 4, 4)]
    out = net(maps, (128, 128))
    assert (out["corners"] == 0).all()
    torch.testing.assert_close(out["boxes"][0], out["boxes"][2])  # the final layer repeats the initial box
    assert (net.decoder.layers[0].gateway.gate.weight == 0).all()
    assert net.dec_score_head[1].bias[0].item() == pytest.approx(-4.59512, abs=1e-5)
    rays = net.decoder.layers[0].cross_attn.sampling_offsets.bias.view(8, 9, 2).abs().amax(-1)
    torch.testing.assert_close(rays, torch.tensor([1, 2, 3, 1, 2, 3, 4, 5, 6.0]).expand(8, 9))


def test_later_layers_teach_earlier_distributions_but_not_the_initial_box():
    net = decoder()
    for head in net.dec_bbox_head:
        torch.nn.init.normal_(head.layers[-1].weight, std=0.1)
    out = net([torch.randn(1, 32, 8, 8), torch.randn(1, 32, 4, 4)], (128, 128))
    out["boxes"][0].sum().backward()
    assert net.dec_bbox_head[0].layers[-1].weight.grad.abs().sum() > 0
    assert net.pre_bbox_head.layers[-1].weight.grad.abs().sum() == 0
    assert net.enc_bbox_head.layers[-1].weight.grad.abs().sum() == 0


def test_another_number_of_channels_is_projected_and_one_map_may_be_small():
    torch.manual_seed(0)
    net = FDRDecoder(3, 48, dim=32, ffn=64, layers=1, points=(3, 6), queries=20).eval()
    out = net([torch.randn(1, 48, 3, 4), torch.randn(1, 48, 1, 2)], (96, 128))
    assert out["pred_boxes"].shape == (1, 14, 4) and out["pred_logits"].isfinite().all()
