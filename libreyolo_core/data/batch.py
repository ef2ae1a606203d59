"""What travels from the data to the network: requests in, samples and batches out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core.augment import Augment
from libreyolo_core.family import Input
from libreyolo_core.targets import Targets


@dataclass(frozen=True)
class SampleRequest:
    """One sample of one epoch. A data set answers it as a pure function of this request and its own seed, so the same
    images come out whichever worker, rank or resumed run asks.

    Args:
        index: sample index in the scan.
        epoch: counts from 0; part of the random key.
        size: (height, width) of the network's input in pixels.
        augment: what to apply, in order; empty in evaluation.
    """

    index: int
    epoch: int
    size: tuple[int, int]
    augment: tuple[Augment, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where a photo lies inside the network's input: ``input = photo * scale + offset``.

    Args:
        photo: (height, width) of the photo in pixels, EXIF orientation applied.
        size: (height, width) of the input in pixels.
        scale: factors (x, y) from photo pixels to input pixels.
        offset: (x, y) of the photo's top-left corner in the input, in pixels (negative for a crop).
    """

    photo: tuple[int, int]
    size: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float] = (0.0, 0.0)


@dataclass
class Sample:
    """One photo with its annotation, on its way through the augmentation.

    Args:
        image: uint8 [H, W, 3], RGB.
        boxes: float32 [n, 4], x1 y1 x2 y2 in pixels of ``image`` (detect).
        labels: int64 [n] class indices (detect), or [1] (classify).
        index: its index in the scan.
        path: where the photo came from.
        placement: set once the photo has been fitted to the input without augmentation.
        draw: the sample's key for randomness inside the network.
        layers: further pixels aligned with ``image``, which geometric augmentation moves along: uint8 [H, W] is a map
            of class ids (nearest neighbour, 255 outside), uint8 [H, W, 3] an RGB image (as the photo itself).
        extra: whatever else a task carries.
    """

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    index: int = -1
    path: str = ""
    placement: Placement | None = None
    draw: int = 0
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Batch:
    """A collated batch.

    Args:
        images: uint8 [N, 3, H, W] in the channel order of the network; ``prepare`` makes it float.
        targets: the task's padded targets.
        draw: int64 [N], keys for randomness inside the network.
        indices: sample index of each image.
        paths: path of each photo.
        placements: of each image; empty when augmented.
    """

    images: Tensor
    targets: Targets
    draw: Tensor
    indices: list[int]
    paths: list[str]
    placements: list[Placement] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Batch:
        """Copy the tensors to ``device``."""
        return replace(
            self,
            images=self.images.to(device, non_blocking=non_blocking),
            targets=self.targets.to(device, non_blocking=non_blocking),
            draw=self.draw.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        """Page-locked copy, called by the data loader."""
        return replace(
            self, images=self.images.pin_memory(), targets=self.targets.pin_memory(), draw=self.draw.pin_memory()
        )


def prepare(images: Tensor, rule: Input) -> Tensor:
    """The network's input from uint8 images [N, 3, H, W] already in the network's channel order: float32, scaled and
    normalised as the sheet says. Computed on the images' device."""
    out = images.float()
    if rule.scale != 1.0:
        out = out * rule.scale
    if any(rule.mean) or any(s != 1.0 for s in rule.std):
        mean = torch.tensor(rule.mean, device=images.device).reshape(1, 3, 1, 1)
        std = torch.tensor(rule.std, device=images.device).reshape(1, 3, 1, 1)
        out = (out - mean) / std
    return out
