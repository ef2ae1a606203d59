"""Semantic metrics against cases counted by hand and the definition; class maps of any size in bounded memory."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from libreyolo_core.data.batch import Placement
from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import MaskTargets
from libreyolo_core.tasks.semantic import SemanticTask
from libreyolo_core.tasks.upsampling import class_map, photo_window
from task_fakes import SHEET, batch_of, record, scan_of

NAMES = ("sky", "tree", "road")


def evaluator_of(count, names=NAMES, model=None):
    model = dict(enumerate(model or names))
    return SemanticTask().evaluator(scan_of([record([])] * count, names), SHEET, model, conf=None)


def take(evaluator, index, truth, predicted, nc=3):
    """One image whose best class per pixel is ``predicted``."""
    truth, predicted = torch.as_tensor(truth), torch.as_tensor(predicted)
    batch = batch_of([index], [tuple(truth.shape)])
    batch.images = torch.zeros(1, 3, *truth.shape, dtype=torch.uint8)
    batch.targets = MaskTargets(truth[None].to(torch.uint8))
    logits = torch.nn.functional.one_hot(predicted.long(), nc).permute(2, 0, 1).float()[None]
    evaluator.update(Predictions(logits=logits), batch)


def test_metrics_counted_by_hand():
    evaluator = evaluator_of(1)
    take(evaluator, 0, [[0, 0, 1, 1], [0, 1, 1, 255]], [[0, 1, 1, 1], [0, 1, 0, 2]])
    m = evaluator.compute()
    # sky: 2 right, union {3 true + 3 predicted - 2}; tree: 3 right of 4 true, 4 predicted; the ignored pixel is nothing
    assert m.values["metrics/mIoU"] == pytest.approx((2 / 4 + 3 / 5) / 2)
    assert m.values["metrics/pixel_accuracy"] == pytest.approx(5 / 7)
    assert m.values["metrics/mean_accuracy"] == pytest.approx((2 / 3 + 3 / 4) / 2)
    assert list(m.values) == list(SemanticTask.metrics)
    assert [r["IoU"] for r in m.per_class] == [pytest.approx(0.5), pytest.approx(0.6), None]
    assert [r["pixels"] for r in m.per_class] == [3, 4, 0] and [r["images"] for r in m.per_class] == [1, 1, 0]
    json.dumps(m.per_class, allow_nan=False)


def test_a_class_that_is_only_predicted_lowers_the_mean_and_one_that_never_occurs_does_not():
    evaluator = evaluator_of(1)
    take(evaluator, 0, [[0, 0, 0, 0]], [[0, 0, 0, 2]])
    m = evaluator.compute()
    assert m.values["metrics/mIoU"] == pytest.approx((3 / 4 + 0) / 2)
    assert m.values["metrics/mean_accuracy"] == pytest.approx(3 / 4)


def test_the_confusion_matrix_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    evaluator, expected = evaluator_of(4, [*"abcde"]), np.zeros((5, 5), np.int64)
    for i in range(4):
        truth, predicted = rng.integers(0, 5, (2, 20, 30))
        truth[rng.random((20, 30)) < 0.1] = 255
        take(evaluator, i, truth, predicted, nc=5)
        for t, p in zip(truth.flat, predicted.flat, strict=True):
            if t != 255:
                expected[p, t] += 1
    assert np.array_equal(evaluator.compute().curves["confusion"], expected)


def test_shards_in_any_order_merge_to_the_whole():
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 3, (2, 8, 8)) for _ in range(7)]

    def shard(indices):
        evaluator = evaluator_of(7)
        for i in indices:
            take(evaluator, i, *images[i])
        return evaluator

    whole, merged = shard(range(7)).compute(), shard([])
    merged.merge([shard([6, 1, 3]).state(), shard([5, 0, 2, 4, 1]).state()])
    assert merged.compute().values == whole.values and merged.compute().per_class == whole.per_class


def test_classes_of_the_data_find_those_of_the_model_by_name():
    evaluator = evaluator_of(1, ["road", "sky"], model=NAMES)
    take(evaluator, 0, [[0, 0, 1, 1]], [[2, 2, 0, 0]])
    assert evaluator.compute().values["metrics/mIoU"] == 1


def test_a_split_without_a_labelled_pixel_is_an_error():
    evaluator = evaluator_of(1)
    take(evaluator, 0, [[255, 255]], [[0, 1]])
    with pytest.raises(DataError, match="labelled pixel"):
        evaluator.compute()


@pytest.mark.parametrize("given", [{"conf": 0.3}, {"iou": 0.5}, {"max_det": 5}, {"agnostic": True}, {"radius": 1}])
def test_thresholds_mean_nothing_to_a_semantic_model_and_are_refused(given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=.*no meaning for a semantic model"):
        SemanticTask().results(Predictions(logits=torch.zeros(1, 2, 4, 4)), [], [], [], SHEET, {}, **given)


def test_coarse_logits_are_compared_at_the_resolution_of_the_masks():
    evaluator = evaluator_of(1)
    logits = torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    truth = interpolate(logits, size=(20, 28), mode="bilinear", align_corners=False).argmax(1)
    batch = batch_of([0], [(20, 28)])
    batch.images, batch.targets = torch.zeros(1, 3, 20, 28, dtype=torch.uint8), MaskTargets(truth.to(torch.uint8))
    evaluator.update(Predictions(logits=logits), batch)
    assert evaluator.compute().values["metrics/pixel_accuracy"] == 1


@pytest.mark.parametrize("size", [(37, 53), (12, 16), (6, 8), (5, 40), (31, 8)])
@pytest.mark.parametrize("strip", [1, 1000, 1 << 24])
def test_class_maps_in_strips_are_those_of_the_whole(size, strip):
    logits = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(2))
    whole = interpolate(logits[None], size=size, mode="bilinear", align_corners=False)[0]
    best = class_map(logits, size, strip=strip)
    # where two classes are equal to rounding, either is right
    chosen = whole.gather(0, best[None])[0]
    assert best.dtype == torch.int64 and torch.all(chosen >= whole.amax(0) - 1e-5)
    assert (best == whole.argmax(0)).float().mean() > 0.999


def test_a_large_photo_of_many_classes_never_exists_whole(monkeypatch):
    sizes = []
    from libreyolo_core.tasks import upsampling

    rows = upsampling._rows

    def watched(*arguments):
        strip = rows(*arguments)
        sizes.append(strip.numel())
        return strip

    monkeypatch.setattr(upsampling, "_rows", watched)
    out = class_map(torch.randn(150, 8, 8), (300, 400), strip=1 << 20)
    assert out.shape == (300, 400) and max(sizes) <= 1 << 20 and sum(sizes) == 150 * 300 * 400


def test_the_photos_part_of_the_logits_follows_the_placement():
    # 100 x 50 photo in the upper left of a 64 x 64 input, logits at a quarter: 32 x 64 pixels are 8 x 16 cells
    assert photo_window(Placement((50, 100), (64, 64), (0.64, 0.64)), (16, 16)) == (0, 0, 8, 16)
    assert photo_window(Placement((50, 100), (64, 64), (0.64, 0.64), (0, 16)), (16, 16)) == (4, 0, 12, 16)
    assert photo_window(Placement((1, 1000), (64, 64), (0.064, 0.064)), (16, 16)) == (0, 0, 1, 16)
    assert photo_window(Placement((100, 100), (50, 100), (1, 1), (0, -25)), (50, 100)) == (0, 0, 50, 100)


def test_results_show_the_photo_alone_at_its_own_size():
    """The input is twice the photo with padding below: class 2 in the padding is never seen."""
    logits = torch.zeros(1, 3, 16, 16)
    logits[0, 0, :8, :8] = logits[0, 1, :8, 8:] = logits[0, 2, 8:] = 9
    photo = np.zeros((30, 60, 3), np.uint8)
    placement = Placement((30, 60), (64, 64), (64 / 60, 64 / 60))
    (result,) = SemanticTask().results(
        Predictions(logits=logits), [photo], [placement], ["a.jpg"], SHEET, dict(enumerate(NAMES))
    )
    mask = result.semantic_mask
    assert mask.shape == (30, 60) and mask.dtype == torch.int64
    assert (mask[:, :30] == 0).all() and (mask[:, 30:] == 1).all()
    (kept,) = SemanticTask().results(
        Predictions(logits=logits), [photo], [placement], ["a.jpg"], SHEET, dict(enumerate(NAMES)), classes=(1,)
    )
    assert kept.semantic_mask.unique().tolist() == [1, 255] and (kept.semantic_mask[:, 30:] == 1).all()
