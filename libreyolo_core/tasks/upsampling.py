"""Class maps from logits at a finer resolution, in strips of rows so that memory stays bounded.

All classes of a large photo at once are too much: 150 classes of 4000 x 3000 pixels are 7 GB in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from libreyolo_core.data.batch import Placement

STRIP = 1 << 22
"""The most float32 values of one strip: 16 MB."""

Window = tuple[int, int, int, int]
"""top, left, bottom, right in cells of the logits; bottom and right are the first cells outside."""


def class_map(logits: Tensor, size: tuple[int, int], window: Window | None = None, *, strip: int = STRIP) -> Tensor:
    """The most probable class of every pixel.

    Args:
        logits: [C, h, w] of any floating type.
        size: (height, width) of the result in pixels.
        window: the part of the logits that the result shows, all of it by default.
        strip: the most float32 values held at once, beside the logits.

    Returns:
        int64 [*size]: the arg-max over classes of the logits resized bilinearly in float32 without aligned corners,
        the same as of ``interpolate(logits, size, mode="bilinear")``. Equal logits give the lower class.
    """
    top, left, bottom, right = window or (0, 0, *logits.shape[1:])
    part = logits[:, top:bottom, left:right]  # [C, h, w]
    c, h, w = part.shape
    height, width = size
    out = torch.empty(size, dtype=torch.int64, device=logits.device)
    rows = max(1, strip // (c * max(w, width)))
    for first in range(0, height, rows):
        last = min(first + rows, height)
        # indices of max are those of argmax, found several times faster along the first axis on a CPU
        out[first:last] = _rows(part, first, last, size).max(dim=0).indices
    return out


def photo_window(placement: Placement, cells: tuple[int, int]) -> Window:
    """The part of a grid of ``cells`` (height, width) over the input that a photo covers, in whole cells, one at least.

    What a crop cut off is not covered: it takes the class of the nearest pixel that the network saw.
    """
    edges = []
    for axis in (0, 1):
        x = 1 - axis
        step = cells[axis] / placement.size[axis]
        start = round(placement.offset[x] * step)
        length = max(round(placement.photo[axis] * placement.scale[x] * step), 1)
        low = min(max(start, 0), cells[axis] - 1)
        edges.append((low, max(min(start + length, cells[axis]), low + 1)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right


def _rows(part: Tensor, first: int, last: int, size: tuple[int, int]) -> Tensor:
    """Rows ``first`` to ``last`` of ``part`` [C, h, w] resized to ``size``, float32 [C, last - first, width]."""
    h = part.shape[1]
    height, width = size
    if h == height:
        strip = part[:, first:last].float()
    else:
        at = (torch.arange(first, last, dtype=torch.float64, device=part.device) + 0.5) * h / height - 0.5
        at = at.clamp(min=0)
        above = at.floor().long()
        below = (above + 1).clamp(max=h - 1)
        share = (at - above).float()[None, :, None]
        strip = torch.lerp(part[:, above].float(), part[:, below].float(), share)  # [C, S, w]
    if strip.shape[2] == width:
        return strip
    return interpolate(strip[None], size=(strip.shape[1], width), mode="bilinear", align_corners=False)[0]
