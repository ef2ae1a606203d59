"""Multi-scale deformable attention (Zhu et al., 2021, section 4.1), relative to reference boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DeformableSampling(nn.Module):
    """Each query reads a few points around its box from every map, as it is (D-FINE: no projection of what is read).

    Args:
        dim: channels of queries.
        heads: attention heads; each has its own points.
        points: how many points a head reads from each map.
        reach: an offset of as many units as the map has points moves a point by this share of the box.
    """

    offset_scale: Tensor

    def __init__(self, dim: int, heads: int, points: Sequence[int], *, reach: float = 0.5) -> None:
        super().__init__()
        self.heads, self.points = heads, tuple(points)
        total = sum(self.points)
        # grid_sample counts from -1 to 1, hence twice the share of the image
        scale = torch.tensor([2 * reach / n for n in self.points for _ in range(n)])
        self.register_buffer("offset_scale", scale[:, None], persistent=False)  # [P, 1]
        self.sampling_offsets = nn.Linear(dim, heads * total * 2)
        self.attention_weights = nn.Linear(dim, heads * total)
        self.reset_sampling()

    def reset_sampling(self) -> None:
        """Points start on rays, one direction a head, farther with each point; weights start equal."""
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        rays = torch.stack((angles.cos(), angles.sin()), -1)
        rays = rays / rays.abs().amax(-1, keepdim=True)  # [H, 2]
        steps = torch.cat([torch.arange(1, n + 1) for n in self.points])  # [P]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_((rays[:, None] * steps[:, None]).flatten())
        for linear in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(linear.weight)
        nn.init.zeros_(self.attention_weights.bias)

    def forward(self, query: Tensor, boxes: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """Read the maps.

        Args:
            query: float [N, Q, C].
            boxes: float32 [N, Q, 4], reference boxes cx cy w h as shares of the image.
            maps: what ``split_heads`` makes of the maps, finest first.

        Returns:
            float [N, Q, C'], the heads' channels one after the other.
        """
        heads, points = self.heads, sum(self.points)
        centre, size = boxes[:, :, None, None].split(2, -1)  # [N, Q, 1, 1, 2]
        offsets = self.sampling_offsets(query).unflatten(-1, (heads, points, 2))  # [N, Q, H, P, 2]
        grid = offsets * (size * self.offset_scale) + (centre * 2 - 1)
        grid = grid.transpose(1, 2).flatten(0, 1)  # [NH, Q, P, 2]
        weights = self.attention_weights(query).unflatten(-1, (heads, points)).softmax(-1)  # [N, Q, H, P]
        out = sample_maps(maps, grid, weights.transpose(1, 2).flatten(0, 1), self.points)  # [NH, C/H, Q]
        return out.unflatten(0, (-1, heads)).flatten(1, 2).transpose(1, 2)


class DeformableAttention(DeformableSampling):
    """Deformable sampling between a projection of the memory and one of what was read.

    Args:
        dim: channels of queries and memory.
        heads: attention heads; each has its own points.
        levels: number of maps. ``points``: how many points a head reads from each.
        reach: see ``DeformableSampling``.
    """

    def __init__(self, dim: int, heads: int = 8, levels: int = 3, points: int = 4, *, reach: float = 0.5) -> None:
        super().__init__(dim, heads, (points,) * levels, reach=reach)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)
        for linear in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(  # type: ignore[override]
        self, query: Tensor, boxes: Tensor, memory: Tensor, shapes: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Read the memory.

        Args:
            query: float [N, Q, C].
            boxes: float32 [N, Q, 4], reference boxes cx cy w h as shares of the image.
            memory: float [N, S, C], the maps' cells row by row, finest map first.
            shapes: (height, width) of each map.

        Returns:
            float [N, Q, C].
        """
        value = self.value_proj(memory).transpose(1, 2).unflatten(1, (self.heads, -1)).flatten(0, 1)  # [NH, C/H, S]
        cells = value.split([h * w for h, w in shapes], 2)
        maps = [level.unflatten(2, shape) for level, shape in zip(cells, shapes, strict=True)]
        return self.output_proj(super().forward(query, boxes, maps))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """A map [N, C, H, W] as ``DeformableSampling`` reads it, [N * heads, C / heads, H, W]."""
    return x.unflatten(1, (heads, -1)).flatten(0, 1)


def sample_maps(maps: Sequence[Tensor], grid: Tensor, weights: Tensor, points: Sequence[int]) -> Tensor:
    """Weighted sum of bilinear samples, zero outside the maps.

    Args:
        maps: L maps float [B, C, h, w].
        grid: float32 [B, Q, P, 2], x y from -1 to 1 over the image, the points of the first map first.
        weights: float [B, Q, P].
        points: how many of the P points each map has.

    Returns:
        float [B, C, Q].
    """
    # Half precision would place a point of an 80 cell map no better than a twelfth of a cell.
    samples = [
        F.grid_sample(cells.to(grid.dtype), where, mode="bilinear", padding_mode="zeros", align_corners=False)
        for cells, where in zip(maps, grid.split(list(points), 2), strict=True)
    ]  # each [B, C, Q, p]
    return (torch.cat(samples, 3) * weights[:, None]).sum(-1)
