"""Augmentation moves boxes with their pixels, loses none in silence, and depends on nothing but its key."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import cv2
import numpy as np
import pytest

from libreyolo_core.augment import (
    Affine,
    Augment,
    AutoAugment,
    Erase,
    Flip,
    FlipVertical,
    Hsv,
    MixLabels,
    MixUp,
    Mosaic,
    RandomResizedCrop,
    Rotate90,
)
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.mixing import mix_pairs
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.transforms import Context, apply, fit_sample
from libreyolo_core.data.warp import affine_matrix, warp_boxes
from libreyolo_core.draw import key
from libreyolo_core.errors import ConfigError, PluginError
from libreyolo_core.family import Input

SIZE = (96, 128)
BOXES = [(10, 12, 34, 30), (60, 20, 84, 52), (20, 60, 50, 80)]


def photo(height: int = 96, width: int = 128, boxes=BOXES, seed: int = 0) -> Sample:
    """A dark, smooth photo with a bright rectangle in every box."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 60, (4, 4, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    for x1, y1, x2, y2 in boxes:
        image[y1:y2, x1:x2] = 255
    return Sample(
        image, np.array(boxes, np.float32).reshape(-1, 4), np.arange(len(boxes), dtype=np.int64), seed, f"{seed}.jpg"
    )


def context(photos: list[Sample], size=SIZE, rule: Input | None = None, loads: list[int] | None = None) -> Context:
    def load(index: int) -> Sample:
        if loads is not None:
            loads.append(index)
        return photos[index]

    return Context(
        size,
        rule or Input(),
        len(photos),
        load,
        lambda i: photos[i].image.shape[:2],
        lambda i: len(photos[i].boxes),
    )


def run(specs, sample: Sample, around: Context | None = None, draw: int = 1) -> Sample:
    around = around or context([sample])
    return fit_sample(apply(tuple(specs), sample, around, draw=draw), around)


def bright(image: np.ndarray, box: np.ndarray) -> float:
    """Mean brightness inside a box, a pixel away from its edge."""
    x1, y1, x2, y2 = np.round(box).astype(int)
    return float(image[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1].mean())


@pytest.mark.parametrize(
    "spec",
    [
        Flip(p=1),
        FlipVertical(p=1),
        Rotate90(p=1),
        Affine(rotate=0, translate=0.1, scale=(0.7, 1.1)),
        RandomResizedCrop(),
        Mosaic(rotate=0, shear=0, translate=0.1, scale=(0.7, 1.0)),
    ],
    ids=lambda s: s.name,
)
def test_boxes_stay_on_their_pixels(spec):
    checked = 0
    for draw in range(12):
        out = run([spec], photo(), draw=draw)
        assert out.image.shape == (*SIZE, 3) and out.boxes.dtype == np.float32 and out.image.dtype == np.uint8
        for box in out.boxes:
            if (box[2:] - box[:2]).min() > 6:
                assert bright(out.image, box) > 180  # interpolation darkens the rim
                checked += 1
    assert checked > 12


def test_what_a_function_was_given_is_never_written_to():
    specs = [
        *(Mosaic(), MixUp(), Affine(), Hsv(), Flip(p=1), FlipVertical(p=1), Rotate90(p=1), RandomResizedCrop()),
        Erase(p=1),
    ]
    for spec in specs:
        photos = [photo(seed=i) for i in range(4)]
        for p in photos:
            p.image.flags.writeable = p.boxes.flags.writeable = p.labels.flags.writeable = False
        for draw in range(5):
            run([Mosaic(), spec] if isinstance(spec, MixUp) else [spec], photos[0], context(photos), draw)


def test_the_same_key_gives_the_same_sample_and_another_key_another_one():
    photos = [photo(seed=i) for i in range(5)]
    specs = [Mosaic(), MixUp(), Hsv(), Flip()]
    a, b = (run(specs, photos[0], context(photos), draw=key(3, 1, 0)) for _ in range(2))
    assert np.array_equal(a.image, b.image) and np.array_equal(a.boxes, b.boxes)
    other = run(specs, photos[0], context(photos), draw=key(3, 2, 0))
    assert not np.array_equal(a.image, other.image)


