"""Zooming out, overlap crops and photometric distortion: boxes stay on their pixels, photos without boxes stay."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from libreyolo_core.augment import IoUCrop, Photometric, ZoomOut
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.transforms import Context, apply, fit_sample
from libreyolo_core.family import Input

BOXES = [(10, 12, 34, 30), (60, 20, 84, 52), (20, 60, 50, 80)]


def photo(height=96, width=128, boxes=BOXES) -> Sample:
    """A dark photo with a bright rectangle in every box."""
    coarse = np.random.default_rng(0).integers(0, 60, (4, 4, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    for x1, y1, x2, y2 in boxes:
        image[y1:y2, x1:x2] = 255
    labels = np.arange(len(boxes), dtype=np.int64)
    return Sample(image, np.array(boxes, np.float32).reshape(-1, 4), labels, 0, "0.jpg")


def context(size=(96, 128)) -> Context:
    return Context(size, Input(fit="stretch"), 1, lambda i: photo(), lambda i: (96, 128), lambda i: 3)


def run(spec, sample: Sample, draw: int) -> Sample:
    return apply((spec,), sample, context(), draw=draw)


@pytest.mark.parametrize("spec", [ZoomOut(p=1, scale=(1, 2)), IoUCrop(p=1), Photometric(p=1, each=1)])
def test_boxes_stay_on_what_they_mark(spec):
    for draw in range(30):
        out = run(spec, photo(), draw)
        inside = np.zeros(out.image.shape[:2], dtype=bool)
        for x1, y1, x2, y2 in np.round(out.boxes).astype(int):
            inside[y1:y2, x1:x2] = True
            assert out.image[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1].mean() > 120  # contrast and brightness may halve 255
        assert (out.boxes[:, :2] >= 0).all() and (out.boxes[:, 2:] <= out.image.shape[1::-1]).all()


@pytest.mark.parametrize("spec", [ZoomOut(p=1), IoUCrop(p=1), Photometric(p=1)])
def test_the_given_arrays_are_not_written_to_and_a_draw_repeats(spec):
    sample = photo()
    image, boxes = sample.image.copy(), sample.boxes.copy()
    sample.image.flags.writeable = sample.boxes.flags.writeable = False
    first, again, other = run(spec, sample, 3), run(spec, sample, 3), run(spec, sample, 4)
    assert np.array_equal(sample.image, image) and np.array_equal(sample.boxes, boxes)
    assert np.array_equal(first.image, again.image) and np.array_equal(first.boxes, again.boxes)
    assert first.image.shape != other.image.shape or not np.array_equal(first.image, other.image)


@pytest.mark.parametrize("spec", [ZoomOut(p=1), IoUCrop(p=1), Photometric(p=1)])
def test_a_photo_without_boxes_stays_as_it_is(spec):
    sample = photo(boxes=[])
    assert run(spec, sample, 1) is sample


def test_zooming_out_keeps_every_box_at_its_size_on_a_canvas_of_the_stated_range():
    for draw in range(20):
        out = run(ZoomOut(p=1, scale=(1.5, 3), fill=7), photo(), draw)
        height, width = out.image.shape[:2]
        assert 144 <= height <= 288 and abs(width / height - 128 / 96) < 0.02
        assert np.allclose(out.boxes[:, 2:] - out.boxes[:, :2], photo().boxes[:, 2:] - photo().boxes[:, :2])
        assert len(out.labels) == 3 and (out.image == 7).all(-1).sum() >= height * width - 96 * 128
    fitted = fit_sample(out, context())
    assert fitted.image.shape == (96, 128, 3) and len(fitted.boxes) == 3


def test_a_crop_overlaps_some_box_by_what_was_wanted_and_has_the_stated_shape():
    spec = IoUCrop(p=1, overlaps=(0.3,), scale=(0.2, 0.6))
    for draw in range(20):
        out = run(spec, photo(), draw)
        height, width = out.image.shape[:2]
        assert 0.19 * 96 - 1 <= height <= 0.6 * 96 and 0.19 * 128 - 1 <= width <= 0.6 * 128
        assert 0.5 <= width / height <= 2
        sides = out.boxes[:, 2:] - out.boxes[:, :2]
        assert (sides.prod(1) / (height * width)).max() >= 0.3  # what is left of a box is all it shares with the part


def test_a_box_is_lost_only_below_the_stated_share_of_its_area():
    spec = IoUCrop(p=1, overlaps=(0.0,), min_area=0.25)
    kept_cut = 0
    for draw in range(200):
        sample = photo()
        # a map of positions tells which part was cut out
        y, x = np.mgrid[:96, :128].astype(np.uint8)
        sample = replace(sample, layers={"x": x, "y": y})
        out = run(spec, sample, draw)
        left, top = int(out.layers["x"].min()), int(out.layers["y"].min())
        right, bottom = int(out.layers["x"].max()) + 1, int(out.layers["y"].max()) + 1
        for box, label in zip(sample.boxes, sample.labels):
            cut = box.clip([left, top] * 2, [right, bottom] * 2)
            share = (cut[2:] - cut[:2]).prod() / (box[2:] - box[:2]).prod()
            centre = (box[:2] + box[2:]) / 2
            inside = left < centre[0] < right and top < centre[1] < bottom
            assert (label in out.labels) == (share > 0 and (inside or share >= 0.25))
            kept_cut += label in out.labels and share < 1
    assert kept_cut > 20


def test_the_overlap_of_the_whole_photo_leaves_it_alone():
    sample = photo()
    assert run(IoUCrop(p=1, overlaps=(1.0,)), sample, 1) is sample


@pytest.mark.parametrize("spec", [ZoomOut(p=1, scale=(1.5, 2), fill=3), IoUCrop(p=1, overlaps=(0.0,))])
def test_layers_move_with_the_photo(spec):
    sample = photo()
    mask = (sample.image[:, :, 0] == 255).astype(np.uint8)
    sample = replace(sample, layers={"mask": mask, "clean": sample.image.copy()})
    for draw in range(10):
        out = run(spec, sample, draw)
        assert np.array_equal(out.layers["clean"], out.image)
        assert np.array_equal(out.layers["mask"] == 1, (out.image == 255).all(-1))
        if isinstance(spec, ZoomOut):
            assert (out.layers["mask"] == 255).sum() == out.image.shape[0] * out.image.shape[1] - 96 * 128


def test_distortion_changes_colours_only():
    sample = photo()
    mask = np.zeros((96, 128), np.uint8)
    sample = replace(sample, layers={"mask": mask})
    out = run(Photometric(p=1, each=1), sample, 5)
    assert out.layers["mask"] is mask and out.boxes is sample.boxes
    assert out.image.shape == sample.image.shape and not np.array_equal(out.image, sample.image)
    assert run(Photometric(p=1, each=0), sample, 5).image is sample.image


def test_each_part_of_the_distortion_does_what_it_says():
    grey = replace(photo(), image=np.full((96, 128, 3), 100, np.uint8))
    still = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": 0.0}
    bright = run(Photometric(p=1, each=1, **{**still, "brightness": (1.1, 1.1)}), grey, 1).image
    assert (bright == 110).all()
    assert (run(Photometric(p=1, each=1, **{**still, "contrast": (0.5, 0.5)}), grey, 1).image == 100).all()
    colour = np.zeros((96, 128, 3), np.uint8)
    colour[:] = (200, 100, 50)
    half = run(Photometric(p=1, each=1, **{**still, "saturation": (0.5, 0.5)}), replace(grey, image=colour), 1).image
    level = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    # bytes are rounded three times; the order of the channels is drawn
    assert sorted(half[0, 0].tolist()) == pytest.approx(sorted((np.array([200, 100, 50]) + level) / 2), abs=2)
    turned = run(Photometric(p=1, each=1, **{**still, "hue": 0.5}), replace(grey, image=colour), 1).image
    assert sorted(turned[0, 0].tolist())[0] == pytest.approx(50, abs=3)
    assert sorted(turned[0, 0].tolist())[2] == pytest.approx(200, abs=3)
