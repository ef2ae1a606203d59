"""Batches are the same whatever the workers, the ranks, the cache or what was asked before; a bad file ends nothing."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.augment import Erase, Flip, Hsv, MixLabels, MixUp, Mosaic, RandomResizedCrop
from libreyolo_core.data import cache as cache_module
from libreyolo_core.data import photo_set as photo_set_module
from libreyolo_core.data.batch import Batch, SampleRequest
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.dataset import ClassifySet, DetectSet, collate_classify, collate_detect
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.fit import boxes_to_photo, fit_image
from libreyolo_core.data.loader import Loader, eval_loader, train_loader
from libreyolo_core.data.scan import scan_classify, scan_detect
from libreyolo_core.draw import key
from libreyolo_core.errors import ConfigError, DataError, TrainingError
from libreyolo_core.family import Input

SIZE = (64, 64)
YOLOX = (Mosaic(), MixUp(), Hsv(), Flip())
RULE = Input()
CROP = Input(fit="crop", resample="pil-bicubic", margin=0.875)
COUNT = 11


@pytest.fixture
def scan(detect_set):
    """Eleven photos larger and smaller than the input, one of them without a box."""
    rows = [f"{i % 2} 0.{3 + i % 4} 0.5 0.4 0.5\n1 0.7 0.4 0.2 0.3" for i in range(COUNT - 1)]
    path = detect_set(train=[*rows, ""])
    big = Image.fromarray(
        np.kron(np.random.default_rng(1).integers(0, 256, (9, 12, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
    )
    for i in (2, 5):
        big.save(path.parent / f"images/train/{i:03d}.png")
    return scan_detect(load_data(path, "detect"), "train")


@pytest.fixture
def class_scan(class_set):
    root = class_set(count=4, size=(90, 120))
    return scan_classify(load_data(root, "classify"), "train")


def loader_of(scan, **options) -> Loader:
    data = DetectSet(scan, options.pop("rule", RULE), seed=3, cache=options.pop("cache", ""))
    collate = functools.partial(collate_detect, rule=data.rule)
    return train_loader(data, collate, **{"batch": 4, "seed": 3, **options})


def same(a: Batch, b: Batch) -> bool:
    tensors = [
        (a.images, b.images),
        (a.draw, b.draw),
        *((getattr(a.targets, f), getattr(b.targets, f)) for f in ("boxes", "labels", "valid")),
    ]
    return a.indices == b.indices and a.paths == b.paths and all(torch.equal(x, y) for x, y in tensors)


def epochs(loader: Loader, count: int = 2, **options) -> list[list[Batch]]:
    with loader:
        return [list(loader.epoch(e, **{"size": SIZE, "augment": YOLOX, **options})) for e in range(count)]


# the data set


def test_a_sample_is_a_function_of_its_request_alone(scan):
    requests = [SampleRequest(i, e, SIZE, YOLOX) for i in range(COUNT) for e in (0, 7)]
    data = DetectSet(scan, RULE, seed=5)
    forward = [data[r] for r in requests]
    data = pickle.loads(pickle.dumps(DetectSet(scan, RULE, seed=5)))
    backward = [data[r] for r in reversed(requests)][::-1]
    for a, b, r in zip(forward, backward, requests):
        assert (
            np.array_equal(a.image, b.image) and np.array_equal(a.boxes, b.boxes) and np.array_equal(a.labels, b.labels)
        )
        assert a.draw == b.draw == key(5, r.epoch, r.index) and a.index == r.index
    assert not np.array_equal(forward[0].image, forward[1].image)
    other_seed = DetectSet(scan, RULE, seed=6)[requests[0]]
    assert not np.array_equal(other_seed.image, forward[0].image)


@pytest.mark.parametrize(
    "rule", [RULE, Input(side="centre", round="nearest"), Input(fit="stretch"), Input(resample="pil-linear"), CROP]
)
def test_a_request_without_augmentation_is_the_photo_fitted_by_the_rule(scan, rule):
    for canvas in (None, SIZE, (96, 96)):
        data = DetectSet(scan, rule)
        if canvas:
            data.prepare(canvas)
        for i, record in enumerate(scan.images):
            sample = data[SampleRequest(i, 0, SIZE)]
            image, placement = fit_image(read_image(record.path), rule, SIZE)
            assert sample.placement == placement
            assert np.allclose(boxes_to_photo(sample.boxes, placement), record.boxes, atol=1e-3)  # float32
            if canvas != (96, 96) or rule.fit == "crop":  # a larger canvas means two resizings of larger photos
                assert np.array_equal(sample.image, image)


def test_the_photo_itself_stands_in_where_augmentation_left_no_box(scan):
    lost = Mosaic(rotate=0, shear=0, translate=0, scale=(0.01, 0.01))  # every box ends up below a pixel
    data = DetectSet(scan, RULE)
    for i in range(COUNT):
        out, plain = data[SampleRequest(i, 0, SIZE, (lost,))], data[SampleRequest(i, 0, SIZE)]
        if len(plain.boxes):
            assert np.array_equal(out.image, plain.image) and np.array_equal(out.boxes, plain.boxes)
        else:  # a background stays what augmentation made of it
            assert not np.array_equal(out.image, plain.image) and len(out.boxes) == 0


def test_crowd_regions_are_no_targets(scan):
    scan.images[0].crowd = np.array([True, False])
    assert DetectSet(scan, RULE)[SampleRequest(0, 0, SIZE)].labels.tolist() == scan.images[0].labels[1:].tolist()


def test_classification_samples_carry_their_class(class_scan):
    data = ClassifySet(class_scan, CROP, seed=1)
    augment = (RandomResizedCrop(), Flip(), Erase(p=0.5))
    for i in range(len(data)):
        sample = data[SampleRequest(i, 0, (32, 32), augment)]
        assert sample.image.shape == (32, 32, 3) and sample.labels.tolist() == [i // 4]
        assert data[SampleRequest(i, 0, (32, 32))].placement is not None


# collating


def test_boxes_are_padded_and_channels_in_the_order_of_the_network(scan):
    data = DetectSet(scan, RULE)
    samples = [data[SampleRequest(i, 0, SIZE)] for i in range(3)]
    for colour, order in (("rgb", [0, 1, 2]), ("bgr", [2, 1, 0])):
        batch = collate_detect(samples, Input(colour=colour))
        assert (
            batch.images.dtype == torch.uint8 and batch.images.shape == (3, 3, *SIZE) and batch.images.is_contiguous()
        )
        for image, sample in zip(batch.images, samples):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), sample.image[..., order])
        assert batch.targets.valid.sum(1).tolist() == [2, 2, 2] and batch.targets.most == 2
        assert len(batch.placements) == 3 and batch.indices == [0, 1, 2]


def test_more_than_a_hundred_boxes_of_an_image_all_become_targets(scan):
    many = np.tile(np.array([[5, 5, 30, 30]], np.float32), (400, 1)) + np.arange(400, dtype=np.float32)[:, None] * 0.01
    scan.images[0].boxes, scan.images[0].labels = many, np.zeros(400, np.int64)
    batch = collate_detect([DetectSet(scan, RULE)[SampleRequest(0, 0, SIZE)]], RULE)
    assert batch.targets.valid.sum() == batch.targets.most == 400


def test_a_batch_without_any_box_is_a_batch(scan):
    batch = collate_detect([DetectSet(scan, RULE)[SampleRequest(COUNT - 1, 0, SIZE)]], RULE)
    assert batch.targets.valid.sum() == 0 and batch.targets.most == 0


def test_mixed_classification_batches_have_soft_labels_and_others_hard_ones(class_scan):
    data = ClassifySet(class_scan, CROP)
    plain = collate_classify([data[SampleRequest(i, 0, (32, 32))] for i in range(4)], CROP)
    assert plain.targets.labels.tolist() == [0, 0, 0, 0] and plain.targets.labels.dtype == torch.int64
    mixed = collate_classify([data[SampleRequest(i, 0, (32, 32), (MixLabels(mixup=1.0),))] for i in (0, 4, 1, 5)], CROP)
    assert mixed.targets.labels.shape == (4, 2) and torch.allclose(mixed.targets.labels.sum(1), torch.ones(4))
    assert ((mixed.targets.labels > 0) & (mixed.targets.labels < 1)).all()


# the loader


def test_batches_are_bit_for_bit_the_same_with_0_1_and_2_workers(scan):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    alone = epochs(loader_of(scan, workers=0))
    for workers in (1, 2):
        for ours, theirs in zip(alone, epochs(loader_of(scan, workers=workers)), strict=True):
            assert len(ours) == 3 and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(torch.get_rng_state(), state)  # loading draws nothing from torch's own generator


def test_every_epoch_visits_every_sample_once_in_another_order(scan):
    first, second = epochs(loader_of(scan))
    orders = [[i for b in e for i in b.indices] for e in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(COUNT)) and orders[0] != orders[1]


def test_the_union_of_two_ranks_is_the_batch_of_one(scan):
    for batch in (4, 6):
        (whole,) = epochs(loader_of(scan, batch=batch), 1)
        (left,) = epochs(loader_of(scan, batch=batch, rank=0, world=2), 1)
        (right,) = epochs(loader_of(scan, batch=batch, rank=1, world=2), 1)
        assert len(left) == len(right) == len(whole)
        for w, a, b in zip(whole, left, right, strict=True):
            assert a.indices + b.indices == w.indices and abs(len(a) - len(b)) <= 1
            assert torch.equal(torch.cat([a.images, b.images]), w.images)
            assert torch.equal(torch.cat([a.draw, b.draw]), w.draw)


def test_a_last_batch_too_small_for_the_ranks_is_left_out_by_all_of_them(scan, caplog):
    with caplog.at_level(logging.INFO, "libreyolo"):
        parts = [epochs(loader_of(scan, batch=5, rank=r, world=5), 1)[0] for r in range(5)]
    assert [len(p) for p in parts] == [2] * 5 and "left out" in caplog.text
    assert len(loader_of(scan, batch=5, rank=0, world=5)) == 2
    with pytest.raises(ConfigError, match="batch=4 cannot be shared by 3 ranks"):
        loader_of(scan, batch=4, world=3)


def test_an_incomplete_last_batch_is_dropped_on_request_unless_it_is_the_only_one(scan):
    for batch, drop, sizes in ((4, False, [4, 4, 3]), (4, True, [4, 4]), (20, True, [11]), (11, True, [11])):
        loader = loader_of(scan, batch=batch, drop_last=drop)
        assert len(loader) == len(sizes)
        assert [len(b) for b in epochs(loader, 1)[0]] == sizes


def test_an_epoch_can_begin_in_its_middle(scan):
    (whole,) = epochs(loader_of(scan), 1)
    (rest,) = epochs(loader_of(scan, workers=1), 1, start_batch=2)
    assert len(rest) == 1 and same(rest[0], whole[2])


def test_changes_of_augmentation_and_size_reach_workers_that_live_on(scan):
    others = set(multiprocessing.active_children())  # of other tests of this session
    with loader_of(scan, workers=2, canvas=(96, 96)) as loader:
        list(loader.epoch(0, size=SIZE, augment=YOLOX))
        mine = set(multiprocessing.active_children()) - others
        plain = list(loader.epoch(1, size=SIZE))
        assert all(len(b.placements) == len(b) for b in plain)
        sizes = [
            b.images.shape[2:] for b in loader.epoch(2, size=SIZE, sizes=lambda b: (32 * (1 + b), 64), augment=YOLOX)
        ]
        assert sizes == [(32, 64), (64, 64), (96, 64)]
        assert set(multiprocessing.active_children()) - others == mine and len(mine) == 2
    with loader_of(scan, canvas=(96, 96)) as alone:
        assert all(same(a, b) for a, b in zip(plain, alone.epoch(1, size=SIZE), strict=True))


def test_an_epoch_that_is_abandoned_does_not_disturb_the_next(scan):
    (_, wanted) = epochs(loader_of(scan))
    with loader_of(scan, workers=2) as loader:
        batches = loader.epoch(0, size=SIZE, augment=YOLOX)
        next(batches)
        again = list(loader.epoch(1, size=SIZE, augment=YOLOX))
        assert all(same(a, b) for a, b in zip(again, wanted, strict=True))
        assert list(batches) == []


def test_closing_ends_every_worker(scan):
    before = set(multiprocessing.active_children())
    loader = loader_of(scan, workers=2)
    batches = loader.epoch(0, size=SIZE, augment=YOLOX)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    loader.close()
    loader.close()
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(TrainingError, match="closed"):
        loader.epoch(1, size=SIZE)


def test_evaluation_goes_through_the_split_in_order_with_placements(scan):
    data = DetectSet(scan, RULE)
    with eval_loader(data, functools.partial(collate_detect, rule=RULE), batch=4, size=SIZE, workers=1) as batches:
        assert len(batches) == 3
        for _ in range(2):
            found = list(batches)
            assert [i for b in found for i in b.indices] == list(range(COUNT))
            assert all(len(b.placements) == len(b) for b in found)


def test_ranks_evaluate_whole_batches_of_the_single_process(scan):
    collate = functools.partial(collate_detect, rule=RULE)

    def batches(**options):
        with eval_loader(DetectSet(scan, RULE), collate, batch=3, size=SIZE, **options) as loader:
            return list(loader)

    whole, parts = batches(), [batches(rank=r, world=3) for r in range(3)]
    for b, batch in enumerate(whole):
        assert same(parts[b % 3][b // 3], batch)
    assert sum(map(len, parts)) == len(whole)


# files that go bad


@pytest.mark.parametrize("workers", [0, 2])
def test_a_photo_that_becomes_unreadable_is_replaced_and_named_once(scan, workers, caplog):
    bad = [scan.images[4].path, scan.images[7].path]
    Path(bad[0]).write_bytes(b"gone bad")
    Path(bad[1]).unlink()
    with caplog.at_level(logging.WARNING, "libreyolo"):
        runs = [epochs(loader_of(scan, workers=workers), augment=a) for a in (YOLOX, ())]
    for run in runs:
        assert [sum(len(b) for b in e) for e in run] == [COUNT, COUNT]
    plain = [i for e in runs[1] for b in e for i in b.indices]
    assert 4 not in plain and 7 not in plain
    for path in bad:
        assert caplog.text.count(path) == 2  # once per loader


def test_what_stands_in_for_a_bad_photo_does_not_depend_on_the_workers(scan):
    Path(scan.images[4].path).write_bytes(b"gone bad")
    alone, shared = (epochs(loader_of(scan, workers=w)) for w in (0, 2))
    assert all(same(a, b) for x, y in zip(alone, shared) for a, b in zip(x, y, strict=True))


def test_a_photo_that_changed_its_size_since_the_scan_is_not_used_with_old_boxes(scan, smooth_photo, caplog):
    Image.fromarray(smooth_photo(20, 20)).save(scan.images[0].path)
    sample = DetectSet(scan, RULE)[SampleRequest(0, 0, SIZE)]
    assert sample.index != 0 and "not what the scan found" in sample.extra["unreadable"][0][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_disk_that_went_away_is_one_error_without_a_worker_traceback(scan, workers):
    others = set(multiprocessing.active_children())
    for record in scan.images:
        Path(record.path).unlink()
    with pytest.raises(DataError, match="20 photos in a row") as caught:
        epochs(loader_of(scan, workers=workers))
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    assert set(multiprocessing.active_children()) <= others


def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do(scan):
    others = set(multiprocessing.active_children())
    # torch's signal handler may tell of the death in the loader or in whatever runs at that moment
    with pytest.raises(TrainingError, match="fewer workers"), loader_of(scan, workers=1, batch=1) as loader:
        batches = loader.epoch(0, size=SIZE)
        next(batches)
        for process in set(multiprocessing.active_children()) - others:
            os.kill(process.pid, signal.SIGKILL)
        for _ in batches:
            time.sleep(0.05)


# caches


@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("rule", [RULE, Input(fit="stretch")], ids=["letterbox", "stretch"])
def test_results_are_identical_with_and_without_a_cache(scan, kind, rule, monkeypatch):
    wanted = [epochs(loader_of(scan, rule=rule), augment=a) for a in (YOLOX, ())]
    reads = []
    original = read_image
    monkeypatch.setattr(photo_set_module, "read_image", lambda p: reads.append(p) or original(p))
    for workers in (0, 2):
        for augment, expected in zip((YOLOX, ()), wanted):
            reads.clear()
            found = epochs(loader_of(scan, rule=rule, cache=kind, workers=workers), augment=augment)
            assert all(same(a, b) for x, y in zip(found, expected) for a, b in zip(x, y, strict=True))
            assert len(reads) <= COUNT  # each photo at most once, before any worker started


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_classification_is_the_same_with_and_without_a_cache(class_scan, kind):
    augment = (RandomResizedCrop(), Flip())
    plain, cached = ClassifySet(class_scan, CROP), ClassifySet(class_scan, CROP, cache=kind)
    for data in (plain, cached):
        data.prepare((32, 32))
    for i in range(len(plain)):
        for a in (augment, ()):
            request = SampleRequest(i, 0, (32, 32), a)
            assert np.array_equal(plain[request].image, cached[request].image)
    assert cached.photos.shapes.tolist() == [[54, 72]] * len(plain)  # 32 / 0.875 and half as much again, of 90 x 120


def test_the_disk_cache_is_kept_until_a_photo_changes_and_lies_in_the_cache_folder(
    scan, cache_folder, write_photo, monkeypatch
):
    monkeypatch.setattr("libreyolo_core.data.files.YOUNG_S", -1.0)
    fills = []
    original = cache_module.PhotoCache._fill
    monkeypatch.setattr(cache_module.PhotoCache, "_fill", lambda self, *a: fills.append(1) or original(self, *a))

    def use():
        data = DetectSet(scan, RULE, cache="disk")
        data.prepare(SIZE)
        return data[SampleRequest(2, 0, SIZE)].image

    before = sorted(Path(scan.images[0].path).parent.iterdir())
    first = use()
    assert np.array_equal(use(), first) and len(fills) == 1
    write_photo(Path(scan.images[2].path), *scan.images[2].size, seed=9)
    assert not np.array_equal(use(), first) and len(fills) == 2
    assert len(list((cache_folder / "photos").glob("*.bin"))) == 1  # the old one is gone
    assert len(list((cache_folder / "photos").iterdir())) == 2
    assert sorted(Path(scan.images[0].path).parent.iterdir()) == before


def test_a_photo_that_cannot_be_cached_is_met_again_when_it_is_asked_for(scan):
    Path(scan.images[1].path).write_bytes(b"bad")
    data = DetectSet(scan, RULE, cache="ram")
    data.prepare(SIZE)
    sample = data[SampleRequest(1, 0, SIZE)]
    assert sample.index != 1 and sample.extra["unreadable"][0][0] == scan.images[1].path


@pytest.mark.parametrize(("kind", "room"), [("ram", "_free_memory"), ("disk", "_free_disk")])
def test_a_cache_without_room_is_refused_with_a_line(scan, kind, room, monkeypatch, caplog):
    monkeypatch.setattr(cache_module, room, lambda: (10_000.0, "a small machine"))
    with caplog.at_level(logging.WARNING, "libreyolo"):
        data = DetectSet(scan, RULE, cache=kind)
        data.prepare(SIZE)
    assert data.photos is None and f"cache={kind} is not used" in caplog.text and "a small machine" in caplog.text
    assert len(data[SampleRequest(0, 0, SIZE)].boxes) == 2


def test_an_unknown_cache_is_an_error(scan):
    with pytest.raises(ConfigError, match="cache='rma'"):
        DetectSet(scan, RULE, cache="rma").prepare(SIZE)


def test_workers_of_every_start_method_read_one_ram_cache(scan):
    data = DetectSet(scan, RULE, seed=3, cache="ram")
    data.prepare(SIZE)
    wanted = data[SampleRequest(2, 0, SIZE, YOLOX)].image
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found = pool.apply(_sample_of, (data, SampleRequest(2, 0, SIZE, YOLOX)))
    assert np.array_equal(found, wanted)


def _sample_of(data, request):
    return data[request].image
