"""Photos are placed in the network's input as the sheet says, and boxes go there and back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.data.fit import boxes_to_input, boxes_to_photo, fit_image, resized_size
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Input

RULES = {
    "top-left": Input(),
    "centre": Input(side="centre", round="nearest", pad=0),
    "stretch": Input(fit="stretch"),
    "crop": Input(fit="crop", margin=0.875, resample="pil-bicubic"),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("photo", [(48, 64), (200, 90), (33, 500), (64, 64), (7, 5)])
def test_boxes_come_back_from_the_input_unchanged(rule, photo):
    image, placement = fit_image(np.zeros((*photo, 3), np.uint8), rule, (64, 96))
    assert image.shape == (64, 96, 3) and placement.size == (64, 96) and placement.photo == photo
    boxes = np.array([[1, 2, 4, 5], [0, 0, photo[1], photo[0]]], dtype=np.float32)
    there = boxes_to_input(boxes, placement)
    assert np.allclose(boxes_to_photo(there, placement), boxes, atol=1e-3)  # float32 of sides up to 500
    tensor = boxes_to_photo(boxes_to_input(torch.from_numpy(boxes), placement), placement)
    assert torch.allclose(tensor, torch.from_numpy(boxes), atol=1e-3)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_box_marks_the_same_pixels_before_and_after(rule):
    photo = np.zeros((120, 160, 3), np.uint8)
    photo[30:70, 60:110] = 255
    image, placement = fit_image(photo, rule, (64, 64))
    x1, y1, x2, y2 = boxes_to_input(np.array([[60, 30, 110, 70]], np.float32), placement)[0]
    rows, columns = np.where(image[:, :, 0] > 127)
    found = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    assert np.abs(np.array(found) - (x1, y1, x2, y2)).max() <= 1  # a pixel of rounding


def test_letterbox_pads_right_and_below_or_all_around():
    photo = np.full((50, 100, 3), 200, np.uint8)
    image, placement = fit_image(photo, Input(pad=7), (64, 64))
    assert (image[:32] == 200).all() and (image[32:] == 7).all() and placement.offset == (0, 0)
    image, placement = fit_image(photo, Input(pad=7, side="centre"), (64, 64))
    assert (image[16:48] == 200).all() and (image[:16] == 7).all() and (image[48:] == 7).all()
    assert placement.offset == (0, 16)


def test_resized_sides_are_exact_whatever_the_ratio():
    for height in range(1, 700, 13):
        for width in (1, 3, 49, 97, 333, 641, 1921):
            h, w = resized_size(Input(), (height, width), (640, 640))
            assert max(h, w) == 640  # a ratio in floating point would lose a pixel here and there
            if width >= height:
                assert h == max(1, 640 * height // width)


def test_floor_and_nearest_differ_where_the_side_is_not_whole():
    assert resized_size(Input(round="floor"), (427, 640), (416, 416)) == (277, 416)  # 277.55
    assert resized_size(Input(round="nearest"), (427, 640), (416, 416)) == (278, 416)


def test_crop_takes_the_centre_of_a_slightly_larger_picture():
    rule = Input(fit="crop", margin=0.875, resample="pil-linear")
    assert resized_size(rule, (300, 400), (224, 224)) == (256, 341)
    photo = np.zeros((300, 400, 3), np.uint8)
    photo[140:160, 190:210] = 255
    image, placement = fit_image(photo, rule, (224, 224))
    assert image[112, 112].tolist() == [255, 255, 255]
    assert placement.offset[0] < 0 and placement.offset[1] < 0


def test_resampling_is_the_named_one(smooth_photo):
    photo = smooth_photo(300, 400)
    by = {
        r: fit_image(photo, Input(fit="stretch", resample=r), (64, 64))[0]
        for r in ("linear", "pil-linear", "pil-bicubic")
    }
    assert np.array_equal(by["linear"], cv2.resize(photo, (64, 64), interpolation=cv2.INTER_LINEAR))
    pil = Image.fromarray(photo)
    assert np.array_equal(by["pil-linear"], np.asarray(pil.resize((64, 64), Image.Resampling.BILINEAR)))
    assert np.array_equal(by["pil-bicubic"], np.asarray(pil.resize((64, 64), Image.Resampling.BICUBIC)))


def test_prediction_may_resample_differently(smooth_photo):
    photo = smooth_photo(300, 400)
    rule = Input(predict_resample="pil-linear")
    training, predicting = fit_image(photo, rule, (64, 64))[0], fit_image(photo, rule, (64, 64), predicting=True)[0]
    assert not np.array_equal(training, predicting)
    assert np.array_equal(predicting, fit_image(photo, Input(resample="pil-linear"), (64, 64))[0])


def test_a_rule_that_does_not_exist_names_those_that_do():
    with pytest.raises(ConfigError, match="letterbox"):
        fit_image(np.zeros((4, 4, 3), np.uint8), Input(fit="letterbx"), (8, 8))
    with pytest.raises(ConfigError, match="pil-linear"):
        fit_image(np.zeros((4, 4, 3), np.uint8), Input(resample="pil-linaer"), (8, 8))
