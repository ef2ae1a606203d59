"""Models that work at the photo's own size: padding, batches of unequal photos, tiles without seams."""

import logging
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from libreyolo_core import native
from libreyolo_core.data.batch import prepare
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Input
from libreyolo_core.native import Axis, tiled
from libreyolo_core.predictions import Predictions
from libreyolo_core.predictor import predict
from libreyolo_core.tasks.detect import DetectTask
from libreyolo_core.tasks.restore import RestoreTask
from task_fakes import sheet

RULE = Input(fit="native", multiple=8, border="reflect")


class Sharpener:
    """A model whose network sees four pixels in each direction and has edges only at the border of its input."""

    def __init__(self, rule=RULE):
        self.sheet, self.task, self.names, self.imgsz = sheet(rule=rule), RestoreTask(), {0: "image"}, 64
        self.seen = []
        torch.manual_seed(0)
        self.network = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect") for _ in range(4)))

    @torch.no_grad()
    def infer(self, images):
        assert images.dtype == torch.uint8 and not any(side % self.sheet.input.multiple for side in images.shape[-2:])
        self.seen.append(tuple(images.shape))
        x = prepare(images, self.sheet.input)
        return Predictions(image=x + self.network(x))


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def bgr(image):
    return np.ascontiguousarray(image[..., ::-1])


