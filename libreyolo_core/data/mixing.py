"""MixUp (Zhang et al., 2018) and CutMix (Yun et al., 2019) of classification samples, both with alpha 1.

Neighbours in a batch are mixed in pairs, each pair from the key of its first sample, so that the result does not depend
on how a batch is shared out among ranks (as long as each gets whole pairs). An odd last sample stays as it is.
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from libreyolo_core.augment import MixLabels
from libreyolo_core.data.batch import Sample
from libreyolo_core.data.randomness import keyed
from libreyolo_core.draw import site

_STREAM = site("mix")


def mix_pairs(samples: list[Sample], classes: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Images of a batch after mixing, and label rows float32 [N, classes] that sum to 1."""
    images = [s.image for s in samples]
    rows = np.zeros((len(samples), classes), dtype=np.float32)
    rows[np.arange(len(samples)), [int(s.labels[0]) for s in samples]] = 1
    for first in range(0, len(samples) - 1, 2):
        spec = samples[first].extra.get("mix")
        if spec is not None:
            _mix(images, rows, first, spec, samples[first].draw)
    return images, rows


def _mix(images: list[np.ndarray], rows: np.ndarray, first: int, spec: MixLabels, draw: int) -> None:
    rng = keyed(draw, _STREAM)
    choice, share = rng.random(2)
    pair = slice(first, first + 2)
    a, b = images[pair]
    if choice < spec.mixup:
        images[pair] = [
            cv2.addWeighted(a, share, b, 1 - share, 0.0),
            cv2.addWeighted(b, share, a, 1 - share, 0.0),
        ]
    elif choice < spec.mixup + spec.cutmix:
        height, width = a.shape[:2]
        side = math.sqrt(1 - share)
        y, x = rng.random(2) * (height, width)
        top, bottom = (int(np.clip(y + s * height * side / 2, 0, height)) for s in (-1, 1))
        left, right = (int(np.clip(x + s * width * side / 2, 0, width)) for s in (-1, 1))
        mixed = [a.copy(), b.copy()]
        mixed[0][top:bottom, left:right] = b[top:bottom, left:right]
        mixed[1][top:bottom, left:right] = a[top:bottom, left:right]
        images[pair] = mixed
        share = 1 - (bottom - top) * (right - left) / (height * width)
    else:
        return
    rows[pair] = share * rows[pair] + (1 - share) * rows[pair][::-1]
