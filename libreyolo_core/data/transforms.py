"""Augmentation of one sample. Every ``Augment`` of ``libreyolo_core.augment`` names a function of this signature::

    def mine(spec, sample, rng, context) -> Sample

    spec     the frozen description (your ``Augment`` subclass, with its fields)
    sample   ``libreyolo_core.data.batch.Sample``: uint8 RGB image [h, w, 3] of any size, boxes float32 [n, 4] on it
    rng      ``numpy.random.Generator`` keyed by (seed, epoch, sample index, position in the list); the only randomness
             a function may use
    context  ``Context``: the input's size and rule, and other photos of the set

It is called with probability ``spec.p`` (drawn from the same generator) and returns a new sample; arrays it was given
may be cached, so they are never written to. Boxes are cut at the edge of the image, and ``visible`` decides which stay.
What moves pixels moves ``sample.layers`` with them (``moved``); what changes their colour leaves layers alone. After
the last function the sample is fitted to the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.fit import boxes_to_input, fit_image, place, resize, resized_size
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.scratch import scratch
from libreyolo_core.data.warp import affine_matrix, canvas_like, compose, paste, pasted, warp_boxes
from libreyolo_core.errors import ConfigError, suggestion
from libreyolo_core.family import Input, resolve

MIN_SIDE_PX = 1.0
"""After augmentation, boxes at most this wide or high are dropped."""


@dataclass(frozen=True)
class Context:
    """What an augmentation may ask about its surroundings.

    Args:
        size: (height, width) of the input in pixels.
        input: the sheet's input rule.
        count: number of photos in the set.
        load: ``load(index) -> Sample``, another photo with its boxes, not augmented, shrunk to the canvas if larger.
        shape: ``shape(index) -> (height, width)`` of what ``load`` returns, without loading it.
        boxes: ``boxes(index) -> int``, how many boxes it has.
    """

    size: tuple[int, int]
    input: Input
    count: int
    load: Callable[[int], Sample]
    shape: Callable[[int], tuple[int, int]]
    boxes: Callable[[int], int]


def apply(specs: tuple[augment.Augment, ...], sample: Sample, context: Context, *, draw: int) -> Sample:
    """Apply augmentations in order; ``draw`` is the sample's key."""
    for position, spec in enumerate(specs):
        rng = keyed(draw, position)
        if rng.random() < spec.p:
            sample = _function(spec)(spec, sample, rng, context)
    return sample


_functions: dict[str, Callable[..., Sample]] = {}


def _function(spec: augment.Augment) -> Callable[..., Sample]:
    if spec.code not in _functions:
        _functions[spec.code] = resolve(spec.code, declared_by=f"augment.{spec.name}")
    return _functions[spec.code]


def fit_sample(sample: Sample, context: Context) -> Sample:
    """An augmented sample fitted to the input, without the boxes that augmentation left too small."""
    if sample.image.shape[:2] != tuple(context.size):
        photo = sample.image.shape[:2]
        image, placement = fit_image(sample.image, context.input, context.size)
        layers = sample.layers
        if layers:
            target = resized_size(context.input, photo, context.size)
            layers = {
                name: place(resize(pixels, target, context.input.resample), context.input, photo, context.size)[0]
                for name, pixels in layers.items()
            }
        sample = replace(sample, image=image, boxes=boxes_to_input(sample.boxes, placement), layers=layers)
    if not len(sample.boxes):
        return sample
    sides = sample.boxes[:, 2:] - sample.boxes[:, :2]
    keep = sides.min(axis=1) > MIN_SIDE_PX
    return replace(sample, boxes=sample.boxes[keep], labels=sample.labels[keep])


def moved(sample: Sample, move: Callable[[np.ndarray], np.ndarray], **changes: Any) -> Sample:
    """The sample with its photo and its layers moved by one function of pixels, [h, w, 3] and [h, w] alike."""
    layers = {name: move(pixels) for name, pixels in sample.layers.items()} if sample.layers else sample.layers
    return replace(sample, image=move(sample.image), layers=layers, **changes)