@pytest.mark.parametrize("size", [(64, 64), (50, 61), (3, 100), (130, 40)])
def test_a_photo_goes_through_at_its_own_size_and_comes_back_at_it(size):
    model = Sharpener()
    (result,) = predict(model, bgr(noise(*size)))
    assert result.restored.shape == (*size, 3) and result.orig_shape == size
    assert model.seen == [(1, 3, -(-size[0] // 8) * 8, -(-size[1] // 8) * 8)]


def test_neighbours_in_a_batch_change_nothing():
    photos = [bgr(noise(h, w, seed)) for seed, (h, w) in enumerate([(40, 56), (33, 50), (64, 64), (40, 49), (1, 7)])]
    model = Sharpener()
    together = predict(model, photos, batch=5)
    assert sorted(s[0] for s in model.seen) == [1, 1, 3]  # three of the five are 40 x 56 after padding
    for photo, result in zip(photos, together, strict=True):
        assert np.array_equal(predict(Sharpener(), photo)[0].restored, result.restored)
        assert result.restored.shape == photo.shape


@pytest.mark.parametrize("tile", [32, 48, 64, 96])
@pytest.mark.parametrize("batch", [1, 3])
def test_tiles_give_what_the_whole_image_gives(tile, batch):
    """An overlap of 16 keeps 4 pixels of context on each side, which is what the network sees."""
    photo = bgr(noise(150, 93))
    model = Sharpener()
    in_tiles = predict(model, photo, tile=tile, tile_overlap=16, batch=batch)[0].restored
    assert (
        max(s[2] for s in model.seen) == tile
        and max(s[0] for s in model.seen) <= batch
        and sum(s[0] for s in model.seen) > 1
    )
    whole = predict(Sharpener(), photo, tile=0)[0].restored
    # a float of the blend may be rounded to the other side of a half
    assert np.abs(in_tiles.astype(int) - whole).max() <= 1 and (in_tiles != whole).mean() < 0.01


def test_tiles_of_floats_agree_to_rounding():
    model, image = Sharpener(), torch.from_numpy(noise(120, 88).transpose(2, 0, 1).copy())
    whole = model.infer(image[None]).image[0]
    assert (tiled(model.infer, image, 40, 16, 8, 4) - whole).abs().max() < 2e-6  # two float32 products are added


def test_networks_that_see_farther_fade_from_tile_to_tile_without_a_step():
    """Each tile gets another constant: the difference is spread over half of the overlap, the rest is context."""
    levels = iter([0.0, 1.0])

    def infer(images):
        return Predictions(image=torch.full(images.shape, next(levels)))

    out = tiled(infer, torch.zeros(3, 32, 96, dtype=torch.uint8), 64, 32, 8, 1)
    row = out[0, 0]
    assert (row[:40] == 0).all() and (row[56:] == 1).all()
    steps = row[40:57].diff()
    assert torch.allclose(steps[:-1], torch.full((15,), 1 / 16), atol=1e-6) and (row.diff() >= 0).all()


@pytest.mark.parametrize(
    ("length", "side", "overlap", "step"),
    [(96, 64, 32, 8), (1008, 64, 0, 16), (48, 64, 16, 8), (1024, 256, 128, 16), (64, 16, 8, 16), (208, 64, 31, 16)],
)
def test_tiles_cover_an_axis_with_weights_that_sum_to_one(length, side, overlap, step):
    axis = Axis(length, side, overlap, step)
    total = torch.zeros(length)
    for i, weight in enumerate(axis.weights):
        total[axis.cut(i)] += weight
        assert axis.starts[i] % step == 0 and torch.isfinite(weight).all()
    assert torch.allclose(total, torch.ones(length), atol=1e-6) and axis.starts[-1] + axis.side == length


def test_large_photos_are_tiled_by_themselves_and_the_log_says_so_once(monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    monkeypatch.setattr(native, "TILED_ABOVE", 64 * 64)
    monkeypatch.setattr(native, "TILE", 48)
    model = Sharpener()
    predict(model, [bgr(noise(64, 64)), bgr(noise(80, 80)), bgr(noise(72, 90))], verbose=False)
    assert model.seen[0] == (1, 3, 64, 64) and {s[2:] for s in model.seen[1:]} == {(48, 48)}
    assert caplog.text.count("blended tiles of 48 with 12 shared") == 1 and "tile=0" in caplog.text
    model = Sharpener()
    predict(model, bgr(noise(80, 80)), tile=0)
    assert model.seen == [(1, 3, 80, 80)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"imgsz": 128}, "imgsz=128 has no meaning.*own size"),
        ({"tile": 64, "tile_overlap": 40}, "tile_overlap=40 is more than half of tile=64"),
        ({"tile": 0, "tile_overlap": 8}, "tile_overlap=8.*tile=0 means no tiles"),
        ({"tile": 8}, "tile=8 is out of range"),
        ({"classes": [0]}, "no meaning for image restoration"),
        ({"conf": 0.5}, "no meaning for image restoration"),
    ],
)
def test_arguments_that_mean_nothing_at_native_size_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        predict(Sharpener(), bgr(noise(40, 40)), **given)


def test_tiles_mean_nothing_to_models_that_resize():
    model = types.SimpleNamespace(sheet=sheet(), task=DetectTask(), infer=None, names={0: "a"}, imgsz=64)
    for given in ({"tile": 64}, {"tile_overlap": 8}):
        with pytest.raises(ConfigError, match="no meaning for a model that resizes"):
            predict(model, bgr(noise(40, 40)), **given)


def test_a_tile_is_rounded_up_to_what_the_network_takes(caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    model = Sharpener()
    predict(model, bgr(noise(90, 90)), tile=45, tile_overlap=8)
    assert {s[2:] for s in model.seen} == {(48, 48)} and "tile=45 is no multiple of 8; using 48" in caplog.text


def test_an_exported_graph_of_one_size_restores_photos_of_any_size():
    model = Sharpener()
    model.exported = types.SimpleNamespace(any_size=False)
    for size in ((20, 30), (64, 64), (150, 70)):
        result = predict(model, bgr(noise(*size)))[0]
        assert result.restored.shape == (*size, 3)
    assert {s[2:] for s in model.seen} == {(64, 64)}
    with pytest.raises(ConfigError, match="exported graph takes 64 x 64"):
        predict(model, bgr(noise(20, 20)), tile=32)


def test_restored_photos_are_saved_in_the_best_quality_of_the_sources_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smooth = np.asarray(Image.fromarray(noise(6, 8)).resize((80, 60), Image.Resampling.BICUBIC))
    for name in ("a.png", "b.jpg", "c.webp"):
        Image.fromarray(smooth).save(tmp_path / name, **({"lossless": True} if name == "c.webp" else {}))
    results = predict(Sharpener(), [tmp_path / n for n in ("a.png", "b.jpg", "c.webp")], save=True)
    for name, result in zip(("a.png", "b.jpg", "c.webp"), results, strict=True):
        saved = np.asarray(Image.open(tmp_path / "runs/predict/exp" / name).convert("RGB")).astype(int)
        off = np.abs(saved - result.restored[..., ::-1])
        assert off.max() == 0 if name != "b.jpg" else off.mean() < 1  # the best that JPEG does is not exact
    for option in ({"save_txt": True}, {"save_mask": True}, {"save_crop": True}):
        with pytest.raises(ConfigError, match="no meaning"):
            predict(Sharpener(), tmp_path / "a.png", **option)
