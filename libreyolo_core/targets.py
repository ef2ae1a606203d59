"""Training targets: padded, static-shaped tensors, so that losses need no loop over images and no host reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", bound="Targets")
IGNORED = 255
"""The mask value of pixels that neither loss nor metric looks at; a semantic model has at most 255 classes."""


@dataclass
class Targets:
    """Base: moves between devices and splits along the batch."""

    def map(self: T, function) -> T:
        """The same with ``function`` applied to every tensor."""
        changed = {f.name: function(v) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return replace(self, **changed)

    def to(self: T, device: torch.device | str, *, non_blocking: bool = False) -> T:
        """Copy to ``device``."""
        return self.map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self: T) -> T:
        """Page-locked copy, called by the data loader."""
        return self.map(lambda t: t.pin_memory())

    def agree(self: T, largest: Callable[[int], int]) -> T:
        """The same after ranks agreed on what all of them must know; ``largest`` is the maximum over them. Called on
        every rank at every step."""
        return self

    def static(self: T) -> T:
        """The same with every value on the host replaced by what the shapes already say, as a recording of a step
        needs it: it serves all batches of these shapes."""
        return self


@dataclass
class BoxTargets(Targets):
    """Boxes of a detection batch.

    Args:
        boxes: float32 [N, M, 4], x1 y1 x2 y2 in pixels of the network's input; padding rows are 0.
        labels: int64 [N, M], class indices; padding rows are 0.
        valid: bool [N, M], true where a row is a box. Real rows come first.
        most: the largest number of boxes in an image of this step, over all ranks; a host integer.
    """

    boxes: Tensor
    labels: Tensor
    valid: Tensor
    most: int

    def agree(self, largest: Callable[[int], int]) -> BoxTargets:
        """With the largest count of all ranks as ``most``."""
        return replace(self, most=largest(self.most))

    def static(self) -> BoxTargets:
        """With the number of rows as ``most``."""
        return replace(self, most=self.valid.shape[1])

    @staticmethod
    def pad(boxes: list[Tensor], labels: list[Tensor], *, rows: int | None = None) -> BoxTargets:
        """Stack per-image boxes [n, 4] and labels [n]; ``rows`` (default: ``padded_rows(most)``) is M."""
        most = max((len(b) for b in boxes), default=0)
        rows = padded_rows(most) if rows is None else rows
        n = len(boxes)
        out = BoxTargets(
            torch.zeros(n, rows, 4),
            torch.zeros(n, rows, dtype=torch.int64),
            torch.zeros(n, rows, dtype=torch.bool),
            most,
        )
        for i, (b, c) in enumerate(zip(boxes, labels, strict=True)):
            out.boxes[i, : len(b)] = b
            out.labels[i, : len(c)] = c
            out.valid[i, : len(b)] = True
        return out


@dataclass
class ClassTargets(Targets):
    """Labels of a classification batch: int64 [N], or float [N, C] rows that sum to 1 when batches are mixed."""

    labels: Tensor


@dataclass
class MaskTargets(Targets):
    """Class of every pixel of a semantic batch: uint8 [N, H, W], ``IGNORED`` where nothing is known."""

    masks: Tensor


@dataclass
class ImageTargets(Targets):
    """Clean images of a restoration batch: uint8 [N, 3, H, W] in the channel order of the network."""

    images: Tensor


def padded_rows(most: int) -> int:
    """``most`` rounded up so that few shapes occur: by steps of an eighth of the next power of two, at least 8."""
    if most <= 8:
        return 8
    step = max(8, 1 << max(0, most.bit_length() - 3))
    return -(-most // step) * step