def visible(
    boxes: np.ndarray, labels: np.ndarray, size: tuple[int, int], min_area: float
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes cut at the edge of an image of ``size``; those of which less than ``min_area`` (a share) is left go, and
    those that are outside."""
    if not len(boxes):
        return boxes, labels
    inside = boxes.copy()
    inside[:, 0::2] = inside[:, 0::2].clip(0, size[1])
    inside[:, 1::2] = inside[:, 1::2].clip(0, size[0])
    left, whole = areas(inside), areas(boxes)
    keep = (left > 0) & (left >= min_area * whole)
    return inside[keep], labels[keep]


def areas(boxes: np.ndarray) -> np.ndarray:
    """Areas [n] of boxes [n, 4]."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def affine(spec: augment.Affine, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Fit, rotate, scale, shear and shift in one interpolation, about the photo's centre."""
    size = context.size
    height, width = resized_size(context.input, sample.image.shape[:2], size)
    to_input = np.array(
        [[width / sample.image.shape[1], 0, 0], [0, height / sample.image.shape[0], 0]], dtype=np.float64
    )
    if context.input.fit == "letterbox" and context.input.side == "centre" or context.input.fit == "crop":
        to_input[:, 2] = (size[1] - width) / 2, (size[0] - height) / 2
    centre = to_input[:, 2] + (width / 2, height / 2)
    matrix = affine_matrix(spec, rng, size)
    matrix[:, 2] += centre - matrix[:, :2] @ centre
    whole = compose(matrix, to_input)

    def warp(pixels: np.ndarray) -> np.ndarray:
        canvas = canvas_like(pixels, size, context.input)
        paste(canvas, pixels, whole)
        return pasted(canvas)

    boxes, labels = visible(warp_boxes(sample.boxes, whole), sample.labels, size, spec.min_area)
    return moved(sample, warp, boxes=boxes, labels=labels)


_HUE_ROOM = 75
"""What the largest hue, 179, can be raised by in a byte."""


def hsv(spec: augment.Hsv, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Shift hue, saturation and value by whole numbers, each with probability ``spec.each``."""
    reach = np.array([spec.hue, spec.saturation, spec.value])
    shift = (rng.uniform(-1, 1, size=3) * reach * (rng.random(3) < spec.each)).astype(np.int64).tolist()
    if not any(shift):
        return sample
    # With red and blue taken for each other the circle of hues runs backwards, so a shift down becomes one up, which
    # saturating addition does in one pass over all channels (hues from 180 on are read as if they began again at 0).
    forward = shift[0] >= 0
    to_hsv, from_hsv = (cv2.COLOR_RGB2HSV, cv2.COLOR_HSV2RGB) if forward else (cv2.COLOR_BGR2HSV, cv2.COLOR_HSV2BGR)
    image = cv2.cvtColor(sample.image, to_hsv, dst=scratch("hsv", sample.image.shape))
    hue = abs(shift[0]) % 180
    if hue > _HUE_ROOM:
        image[:, :, 0] = (image[:, :, 0].astype(np.int16) + hue) % 180
        hue = 0
    up = (hue, max(shift[1], 0), max(shift[2], 0), 0)
    down = (0, max(-shift[1], 0), max(-shift[2], 0), 0)
    if any(up):
        image = cv2.add(image, up, dst=image)  # type: ignore[call-overload]
    if any(down):
        image = cv2.subtract(image, down, dst=image)  # type: ignore[call-overload]
    return replace(sample, image=cv2.cvtColor(image, from_hsv))


def flip(spec: augment.Flip, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Mirror left and right."""
    boxes = sample.boxes.copy()
    boxes[:, 0::2] = sample.image.shape[1] - sample.boxes[:, 2::-2]
    return moved(sample, lambda pixels: cv2.flip(pixels, 1), boxes=boxes)


def flip_vertical(spec: augment.FlipVertical, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Mirror top and bottom."""
    boxes = sample.boxes.copy()
    boxes[:, 1::2] = sample.image.shape[0] - sample.boxes[:, 3::-2]
    return moved(sample, lambda pixels: cv2.flip(pixels, 0), boxes=boxes)


_TURNS: dict[int, Any] = {1: cv2.ROTATE_90_COUNTERCLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_CLOCKWISE}


def rotate90(spec: augment.Rotate90, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Turn counter-clockwise by 0, 90, 180 or 270 degrees."""
    quarters = int(rng.integers(4))
    if not quarters:
        return sample
    height, width = sample.image.shape[:2]
    x1, y1, x2, y2 = sample.boxes.T
    turned = {
        1: (y1, width - x2, y2, width - x1),
        2: (width - x2, height - y2, width - x1, height - y1),
        3: (height - y2, x1, height - y1, x2),
    }[quarters]
    boxes = np.stack(turned, axis=1).astype(np.float32).reshape(-1, 4)
    return moved(sample, lambda pixels: cv2.rotate(pixels, _TURNS[quarters]), boxes=boxes)


def random_resized_crop(
    spec: augment.RandomResizedCrop, sample: Sample, rng: np.random.Generator, context: Context
) -> Sample:
    """A random part of the photo, resized to the input (Szegedy et al., 2015, section 6)."""
    top, left, height, width = _random_part(spec, rng, sample.image.shape[:2])

    def cut(pixels: np.ndarray) -> np.ndarray:
        part = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        return resize(part, context.size, context.input.resample)

    scale_y, scale_x = context.size[0] / height, context.size[1] / width
    there = (sample.boxes - [left, top, left, top]) * [scale_x, scale_y, scale_x, scale_y]
    boxes, labels = visible(there.astype(np.float32), sample.labels, context.size, 0.0)
    return moved(sample, cut, boxes=boxes, labels=labels)


def _random_part(
    spec: augment.RandomResizedCrop, rng: np.random.Generator, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of ``spec.scale`` of the area with an aspect of ``spec.ratio``; after ten draws that
    do not fit, the largest centred part with an allowed aspect."""
    height, width = size
    low, high = math.log(spec.ratio[0]), math.log(spec.ratio[1])
    for _ in range(10):
        area = height * width * rng.uniform(*spec.scale)
        ratio = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w = min(width, max(1, round(height * spec.ratio[1])))
    h = min(height, max(1, round(width / spec.ratio[0])))
    return (height - h) // 2, (width - w) // 2, h, w


_POLICIES = {"randaugment": "RandAugment", "autoaugment": "AutoAugment", "augmix": "AugMix"}


def auto_augment(spec: augment.AutoAugment, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """One of torchvision's policies, with torch's generator seeded for this call alone."""
    if not spec.policy:
        return sample
    if spec.policy not in _POLICIES:
        raise ConfigError(
            f"{spec.policy!r} is no policy", where="augment.auto.policy", mend=suggestion(spec.policy, _POLICIES)
        )
    if len(sample.boxes) or sample.layers:
        what = "boxes" if len(sample.boxes) else next(iter(sample.layers))
        raise ConfigError(
            f"augment.auto moves pixels without moving {what}",
            where="augment.auto.policy",
            mend="Use it to classify; otherwise use affine, hsv and flip.",
        )
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    policy = getattr(v2, _POLICIES[spec.policy])()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(1 << 62)))
        image = policy(Image.fromarray(sample.image))
    return replace(sample, image=np.array(image))


def erase(spec: augment.Erase, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Fill a random rectangle with the mean colour (Zhong et al., 2020), so that it is 0 after normalisation."""
    height, width = sample.image.shape[:2]
    mean = np.array(context.input.mean) / context.input.scale  # in the network's channel order
    colour = np.round(mean if context.input.colour == "rgb" else mean[::-1]).clip(0, 255).astype(np.uint8)
    for _ in range(10):
        area = height * width * rng.uniform(*spec.area)
        ratio = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < h < height and 0 < w < width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            image = sample.image.copy()
            image[top : top + h, left : left + w] = colour
            return replace(sample, image=image)
    return sample


def mix_labels(spec: augment.MixLabels, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Mark a sample for mixing, which ``mixing.mix_pairs`` does once the batch is together."""
    if not spec.mixup and not spec.cutmix:
        return sample
    return replace(sample, extra={**sample.extra, "mix": spec})
