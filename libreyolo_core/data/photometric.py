"""Photometric distortion (Liu et al., 2016, "SSD", section 2.2; Howard, 2013): colours change, pixels stay in place."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.transforms import Context


def photometric(spec: augment.Photometric, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Brightness, contrast, saturation, hue and the order of the channels, each with probability ``spec.each``;
    contrast comes first or last. A photo without boxes stays as it is."""
    if not len(sample.boxes):
        return sample
    brightness, contrast, saturation, hue, order = (rng.random(5) < spec.each).tolist()
    contrast_first = rng.random() < 0.5
    factors = [rng.uniform(*limits) for limits in (spec.brightness, spec.contrast, spec.saturation)]
    turn = rng.uniform(-spec.hue, spec.hue)
    permutation = rng.permutation(3).tolist()
    image = sample.image
    if brightness:
        image = cv2.LUT(image, _table(factors[0], 0.0))
    if contrast and contrast_first:
        image = _contrast(image, factors[1])
    if saturation:
        grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        image = cv2.addWeighted(image, factors[2], grey, 1 - factors[2], 0.0)
    if hue:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
        image[:, :, 0] += np.uint8(round(turn * 256) % 256)  # 256 hues, so a byte wraps as the circle does
        image = cv2.cvtColor(image, cv2.COLOR_HSV2RGB_FULL)
    if contrast and not contrast_first:
        image = _contrast(image, factors[1])
    if order:
        image = np.ascontiguousarray(image[:, :, permutation])
    return replace(sample, image=image)


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Stretch the values about the mean brightness of the photo."""
    mean = cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0]
    return cv2.LUT(image, _table(factor, mean * (1 - factor)))


def _table(factor: float, shift: float) -> np.ndarray:
    """``factor * value + shift`` for every byte, uint8 [256]."""
    return np.clip(np.rint(np.arange(256) * factor + shift), 0, 255).astype(np.uint8)
