"""Dropping whole branches and single elements from keyed words."""

import pytest
import torch

from libreyolo_core.draw import bits, drop_paths, dropout, key, site


def words(samples, count, name="here"):
    return bits(torch.tensor([key(3, 0, i) for i in range(samples)]), site(name), count)


def test_branches_are_dropped_at_their_own_rates_and_keep_their_mean():
    keep = torch.tensor([0.9, 0.5, 0.75])
    scales = drop_paths(words(20_000, 3), keep, dims=4)
    assert [s.shape for s in scales] == [(20_000, 1, 1, 1)] * 3
    for scale, share in zip(scales, keep.tolist()):
        assert scale.unique().tolist() == pytest.approx([0.0, 1 / share])
        assert (scale > 0).float().mean().item() == pytest.approx(share, abs=5 * 0.5 / 20_000**0.5)
    joint = torch.corrcoef(torch.stack([s.flatten() for s in scales])) - torch.eye(3)
    assert joint.abs().max() < 5 / 20_000**0.5  # five standard errors of a correlation


def test_elements_are_dropped_at_the_rate_and_the_rest_is_scaled():
    x = torch.ones(8, 64, 20, 30)
    out = dropout(x, words(8, 64 + 600), 0.1)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    dropped = (out == 0).float()
    assert dropped.mean().item() == pytest.approx(0.1, abs=5 * 0.3 / dropped.numel() ** 0.5)
    # five standard errors of a share, the widest of several hundred
    assert (dropped.mean((1, 2, 3)) - 0.1).abs().max() < 5 * 0.3 / (64 * 600) ** 0.5
    assert (dropped.mean((0, 1)) - 0.1).abs().max() < 5 * 0.3 / (8 * 64) ** 0.5
    assert (dropped.mean((0, 2, 3)) - 0.1).abs().max() < 5 * 0.3 / (8 * 600) ** 0.5


@pytest.mark.parametrize("axis", [1, 2], ids=["channels", "positions"])
def test_neighbouring_elements_are_dropped_independently(axis):
    dropped = (dropout(torch.ones(16, 96, 400), words(16, 496), 0.25) == 0).float()
    for shift in (1, 2, 7):
        length = dropped.shape[axis] - shift
        pairs = torch.stack((dropped.narrow(axis, 0, length).flatten(), dropped.narrow(axis, shift, length).flatten()))
        assert torch.corrcoef(pairs)[0, 1].abs() < 5 / pairs.shape[1] ** 0.5


def test_rectangles_of_elements_are_dropped_independently():
    # a mask made from one word per row and one per column could be right in every pair and wrong in fours
    signs = 1 - 2 * (dropout(torch.ones(16, 96, 400), words(16, 496), 0.5) == 0).float()
    products = signs[:, ::2, ::2] * signs[:, 1::2, ::2] * signs[:, ::2, 1::2] * signs[:, 1::2, 1::2]
    assert products.mean().abs() < 5 / products.numel() ** 0.5


def test_a_sample_loses_the_same_elements_in_any_batch_and_memory_layout():
    x, w = torch.randn(4, 16, 6, 5), words(4, 16 + 30)
    whole = dropout(x, w, 0.3)
    assert torch.equal(dropout(x[2:], w[2:], 0.3), whole[2:])
    last = dropout(x.contiguous(memory_format=torch.channels_last), w, 0.3)
    assert torch.equal(last, whole) and last.is_contiguous(memory_format=torch.channels_last)
