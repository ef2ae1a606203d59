"""PSNR and SSIM against their definitions written out, and the promises of the evaluator."""

import math

import numpy as np
import pytest
import torch

from libreyolo_core.data.batch import Placement
from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.family import Input
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import ImageTargets
from libreyolo_core.tasks.quality import Clean, psnr
from libreyolo_core.tasks.restore import RestoreTask
from task_fakes import batch_of, record, scan_of, sheet

RULE = Input(fit="native", multiple=16, border="reflect")


def images(seed, count=1, size=(24, 31)):
    return np.random.default_rng(seed).random((count, *size, 3))


def test_psnr_of_a_known_error():
    clean = np.full((4, 5, 3), 0.5)
    assert psnr(clean + 0.1, clean) == pytest.approx(20)
    assert psnr(clean, clean) == 100 and psnr(clean + 1e-6, clean) == 100
    found = clean.copy()
    found[0, 0, 0] += 0.5  # one of 60 values
    assert psnr(found, clean) == pytest.approx(-10 * math.log10(0.25 / 60))


def _ssim(a, b):
    """Wang et al. (2004), window by window."""
    at = np.arange(-5, 6)
    line = np.exp(-(at**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    pad = ((5, 5), (5, 5), (0, 0))
    a, b = np.pad(a, pad), np.pad(b, pad)
    scores = []
    for y in range(a.shape[0] - 10):
        for x in range(a.shape[1] - 10):
            for c in range(3):
                p, q = a[y : y + 11, x : x + 11, c], b[y : y + 11, x : x + 11, c]
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * p * p).sum() - mp**2, (window * q * q).sum() - mq**2
                v = (window * p * q).sum() - mp * mq
                scores.append((2 * mp * mq + 1e-4) * (2 * v + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(scores))


@pytest.mark.parametrize("size", [(11, 11), (13, 17)])
def test_ssim_is_that_of_the_definition(size):
    clean, noise = images(0, 2, size)
    found = np.clip(clean + 0.3 * (noise - 0.5), 0, 1)
    # both are float64; sums are taken in another order
    assert Clean(clean).ssim(found) == pytest.approx(_ssim(found, clean), abs=1e-10)
    assert Clean(clean).ssim(clean) == pytest.approx(1, abs=1e-12)


def test_small_images_are_alike_or_not():
    clean = images(1, size=(10, 40))[0]
    assert Clean(clean).ssim(clean.astype(np.float32)) == 1 and Clean(clean).ssim(clean + 0.01) == 0


def planes(image):
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


def take(evaluator, index, degraded, restored, clean, canvas=None):
    """One image, uint8 [H, W, 3] but for ``restored``, in a larger canvas whose border holds garbage."""
    h, w = clean.shape[:2]
    size = canvas or (h, w)
    batch = batch_of([index])
    batch.placements = [Placement((h, w), size, (1.0, 1.0))]
    batch.images = torch.full((1, 3, *size), 77, dtype=torch.uint8)
    batch.targets = ImageTargets(torch.full((1, 3, *size), 3, dtype=torch.uint8))
    found = torch.full((1, 3, *size), -5.0)
    batch.images[0, :, :h, :w], batch.targets.images[0, :, :h, :w] = planes(degraded), planes(clean)
    found[0, :, :h, :w] = planes(restored)
    evaluator.update(Predictions(image=found), batch)


def pixels(seed, size=(24, 31)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def evaluator_of(count, rule=RULE):
    return RestoreTask().evaluator(scan_of([record([])] * count, ["image"]), sheet(rule=rule), {0: "image"})


def test_metrics_see_the_photo_alone_and_values_that_are_clipped():
    clean = pixels(0)
    degraded = np.clip(clean.astype(int) + 20, 0, 255).astype(np.uint8)
    restored = clean / 255.0
    restored[clean == 255], restored[clean == 0] = 1.7, -0.4  # clipping makes them right
    evaluator = evaluator_of(1)
    take(evaluator, 0, degraded, restored, clean, canvas=(32, 48))
    m = evaluator.compute()
    assert m.values["metrics/PSNR"] == 100 and m.values["metrics/SSIM"] == pytest.approx(1, abs=1e-6)
    assert m.values["metrics/PSNR_input"] == pytest.approx(psnr(degraded / 255, clean / 255))
    assert m.values["metrics/SSIM_input"] == pytest.approx(Clean(clean / 255).ssim(degraded / 255))
    assert list(m.values) == list(RestoreTask.metrics)


def test_every_image_counts_alike_whatever_its_size():
    evaluator = evaluator_of(2)
    for i, (size, error) in enumerate([((12, 12), 0.1), ((40, 60), 0.01)]):
        clean = np.full((*size, 3), 100, np.uint8)
        take(evaluator, i, clean, clean / 255 + error, clean)
    assert evaluator.compute().values["metrics/PSNR"] == pytest.approx(30, abs=1e-4)


def test_restoration_shards_in_any_order_merge_to_the_whole():
    def shard(indices):
        evaluator = evaluator_of(5)
        for i in indices:
            take(evaluator, i, pixels(i), pixels(i + 50) / 255, pixels(i + 100))
        return evaluator

    merged = shard([])
    merged.merge([shard([4, 1]).state(), shard([3, 0, 2, 1]).state()])
    assert merged.compute().values == shard(range(5)).compute().values


def test_no_image_is_an_error_and_thresholds_are_refused():
    with pytest.raises(DataError, match="No image"):
        evaluator_of(1).compute()
    for given in ({"conf": 0.0}, {"classes": (0,)}, {"max_det": 3}):
        with pytest.raises(ConfigError, match="no meaning for image restoration"):
            RestoreTask().evaluator(scan_of([]), sheet(rule=RULE), {0: "image"}, **given)


@pytest.mark.parametrize("colour", ["rgb", "bgr"])
def test_restored_images_are_cut_clipped_rounded_and_bgr(colour):
    image = torch.full((1, 3, 16, 16), 9.0)
    image[0, :, :10, :12] = torch.tensor([1.5, 100.4 / 255, -0.2])[:, None, None]  # in the network's order
    photo = np.zeros((10, 12, 3), np.uint8)
    rule = Input(fit="native", multiple=16, colour=colour)
    (result,) = RestoreTask().results(
        Predictions(image=image),
        [photo],
        [Placement((10, 12), (16, 16), (1, 1))],
        ["a.png"],
        sheet(rule=rule),
        {0: "i"},
    )
    assert result.restored.shape == (10, 12, 3) and result.restored.dtype == np.uint8
    assert result.restored[3, 3].tolist() == ([0, 100, 255] if colour == "rgb" else [255, 100, 0])
