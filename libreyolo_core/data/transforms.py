"""Augmentation of one sample. Every ``Augment`` of ``libreyolo_core.augment`` names a function of this signature::

    def mine(spec, sample, rng, context) -> Sample

    spec     the frozen description (your ``Augment`` subclass, with its fields)
    sample   ``libreyolo_core.data.batch.Sample``: uint8 RGB image [h, w, 3] of any size, boxes float32 [n, 4] on it
    rng      ``numpy.random.Generator`` keyed by (seed, epoch, sample index, position in the list); the only randomness
             a function may use
    context  ``Context``: the input's size and rule, and other photos of the set

It is called with probability ``spec.p`` (drawn from the same generator) and returns a new sample; arrays it was given
may be cached, so they are never written to. Boxes are cut at the edge of the image, and ``visible`` decides which stay.
After the last function the sample is fitted to the input.
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
from libreyolo_core.data.fit import boxes_to_input, fit_image, resize, resized_size
from libreyolo_core.data.randomness import keyed
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
        image, placement = fit_image(sample.image, context.input, context.size)
        sample = replace(sample, image=image, boxes=boxes_to_input(sample.boxes, placement))
    if not len(sample.boxes):
        return sample
    sides = sample.boxes[:, 2:] - sample.boxes[:, :2]
    keep = sides.min(axis=1) > MIN_SIDE_PX
    return replace(sample, boxes=sample.boxes[keep], labels=sample.labels[keep])


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


def affine_matrix(spec: augment.Mosaic | augment.Affine, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A random rotation, scale, shear about the origin and a translation as the share of ``size``: float64 [2, 3]."""
    angle = math.radians(rng.uniform(-spec.rotate, spec.rotate))
    scale = rng.uniform(*spec.scale)
    shear_x, shear_y = np.tan(np.radians(rng.uniform(-spec.shear, spec.shear, size=2)))
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    rows = np.array([[cos, sin, 0.0], [-sin, cos, 0.0]])
    sheared = np.array([rows[0] + shear_y * rows[1], rows[1] + shear_x * rows[0]])
    sheared[:, 2] = rng.uniform(-spec.translate, spec.translate, size=2) * (size[1], size[0])
    return sheared


