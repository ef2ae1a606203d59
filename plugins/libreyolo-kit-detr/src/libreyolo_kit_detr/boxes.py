"""Boxes as tensors whose last axis has four coordinates, in pixels or as shares of the image."""

from __future__ import annotations

import torch
from torch import Tensor


def cxcywh_to_xyxy(boxes: Tensor, *, positive: bool = False) -> Tensor:
    """Centre and size to corners, float [..., 4]; ``positive``: a negative size counts as 0."""
    centre, size = boxes.split(2, -1)
    half = (size.clamp(min=0) if positive else size) * 0.5
    return torch.cat((centre - half, centre + half), -1)


def xyxy_to_cxcywh(boxes: Tensor) -> Tensor:
    """Corners to centre and size, float [..., 4]; a box whose corners are swapped gets a negative size."""
    low, high = boxes.split(2, -1)
    return torch.cat(((low + high) * 0.5, high - low), -1)


def relative_cxcywh(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Corners in pixels to centre and size as shares of the image, float32 [..., 4].

    Args:
        image_size: (height, width) in pixels, on the host.
    """
    height, width = image_size
    x1, y1, x2, y2 = boxes.float().unbind(-1)
    return torch.stack(
        ((x1 + x2) * (0.5 / width), (y1 + y2) * (0.5 / height), (x2 - x1) * (1 / width), (y2 - y1) * (1 / height)), -1
    )


def absolute_xyxy(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """The inverse of ``relative_cxcywh``: shares of the image to corners in pixels, float32 [..., 4]."""
    height, width = image_size
    x1, y1, x2, y2 = cxcywh_to_xyxy(boxes.float()).unbind(-1)
    return torch.stack((x1 * width, y1 * height, x2 * width, y2 * height), -1)


def iou_giou(a: Tensor, b: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU (Rezatofighi et al., 2019) of boxes that broadcast against each other.

    Args:
        a, b: float [..., 4], x1 y1 x2 y2. ``a[:, None]`` with ``b[None]`` compares all pairs.
        eps: added to the union and to the area of the hull, so that empty boxes give 0 and no division by zero.

    Returns:
        Two tensors of the broadcast shape without the last axis.
    """
    a_low, a_high = a.split(2, -1)
    b_low, b_high = b.split(2, -1)
    shared = _area((torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(min=0))
    union = _area(a_high - a_low) + _area(b_high - b_low) - shared + eps
    hull = _area(torch.maximum(a_high, b_high) - torch.minimum(a_low, b_low)) + eps
    iou = shared / union
    return iou, iou - (hull - union) / hull


def _area(size: Tensor) -> Tensor:
    width, height = size.unbind(-1)
    return width * height