def test_changing_one_augmentation_leaves_the_draws_of_the_others_alone():
    sample = photo()
    flipped = [np.array_equal(run([Hsv(p=0), Flip()], sample, draw=d).image, sample.image) for d in range(20)]
    again = [np.array_equal(run([Hsv(p=1, each=0), Flip()], sample, draw=d).image, sample.image) for d in range(20)]
    assert flipped == again and 3 < sum(flipped) < 17


def test_probability_is_kept():
    sample = photo()
    changed = sum(not np.array_equal(run([Flip(p=0.3)], sample, draw=d).image, sample.image) for d in range(400))
    assert 85 < changed < 155  # 120 expected, standard deviation 9


# mosaic


def reference_mosaic(spec: Mosaic, sample: Sample, around: Context, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """The definition, on a real canvas of twice the size: image and bounds of all boxes, not yet judged."""
    rng = keyed(draw, 0)
    rng.random()
    height, width = around.size
    centre_y, centre_x = (int(rng.uniform(*spec.centre) * side) for side in (height, width))
    partners = rng.integers(around.count, size=3).tolist()
    matrix = affine_matrix(spec, rng, around.size)
    canvas = np.full((2 * height, 2 * width, 3), around.input.pad, np.uint8)
    boxes = []
    for corner, tile in enumerate([sample, *map(around.load, partners)]):
        rows, columns = tile.image.shape[:2]
        scale = min(height / rows, width / columns, math.inf if spec.enlarge else 1.0)
        part = cv2.resize(tile.image, (round(columns * scale), round(rows * scale)))
        x = centre_x - (part.shape[1] if corner in (0, 2) else 0)
        y = centre_y - (part.shape[0] if corner in (0, 1) else 0)
        x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + part.shape[1], 2 * width), min(y + part.shape[0], 2 * height)
        canvas[y1:y2, x1:x2] = part[y1 - y : y2 - y, x1 - x : x2 - x]
        moved = tile.boxes * scale + [x, y, x, y]
        boxes.append(moved.clip(0, [2 * width, 2 * height] * 2))
    centres = matrix.copy()
    centres[:, 2] += matrix[:, :2] @ [0.5, 0.5] - 0.5
    image = cv2.warpAffine(canvas, centres, (width, height), borderValue=(around.input.pad,) * 3)
    bounds = warp_boxes(np.concatenate(boxes), matrix)
    return image, bounds.clip(0, [width, height] * 2)


@pytest.mark.parametrize(
    "spec",
    [
        Mosaic(),
        Mosaic(rotate=0, shear=0, scale=(0.5, 0.9)),
        Mosaic(scale=(0.2, 0.4)),
        Mosaic(rotate=0, shear=0, enlarge=False),
    ],
)
def test_mosaic_without_its_canvas_equals_mosaic_with_it(spec):
    photos = [photo(96, 128, seed=0), photo(60, 128, [(5, 5, 40, 40)], 1), photo(96, 60, [], 2), photo(30, 40, [], 3)]
    around = context(photos)
    for draw in range(15):
        out = run([spec], photos[0], around, draw=draw)
        image, bounds = reference_mosaic(spec, photos[0], around, draw)
        away = np.abs(out.image.astype(int) - image)
        # one interpolation instead of two, and seams that differ by a pixel: few pixels, most by little
        assert (away > 40).mean() < 0.06 and np.median(away) <= 2
        sides = (bounds[:, 2:] - bounds[:, :2]).min(axis=1)
        if len(out.boxes) and not (np.abs(sides - 1) < 0.01).any():
            assert np.allclose(out.boxes, bounds[sides > 1], atol=1)  # tiles of whole pixels in the reference


