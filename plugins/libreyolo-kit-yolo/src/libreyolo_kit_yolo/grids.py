"""Cells of a pyramid of maps: where they are, and how level maps become one row per cell.

Rows run level by level, finest first, and row-major inside a level. Everything is made on the device from host shapes,
never copied to it, so a network that calls this can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """The A cells of L levels.

    Args:
        table: float32 [A, 3]: column, row, stride in pixels. Column and row are also a cell's top-left corner, in
            strides.
        levels: float32 [L, 4]: columns, rows, stride, number of the first cell.
    """

    table: Tensor
    levels: Tensor


def cell_grid(maps: Sequence[Tensor], strides: Sequence[int]) -> Cells:
    """The cells of level maps [N, C, H, W], whose shapes and device count, with the given strides in pixels."""
    grids, first, count = [], [], 0
    for level, stride in zip(maps, strides, strict=True):
        height, width = level.shape[-2:]
        column = torch.arange(width, dtype=torch.float32, device=level.device).expand(height, width)
        row = torch.arange(height, dtype=torch.float32, device=level.device)[:, None].expand(height, width)
        grids.append(torch.stack((column, row, torch.full_like(row, float(stride))), -1).flatten(0, 1))
        first.append(torch.full((1, 1), float(count), device=level.device))
        count += height * width
    last, pixels = torch.stack([grid[-1] for grid in grids]).split((2, 1), 1)
    return Cells(torch.cat(grids), torch.cat((last + 1.0, pixels, torch.cat(first)), 1))


def flatten_levels(maps: Sequence[Tensor]) -> Tensor:
    """[N, A, C] from level maps [N, C, H, W]; one copy, and a straight one for channels-last maps."""
    return torch.cat([level.flatten(2).transpose(1, 2) for level in maps], 1)


def level_sizes(image_size: tuple[int, int], strides: Sequence[int]) -> tuple[int, ...]:
    """How many cells each level has for an input of (height, width) pixels."""
    height, width = image_size
    return tuple((height // s) * (width // s) for s in strides)
