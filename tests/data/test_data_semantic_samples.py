"""Masks stay on their photo through fitting, crops, caches and batches."""

from __future__ import annotations

import functools
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.augment import Affine, Flip, Hsv, Mosaic, Rotate90, ScaleCrop
from libreyolo_core.data.batch import SampleRequest
from libreyolo_core.data.dataset import SemanticSet, collate_semantic
from libreyolo_core.data.loader import train_loader
from libreyolo_core.data.masks import MaskReading
from libreyolo_core.family import Input
from semantic_sets import blocks, scan

RULE = Input(resample="pil-linear")
MORPHOLOGY = ((cv2.erode, 0), (cv2.dilate, 255))


def checked_pixels(sample) -> int:
    """Away from the border between two classes, where interpolation mixes them, the mask says what the photo shows."""
    values, mask = sample.image[..., 0].astype(int), sample.layers["mask"]
    assert mask.shape == sample.image.shape[:2] and mask.dtype == np.uint8
    around = np.ones((11, 11), np.uint8)  # photos grow up to four times; what is beyond the edge cannot be seen
    eroded, dilated = (f(mask, around, borderType=cv2.BORDER_CONSTANT, borderValue=v) for f, v in MORPHOLOGY)
    inner = eroded == dilated
    for value, label in ((30, 0), (90, 1), (150, 2)):
        assert (np.abs(values - value) <= 2)[inner & (mask == label)].all()
    return int((inner & (mask != 255)).sum())


AUGMENTS = {
    "none": (),
    "flip": (Flip(p=1),),
    "turn": (Rotate90(p=1),),
    "affine": (Affine(rotate=20, translate=0.2, scale=(0.5, 1.5), shear=5),),
    "mosaic": (Mosaic(scale=(0.5, 1.5)),),
    "crop": (ScaleCrop(), Flip(p=0.5)),
    "all": (Mosaic(scale=(0.8, 1.2)), Flip(), ScaleCrop(), Rotate90(p=1)),
}


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
@pytest.mark.parametrize("fit", ["letterbox", "stretch"])
def test_masks_stay_on_their_photos_whatever_moves_them(painted, augment, fit):
    data = SemanticSet(painted, Input(fit=fit, resample="pil-linear"), seed=1)
    checked = 0
    for i in range(len(data)):
        for epoch in range(3):
            sample = data[SampleRequest(i, epoch, (64, 64), augment)]
            assert sample.image.shape == (64, 64, 3) and (sample.placement is not None) == (not augment)
            checked += checked_pixels(sample)
    assert checked > 1000


def test_colours_change_without_the_mask(painted):
    data = SemanticSet(painted, RULE)
    plain, jittered = (
        data[SampleRequest(1, 0, (64, 64), (*a, Flip(p=1)))] for a in ((), (Hsv(value=90, saturation=90),))
    )
    assert np.array_equal(plain.layers["mask"], jittered.layers["mask"])


def test_padding_is_ignored(painted):
    data = SemanticSet(painted, RULE)
    sample = data[SampleRequest(0, 0, (64, 64))]  # 40 x 64: below is padding
    assert (sample.layers["mask"][40:] == 255).all() and (sample.image[40:] == 114).all()
    small = data[SampleRequest(3, 0, (64, 64), (ScaleCrop(scale=(0.5, 0.5)),))]  # 32 x 46 in the corner
    assert (small.layers["mask"][32:] == 255).all() and (small.layers["mask"][:, 46:] == 255).all()
    assert (small.image[32:] == 114).all()


def test_a_crop_avoids_what_one_class_fills(mask_set, write_photo):
    mask = np.zeros((64, 256), np.uint8)
    mask[:, 100:130] = 1
    path = mask_set(train=[mask])
    write_photo(path.parent / "images/train/000.jpg", 64, 256)
    data = SemanticSet(scan(path), RULE)

    def mixed(most: float) -> float:
        crops = [data[SampleRequest(0, e, (64, 64), (ScaleCrop(scale=(1, 1), most=most),))] for e in range(60)]
        return sum((c.layers["mask"] == 1).mean() >= 0.25 for c in crops) / len(crops)

    # a crop of 64 of 256 columns holds at least 16 of the 30 with class 1 in about 35% of the places
    assert mixed(1.0) < 0.6 and mixed(0.75) > 0.9


