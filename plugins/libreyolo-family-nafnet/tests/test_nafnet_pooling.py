"""Average pooling over the image and over a window."""

import pytest
import torch
from torch.nn import functional as F

from libreyolo_family_nafnet.network import NAFNet
from libreyolo_family_nafnet.pooling import Pool, spread, window_mean


def brute(x: torch.Tensor, window: int) -> torch.Tensor:
    """The mean of the window around every pixel, shifted to lie inside the map."""
    h, w = x.shape[-2:]
    kh, kw = min(window, h), min(window, w)
    out = torch.empty_like(x)
    for i in range(h):
        for j in range(w):
            top = min(max(i - (h - (h - kh + 1)) // 2, 0), h - kh)
            left = min(max(j - (w - (w - kw + 1)) // 2, 0), w - kw)
            out[..., i, j] = x[..., top : top + kh, left : left + kw].mean((-2, -1))
    return out


@pytest.mark.parametrize("size", [(9, 12), (12, 9), (4, 11), (11, 4), (3, 20), (7, 5)])
def test_every_pixel_gets_the_mean_of_the_window_around_it(size):
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    pool = Pool(5).eval()
    found = spread(pool(x), size).expand_as(x)
    assert torch.allclose(found, brute(x, 5), atol=1e-6)  # float32 sums of at most 20 values


def test_a_window_that_covers_the_map_is_the_global_mean():
    x = torch.randn(1, 2, 5, 4)
    pooled = Pool(5).eval()(x)
    assert torch.equal(pooled, x.mean((2, 3), keepdim=True))
    assert spread(pooled, (5, 4)) is pooled


def test_a_window_that_covers_one_axis_only_stays_local():
    x = torch.randn(1, 2, 4, 9)
    assert Pool(5).eval()(x).shape == (1, 2, 1, 5)


def test_training_is_always_global():
    x = torch.randn(1, 2, 9, 9)
    assert torch.equal(Pool(5).train()(x), x.mean((2, 3), keepdim=True))
    assert torch.equal(Pool(5, local=False).eval()(x), x.mean((2, 3), keepdim=True))


def test_the_mean_equals_average_pooling():
    x = torch.randn(2, 3, 30, 41, generator=torch.Generator().manual_seed(1))
    found = window_mean(x, (7, 11))
    expected = F.avg_pool2d(x.double(), (7, 11), stride=1)
    assert (found - expected).abs().max() <= 1e-6  # float32 running sums of at most 41 values of size 1


def test_sums_beyond_half_precision_stay_finite_and_exact_under_autocast():
    x = torch.full((1, 1, 400, 400), 100.0, dtype=torch.bfloat16)  # running sums reach 40,000 and 3,840,000
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Pool(384).eval()(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.full((1, 1, 17, 17), 100.0, dtype=torch.bfloat16))


def test_windows_halve_at_every_level():
    with torch.device("meta"):
        network = NAFNet(width=8, encoder=(1, 1, 1, 2), middle=1, decoder=(1, 1, 1, 1))
    windows = {name.rpartition(".sca")[0]: m.window for name, m in network.named_modules() if isinstance(m, Pool)}
    assert windows == {
        **{f"encoders.{i}.0": w for i, w in enumerate((384, 192, 96, 48))},
        "encoders.3.1": 48,
        "middle_blks.0": 24,
        **{f"decoders.{i}.0": w for i, w in enumerate((48, 96, 192, 384))},
    }


def test_building_draws_nothing_for_the_windows():
    """Two networks that differ in their windows alone start with the same weights."""
    states = []
    for window in (384, 96):
        torch.manual_seed(0)
        states.append(NAFNet(width=8, encoder=(1,), middle=1, decoder=(1,), window=window).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))


def test_inference_is_local_and_training_global_in_the_network(tiny):
    network, image = tiny(window=8), torch.rand(1, 3, 24, 24)
    with torch.no_grad():
        training, local = network.train()(image), network.eval()(image)
        network.configure(local=False)
        everywhere = network(image)
    assert torch.equal(training, everywhere)
    assert not torch.allclose(local, everywhere, atol=1e-4)


def test_an_unknown_option_is_refused(tiny):
    with pytest.raises(TypeError, match="no option 'pooling'"):
        tiny().configure(pooling="global")