def test_mosaic_and_mixup_lose_no_box_but_those_cut_below_the_stated_area():
    photos = [photo(seed=i) for i in range(3)]
    around = context(photos)
    everything = Mosaic(rotate=0, shear=0, translate=0, scale=(0.5, 0.5), centre=(1.0, 1.0))
    for draw in range(6):
        out = run([everything], photos[0], around, draw=draw)
        assert len(out.boxes) == 4 * len(BOXES)  # the whole canvas is in view
        assert sorted(out.labels.tolist()) == sorted([0, 1, 2] * 4)
        mixed = run([everything, MixUp(scale=(1.0, 1.0))], photos[0], around, draw=draw)
        assert len(mixed.boxes) == 5 * len(BOXES)
    spec = Mosaic(min_area=0.4)
    for draw in range(30):
        loose, strict = (run([s], photos[0], around, draw=draw) for s in (replace(spec, min_area=0), spec))
        assert len(strict.boxes) <= len(loose.boxes)
        kept = {tuple(b) for b in loose.boxes.tolist()}
        assert all(tuple(b) in kept for b in strict.boxes.tolist())
        _, bounds = reference_mosaic(replace(spec, min_area=0), photos[0], around, draw)
        sides = (bounds[:, 2:] - bounds[:, :2]).min(axis=1)
        assert abs(len(loose.boxes) - (sides > 1).sum()) <= (np.abs(sides - 1) < 1).sum()


def test_min_area_counts_what_the_canvas_and_the_edge_cut():
    sample = photo(boxes=[(0, 0, 60, 96), (64, 0, 128, 96)])
    spec = Mosaic(rotate=0, shear=0, translate=0, scale=(1.0, 1.0), centre=(0.5, 0.5))
    empty = photo(boxes=[], seed=1)
    for min_area, kept in ((0.0, [1]), (0.4, [1]), (0.6, [])):  # half of the second box is above the canvas' edge
        around = context([empty])
        out = apply((replace(spec, min_area=min_area),), sample, around, draw=0)
        assert out.labels.tolist() == kept


def test_a_mosaic_drops_boxes_whose_shorter_side_is_not_above_the_stated_pixels():
    photos = [photo(seed=i) for i in range(3)]
    spec, dropped = Mosaic(rotate=0, shear=0), 0
    for draw in range(20):
        every = apply((spec,), photos[0], context(photos), draw=draw).boxes
        kept = apply((replace(spec, min_side=8.0),), photos[0], context(photos), draw=draw).boxes
        wide = (every[:, 2:] - every[:, :2]).min(axis=1) > 8
        assert np.array_equal(kept, every[wide])
        dropped += int((~wide).sum())
    assert dropped > 0


def test_a_mosaic_does_not_read_photos_that_end_up_outside():
    photos, loads = [photo(seed=i) for i in range(4)], []
    zoomed = Mosaic(rotate=0, shear=0, translate=0, scale=(2.0, 2.0), centre=(1.0, 1.0))
    run([zoomed], photos[0], context(photos, loads=loads))
    assert loads == []  # only the top-left quarter is in view
    run([replace(zoomed, scale=(0.5, 0.5))], photos[0], context(photos, loads=loads))
    assert len(loads) == 3


def test_a_photo_that_stands_in_for_another_may_have_another_shape():
    photos = [photo(seed=0), photo(40, 100, [(10, 10, 30, 30)], 1)]
    around = replace(context(photos), shape=lambda i: (96, 128), load=lambda i: photos[1])
    out = run([Mosaic(rotate=0, shear=0, translate=0, scale=(0.5, 0.5), centre=(1.0, 1.0))], photos[0], around)
    assert len(out.boxes) == 6
    assert all(bright(out.image, b) > 180 for b in out.boxes if (b[2:] - b[:2]).min() > 6)


def test_backgrounds_stay_in_a_mosaic():
    empty = [photo(boxes=[], seed=i) for i in range(3)]
    out = run([Mosaic(), MixUp(), Hsv(), Flip()], empty[0], context(empty))
    assert out.boxes.shape == (0, 4) and out.labels.shape == (0,) and out.image.std() > 0


def test_mixup_applies_to_mosaics_with_boxes_only_and_takes_partners_with_boxes():
    photos = [photo(seed=0), photo(boxes=[], seed=1)]
    plain = run([MixUp()], photos[0], context(photos))
    assert np.array_equal(plain.image, photos[0].image)
    only_empty = [photos[1]]
    spec = Mosaic(rotate=0, shear=0, translate=0, scale=(0.5, 0.5), centre=(1.0, 1.0))
    unmixed = run([spec, MixUp()], photos[0], context(only_empty))
    assert np.array_equal(unmixed.image, run([spec], photos[0], context(only_empty)).image)
    for draw in range(8):
        out = apply((spec, MixUp(scale=(0.6, 1.4))), photos[0], context(photos), draw=draw)
        before = apply((spec,), photos[0], context(photos), draw=draw)
        for box in out.boxes[len(before.boxes) :]:  # the partner's: half as bright, or more over bright ground
            if (box[2:] - box[:2]).min() > 6:
                assert bright(out.image, box) > 120
        assert len(out.boxes) > len(before.boxes)


