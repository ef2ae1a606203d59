"""Multi-scale deformable attention (Zhu et al., 2021, section 4.1), relative to reference boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DeformableAttention(nn.Module):
    """Each query reads a few points around its box from every map.

    Args:
        dim: channels of queries and memory.
        heads: attention heads; each has its own points.
        levels: number of maps. ``points``: how many points a head reads from each.
        reach: an offset of ``points`` moves a point by this share of the box.
    """

    def __init__(self, dim: int, heads: int = 8, levels: int = 3, points: int = 4, *, reach: float = 0.5) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offset_scale = reach / points
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Points start on rays, one direction a head, farther with each point; weights start equal."""
        angles = torch.arange(self.heads) * (2 * math.pi / self.heads)
        rays = torch.stack((angles.cos(), angles.sin()), -1)
        rays = rays / rays.abs().amax(-1, keepdim=True)  # [H, 2]
        steps = torch.arange(1, self.points + 1).repeat(self.levels)  # [LP]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_((rays[:, None] * steps[:, None]).flatten())
        for linear in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(linear.weight)
        nn.init.zeros_(self.attention_weights.bias)
        for linear in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, query: Tensor, boxes: Tensor, memory: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
        """Read the memory.

        Args:
            query: float [N, Q, C].
            boxes: float32 [N, Q, 4], reference boxes cx cy w h as shares of the image.
            memory: float [N, S, C], the maps' cells row by row, finest map first.
            shapes: (height, width) of each map.

        Returns:
            float [N, Q, C].
        """
        heads, levels, points = self.heads, self.levels, self.points
        value = self.value_proj(memory).transpose(1, 2).unflatten(1, (heads, -1)).flatten(0, 1)  # [NH, C/H, S]
        centre, size = boxes[:, :, None, None].split(2, -1)  # [N, Q, 1, 1, 2]
        offsets = self.sampling_offsets(query).unflatten(-1, (heads, levels * points, 2))  # [N, Q, H, LP, 2]
        # grid_sample counts from -1 to 1, hence twice the share of the image, minus one
        grid = offsets * (size * (2 * self.offset_scale)) + (centre * 2 - 1)
        grid = grid.unflatten(3, (levels, points)).permute(3, 0, 2, 1, 4, 5).flatten(1, 2)  # [L, NH, Q, P, 2]
        weights = self.attention_weights(query).unflatten(-1, (heads, levels * points)).softmax(-1)  # [N, Q, H, LP]
        weights = weights.unflatten(3, (levels, points)).permute(3, 0, 2, 1, 4).flatten(1, 2)  # [L, NH, Q, P]
        out = sample_maps(value, shapes, grid, weights)  # [NH, C/H, Q]
        return self.output_proj(out.unflatten(0, (-1, heads)).flatten(1, 2).transpose(1, 2))


def sample_maps(value: Tensor, shapes: Sequence[tuple[int, int]], grid: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of bilinear samples, zero outside the maps.

    Args:
        value: float [B, C, S], the cells of all L maps row by row.
        shapes: (height, width) of each map.
        grid: float32 [L, B, Q, P, 2], x y from -1 to 1 over the image.
        weights: float [L, B, Q, P].

    Returns:
        float [B, C, Q].
    """
    # Half precision would place a point of an 80 cell map no better than a twelfth of a cell.
    maps = value.to(grid.dtype).split([h * w for h, w in shapes], 2)
    samples = [
        F.grid_sample(cells.unflatten(2, shape), where, mode="bilinear", padding_mode="zeros", align_corners=False)
        for cells, shape, where in zip(maps, shapes, grid.unbind(0), strict=True)
    ]  # each [B, C, Q, P]
    return (torch.stack(samples) * weights[:, :, None]).sum(-1).sum(0)