def compose(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The affine map [2, 3] that applies ``inner`` first."""
    out = outer[:, :2] @ inner
    out[:, 2] += outer[:, 2]
    return out


def warp_boxes(boxes: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Bounds float32 [n, 4] of the corners of boxes under an affine map [2, 3]."""
    out = np.empty((len(boxes), 4), dtype=np.float32)
    for axis, (a, b, c) in enumerate(matrix.tolist()):
        # the smallest and largest of four corners follow from the signs of the factors
        x = boxes[:, 0::2] if a >= 0 else boxes[:, 2::-2]
        y = boxes[:, 1::2] if b >= 0 else boxes[:, 3::-2]
        out[:, axis::2] = a * x + b * y + c
    return out


def warp_bounds(matrix: np.ndarray, x1: float, y1: float, x2: float, y2: float) -> tuple[float, float, float, float]:
    """As ``warp_boxes``, for one rectangle."""
    (a, b, c), (d, e, f) = matrix.tolist()
    return (
        c + min(a * x1, a * x2) + min(b * y1, b * y2),
        f + min(d * x1, d * x2) + min(e * y1, e * y2),
        c + max(a * x1, a * x2) + max(b * y1, b * y2),
        f + max(d * x1, d * x2) + max(e * y1, e * y2),
    )


def blank(size: tuple[int, int], value: int) -> np.ndarray:
    """A canvas for ``paste``, uint8 [h, w, 4] of one value. Four channels, because OpenCV warps those twice as fast as
    three."""
    return np.full((*size, 4), value, dtype=np.uint8)


def paste(canvas: np.ndarray, image: np.ndarray, matrix: np.ndarray) -> None:
    """Warp an RGB image into a canvas in place, touching only the part it covers; ``canvas[:, :, 3]`` means nothing.

    ``matrix`` [2, 3] maps edge coordinates of the image (its first pixel covers 0 to 1) to those of the canvas, as it
    maps boxes. A border of one repeated pixel lets the image reach its own edge, where interpolation would fade it.
    """
    left, top, right, bottom = warp_bounds(matrix, 0, 0, image.shape[1], image.shape[0])
    x0, y0 = max(0, math.floor(left)), max(0, math.floor(top))
    x1, y1 = min(canvas.shape[1], math.ceil(right)), min(canvas.shape[0], math.ceil(bottom))
    if x0 >= x1 or y0 >= y1:
        return
    padded = _with_border(image)
    # between pixel centres: the padded image's first is half a pixel before the image, the region's half one inside it
    (a, b, c), (d, e, f) = matrix.tolist()
    centres = np.array([[a, b, c - 0.5 * (a + b) - x0 - 0.5], [d, e, f - 0.5 * (d + e) - y0 - 0.5]])
    cv2.warpAffine(
        padded,
        centres,
        (x1 - x0, y1 - y0),
        dst=canvas[y0:y1, x0:x1],
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_TRANSPARENT,
    )


def _with_border(image: np.ndarray) -> np.ndarray:
    """uint8 RGB [h, w, 3] as [h + 2, w + 2, 4], its edge repeated once, in one pass over the pixels."""
    out = np.empty((image.shape[0] + 2, image.shape[1] + 2, 4), dtype=np.uint8)
    cv2.cvtColor(image, cv2.COLOR_RGB2RGBA, dst=out[1:-1, 1:-1])
    out[1:-1, 0], out[1:-1, -1] = out[1:-1, 1], out[1:-1, -2]
    out[0], out[-1] = out[1], out[-2]
    return out


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
    canvas = blank(size, context.input.pad)
    paste(canvas, sample.image, whole)
    boxes, labels = visible(warp_boxes(sample.boxes, whole), sample.labels, size, spec.min_area)
    return replace(sample, image=cv2.cvtColor(canvas, cv2.COLOR_RGBA2RGB), boxes=boxes, labels=labels)


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
    image = cv2.cvtColor(sample.image, to_hsv)
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
    return replace(sample, image=cv2.flip(sample.image, 1), boxes=boxes)


def flip_vertical(spec: augment.FlipVertical, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Mirror top and bottom."""
    boxes = sample.boxes.copy()
    boxes[:, 1::2] = sample.image.shape[0] - sample.boxes[:, 3::-2]
    return replace(sample, image=cv2.flip(sample.image, 0), boxes=boxes)


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
    image = cv2.rotate(sample.image, _TURNS[quarters])
    return replace(sample, image=image, boxes=np.stack(turned, axis=1).astype(np.float32).reshape(-1, 4))


def random_resized_crop(
    spec: augment.RandomResizedCrop, sample: Sample, rng: np.random.Generator, context: Context
) -> Sample:
    """A random part of the photo, resized to the input (Szegedy et al., 2015, section 6)."""
    top, left, height, width = _random_part(spec, rng, sample.image.shape[:2])
    image = resize(
        np.ascontiguousarray(sample.image[top : top + height, left : left + width]),
        context.size,
        context.input.resample,
    )
    scale_y, scale_x = context.size[0] / height, context.size[1] / width
    moved = (sample.boxes - [left, top, left, top]) * [scale_x, scale_y, scale_x, scale_y]
    boxes, labels = visible(moved.astype(np.float32), sample.labels, context.size, 0.0)
    return replace(sample, image=image, boxes=boxes, labels=labels)


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
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    if not spec.policy:
        return sample
    if spec.policy not in _POLICIES:
        raise ConfigError(
            f"{spec.policy!r} is no policy", where="augment.auto.policy", mend=suggestion(spec.policy, _POLICIES)
        )
    if len(sample.boxes):
        raise ConfigError(
            "augment.auto moves pixels without moving boxes",
            where="augment.auto.policy",
            mend="Use it to classify; for boxes use affine, hsv and flip.",
        )
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