# colour


def test_hsv_shifts_by_whole_numbers_around_the_circle_of_hues():
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), (7, 7), 2)
    sample = Sample(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))

    class Fixed:
        def __init__(self, shift, reach):
            self.values = np.array([(abs(s) + 0.5) * np.sign(s) / r if s else 0 for s, r in zip(shift, reach)])

        def uniform(self, *_, **__):
            return self.values

        def random(self, count):
            return np.zeros(count)

    from libreyolo_core.data.transforms import hsv

    spec = Hsv(hue=100, saturation=60, value=60)
    for shift in [
        (4, 20, 20),
        (-4, -20, 20),
        (-90, 0, 0),
        (90, 5, -5),
        (0, 40, 0),
        (0, 0, -50),
        (75, 0, 0),
        (-76, 0, 0),
    ]:
        out = hsv(spec, sample, Fixed(shift, (100, 60, 60)), context([sample])).image
        wanted = cv2.cvtColor(image, cv2.COLOR_RGB2HSV).astype(int)
        wanted[..., 0] = (wanted[..., 0] + shift[0]) % 180
        wanted[..., 1:] = (wanted[..., 1:] + shift[1:]).clip(0, 255)
        wanted = cv2.cvtColor(wanted.astype(np.uint8), cv2.COLOR_HSV2RGB)
        assert (
            np.abs(out.astype(int) - wanted).max() <= 8
        )  # a hue rounded up instead of down: 1/30 of a sixth of the circle


def test_hsv_can_leave_channels_alone():
    sample = photo()
    assert np.array_equal(run([Hsv(each=0.0)], sample).image, sample.image)


# fitting afterwards


def test_boxes_at_most_a_pixel_wide_are_dropped_after_augmentation():
    sample = photo(boxes=[(10, 10, 40, 40)])
    sample = replace(sample, boxes=np.array([[10, 10, 11, 40], [10, 10, 40, 40]], np.float32), labels=np.array([0, 1]))
    assert run([Flip(p=1)], sample).labels.tolist() == [1]


def test_a_sample_of_another_size_is_fitted_by_the_rule():
    sample = photo(48, 128)
    out = run([Flip(p=0)], sample, context([sample], (64, 64), Input(pad=9)))
    assert out.image.shape == (64, 64, 3) and (out.image[24:] == 9).all()
    assert np.allclose(out.boxes[0], np.array(BOXES[0]) / 2, atol=0.01) and out.placement is None


def test_affine_fits_and_warps_in_one_step_for_every_rule():
    for rule in (Input(), Input(side="centre"), Input(fit="stretch"), Input(fit="crop")):
        sample = photo(48, 128, [(50, 10, 80, 40)])
        still = Affine(rotate=0, translate=0, scale=(1.0, 1.0), shear=0)
        out = run([still], sample, context([sample], (64, 64), rule))
        plain = run([Flip(p=0)], sample, context([sample], (64, 64), rule))
        assert np.abs(out.image.astype(int) - plain.image).mean() < 3  # the same resampling, written differently
        assert np.allclose(out.boxes, plain.boxes, atol=0.51)  # a crop begins at a whole pixel


# classification


def classified(seed: int = 0, label: int = 1, size=(60, 80)) -> Sample:
    rng = np.random.default_rng(seed)
    image = cv2.resize(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC)
    return Sample(image, np.zeros((0, 4), np.float32), np.array([label]), seed)


