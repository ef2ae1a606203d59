"""Keyed random numbers."""

import torch

from libreyolo_core.draw import DropPath, key, site, uniform


def keys(count):
    return torch.tensor([key(7, 0, i) for i in range(count)])


def test_a_sample_draws_the_same_in_any_batch():
    whole = uniform(keys(6), site("here"), (3, 4))
    half = uniform(keys(6)[3:], site("here"), (3, 4))
    assert torch.equal(whole[3:], half)


def test_sites_and_samples_are_independent_streams():
    a, b = uniform(keys(4000), site("a"), (4,)), uniform(keys(4000), site("b"), (4,))
    columns = torch.cat([a, b], 1).T
    off_diagonal = torch.corrcoef(columns) - torch.eye(8)
    assert off_diagonal.abs().max() < 0.08  # 5 standard errors of a correlation over 4000 samples


def test_numbers_are_uniform_in_zero_to_one():
    u = uniform(keys(5000), site("u"), (8,)).flatten()
    assert u.min() >= 0 and u.max() < 1
    histogram = torch.histc(u, 20, 0, 1)
    assert (histogram - 2000).abs().max() < 5 * 2000**0.5  # 5 standard deviations of a bin's count


def test_keys_depend_on_every_part_and_their_order():
    assert len({key(0, 1), key(1, 0), key(0, 0, 1), key(0, 1, 0), key(1), key(2**40)}) == 6


def test_drop_path_keeps_the_mean_and_decides_per_sample():
    layer = DropPath(0.3, "layer").train()
    x = torch.ones(20000, 2)
    out = layer(x, keys(20000))
    assert torch.equal(out[:, 0], out[:, 1])
    assert abs(out.mean() - 1) < 0.03  # 5 standard errors
    assert torch.equal(layer.eval()(x, None), x)