def test_a_crop_without_any_label_is_taken_as_it_is(mask_set):
    path = mask_set(train=[blocks(values=(255, 255, 255, 0))])
    data = SemanticSet(scan(path), RULE)
    assert data[SampleRequest(0, 0, (16, 16), (ScaleCrop(scale=(1, 1)),))].layers["mask"].shape == (16, 16)


def test_mixup_and_policies_are_refused_where_there_are_masks(painted):
    from libreyolo_core.augment import AutoAugment, MixUp
    from libreyolo_core.errors import ConfigError

    data = SemanticSet(painted, RULE)
    for augment in (MixUp(), AutoAugment(policy="randaugment")):
        with pytest.raises(ConfigError, match="mask"):
            data[SampleRequest(0, 0, (64, 64), (augment,))]


def batches(data: SemanticSet, augment, **options) -> list:
    collate = functools.partial(collate_semantic, rule=data.rule)
    with train_loader(data, collate, batch=2, seed=3, **options) as loader:
        return list(loader.epoch(1, size=(64, 64), augment=augment))


def same(a, b) -> bool:
    return (
        a.indices == b.indices
        and torch.equal(a.images, b.images)
        and torch.equal(a.targets.masks, b.targets.masks)
        and torch.equal(a.draw, b.draw)
    )


def test_a_batch_has_masks_and_is_the_same_whatever_the_workers_and_the_cache(painted):
    for augment in (AUGMENTS["crop"], ()):
        wanted = batches(SemanticSet(painted, RULE, seed=2), augment)
        assert wanted[0].targets.masks.shape == (2, 64, 64) and wanted[0].targets.masks.dtype == torch.uint8
        for options in ({"cache": "ram"}, {"cache": "disk"}, {"workers": 2}, {"cache": "ram", "workers": 1}):
            workers = options.pop("workers", 0)
            found = batches(SemanticSet(painted, RULE, seed=2, **options), augment, workers=workers)
            assert all(same(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_cached_mask_is_decoded_once(painted, monkeypatch):
    from libreyolo_core.data import dataset as module

    reads = []
    original = module.read_mask
    monkeypatch.setattr(module, "read_mask", lambda *a: reads.append(a[0]) or original(*a))
    data = SemanticSet(painted, RULE, cache="ram")
    batches(data, AUGMENTS["crop"])
    batches(data, AUGMENTS["crop"])
    assert len(reads) == 5 and data.kept_layers["mask"].channels == 1


def test_a_mask_that_goes_bad_is_replaced_with_its_photo_and_named(painted):
    bad = painted.images[2].layers["mask"]
    Path(bad).write_bytes(b"gone bad")
    data = SemanticSet(painted, RULE)
    sample = data[SampleRequest(2, 0, (64, 64), AUGMENTS["crop"])]
    assert sample.index != 2 and sample.extra["unreadable"][0][0] == bad
    Image.fromarray(blocks()).save(bad)  # another size than the photo
    assert "not what the scan found" in data[SampleRequest(2, 0, (64, 64))].extra["unreadable"][0][1]


def test_polygon_masks_reach_the_samples(detect_set):
    found = scan(detect_set(train=["1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75"] * 3))
    sample = SemanticSet(found, RULE)[SampleRequest(0, 0, (64, 64))]
    assert set(np.unique(sample.layers["mask"][:40])) == {1, 2} and (sample.layers["mask"][20, 20:44] == 1).all()


def test_photos_of_their_own_size_are_padded_to_the_batch(painted):
    rule = Input(fit="native", border="reflect", multiple=16)
    data = SemanticSet(painted, rule)
    batch = collate_semantic([data[SampleRequest(i, 0, (64, 64))] for i in (0, 2)], rule)
    assert batch.images.shape == (2, 3, 96, 64) and batch.targets.masks.shape == (2, 96, 64)
    assert (batch.targets.masks[0, 40:] == 255).all() and [p.photo for p in batch.placements] == [(40, 64), (90, 50)]


def test_a_scan_made_by_hand_reads_plain_class_ids(painted):
    painted.reading = None
    assert SemanticSet(painted, RULE).reading == MaskReading(3)