RULE = Input(fit="crop", resample="pil-bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def test_random_crops_have_the_stated_area_and_aspect():
    from libreyolo_core.data.transforms import _random_part

    spec = RandomResizedCrop(scale=(0.3, 0.6), ratio=(0.75, 4 / 3))
    for draw in range(50):
        top, left, height, width = _random_part(spec, keyed(draw, 0), (200, 300))
        assert 0.28 < height * width / 60_000 < 0.62 and 0.74 < width / height < 1.35  # rounding to whole pixels
        assert 0 <= top <= 200 - height and 0 <= left <= 300 - width
    assert _random_part(RandomResizedCrop(scale=(1, 1)), keyed(0, 0), (10, 1000))[2:] == (10, 13)
    out = run([spec], classified(), context([classified()], (32, 32), RULE))
    assert out.image.shape == (32, 32, 3) and out.labels.tolist() == [1]


@pytest.mark.parametrize("policy", ["randaugment", "autoaugment", "augmix"])
def test_torchvision_policies_are_repeatable_and_leave_the_global_generator_alone(policy):
    import torch

    sample = classified()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = (
        run([AutoAugment(policy=policy)], sample, context([sample], (60, 80), RULE)).image for _ in range(2)
    )
    assert np.array_equal(first, second) and torch.equal(torch.get_rng_state(), before)
    others = [run([AutoAugment(policy=policy)], sample, context([sample], (60, 80), RULE), d).image for d in range(5)]
    assert any(not np.array_equal(first, o) for o in others)


def test_policies_that_do_not_exist_or_would_leave_boxes_behind_are_refused():
    assert np.array_equal(run([AutoAugment()], photo()).image, photo().image)
    with pytest.raises(ConfigError, match="randaugment"):
        run([AutoAugment(policy="randaug")], classified())
    with pytest.raises(ConfigError, match="without moving boxes"):
        run([AutoAugment(policy="augmix")], photo())


def test_erasing_fills_with_the_colour_that_normalises_to_zero():
    sample = classified()
    out = run([Erase(p=1, area=(0.2, 0.3))], sample, context([sample], (60, 80), RULE))
    changed = (out.image != sample.image).any(axis=-1)
    assert 0.15 < changed.mean() < 0.32
    assert (out.image[changed] == np.round(np.array(RULE.mean) * 255)).all()


def test_mixing_pairs_gives_soft_labels_that_sum_to_one_whatever_the_rest_of_the_batch_is():
    for spec in (MixLabels(mixup=1.0), MixLabels(cutmix=1.0), MixLabels(mixup=0.5, cutmix=0.5)):
        samples = []
        for i in range(6):
            s = run([spec], classified(i, i % 3), context([classified()], (60, 80), RULE))
            samples.append(replace(s, draw=key(0, 0, i)))
        images, rows = mix_pairs(samples, 3)
        assert np.allclose(rows.sum(axis=1), 1) and (rows.max(axis=1) < 1).any()
        assert any(not np.array_equal(i, s.image) for i, s in zip(images, samples))
        for rank in range(3):  # a rank that holds one pair computes what a process with all of them does
            part_images, part_rows = mix_pairs(samples[2 * rank : 2 * rank + 2], 3)
            assert np.array_equal(part_rows, rows[2 * rank : 2 * rank + 2])
            assert all(np.array_equal(a, b) for a, b in zip(part_images, images[2 * rank : 2 * rank + 2]))


def test_cutmix_labels_are_the_shares_of_the_area():
    white, black = classified(0, 0), classified(0, 1)
    white, black = (
        replace(white, image=np.full((60, 80, 3), 255, np.uint8)),
        replace(black, image=np.zeros((60, 80, 3), np.uint8)),
    )
    for draw in range(10):
        pair = [replace(s, draw=draw, extra={"mix": MixLabels(cutmix=1.0)}) for s in (white, black)]
        images, rows = mix_pairs(pair, 2)
        assert rows[0, 0] == pytest.approx((images[0] == 255).mean()) and rows[1, 1] == pytest.approx(
            (images[1] == 0).mean()
        )


# extension


@dataclass(frozen=True)
class Absent(Augment):
    name: ClassVar[str] = "absent"
    code: ClassVar[str] = "libreyolo_core.data.transforms:none_such"


def test_a_function_that_cannot_be_imported_is_named_with_who_asked_for_it():
    with pytest.raises(PluginError, match=r"none_such.*augment\.absent"):
        run([Absent()], photo())
