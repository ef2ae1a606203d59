"""Random crops of the input's size, for tasks whose annotation is pixels: semantic segmentation and restoration."""

from __future__ import annotations

import numpy as np

from libreyolo_core import augment
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.fit import extend, resize
from libreyolo_core.data.transforms import Context, moved, visible
from libreyolo_core.targets import IGNORED

DRAWS = 10
"""How often ``scale_crop`` draws a crop in which no class fills too much."""


def scale_crop(spec: augment.ScaleCrop, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """Zoom by the shorter side, pad, and cut the input out of it where no class fills more than ``spec.most``."""
    height, width = sample.image.shape[:2]
    short = min(context.size) * rng.uniform(*spec.scale)
    scale = short / min(height, width)
    to = max(1, round(height * scale)), max(1, round(width * scale))
    whole = max(to[0], context.size[0]), max(to[1], context.size[1])

    def zoom(pixels: np.ndarray) -> np.ndarray:
        return extend(resize(pixels, to, context.input.resample), whole, context.input, border="constant")

    boxes = sample.boxes * np.array([to[1] / width, to[0] / height] * 2, dtype=np.float32)
    zoomed = moved(sample, zoom, boxes=boxes)
    ids = next((pixels for pixels in zoomed.layers.values() if pixels.ndim == 2), None)
    for _ in range(DRAWS):
        place = _place(rng, whole, context.size)
        if ids is None or _largest_share(_cut(ids, place, context.size)) <= spec.most:
            break
    return _cropped(zoomed, place, context.size)


def random_crop(spec: augment.RandomCrop, sample: Sample, rng: np.random.Generator, context: Context) -> Sample:
    """A random part of the photo in its own scale; a smaller photo is first mirrored at its bottom and right edge."""
    height, width = sample.image.shape[:2]
    whole = max(height, context.size[0]), max(width, context.size[1])
    if whole != (height, width):
        sample = moved(sample, lambda pixels: extend(pixels, whole, context.input, border="reflect"))
    return _cropped(sample, _place(rng, whole, context.size), context.size)


def _place(rng: np.random.Generator, whole: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """(top, left) of a crop of ``size``."""
    return int(rng.integers(whole[0] - size[0] + 1)), int(rng.integers(whole[1] - size[1] + 1))


def _cut(pixels: np.ndarray, place: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    return pixels[place[0] : place[0] + size[0], place[1] : place[1] + size[1]]


def _cropped(sample: Sample, place: tuple[int, int], size: tuple[int, int]) -> Sample:
    there = sample.boxes - np.array([place[1], place[0]] * 2, dtype=np.float32)
    boxes, labels = visible(there, sample.labels, size, 0.0)
    return moved(sample, lambda pixels: np.ascontiguousarray(_cut(pixels, place, size)), boxes=boxes, labels=labels)


def _largest_share(ids: np.ndarray) -> float:
    """The share of the labelled pixels that the most frequent class has; 0 where nothing is labelled."""
    counts = np.bincount(ids.ravel(), minlength=IGNORED + 1)[:IGNORED]
    return float(counts.max() / max(1, counts.sum()))
