"""Necks: how backbone levels exchange features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Layer = Callable[[Tensor], Tensor]


def path_aggregation(
    features: Sequence[Tensor],
    *,
    top_down: Sequence[Layer],
    bottom_up: Sequence[Layer],
    down: Sequence[Layer],
    reduce: Sequence[Layer] | None = None,
) -> list[Tensor]:
    """Path aggregation (PANet, section 3): from coarse to fine with nearest upsampling, then back with strided layers.

    In every concatenation the processed map comes first. With L levels each argument holds L - 1 layers:

    Args:
        features: [N, C_i, H_i, W_i], finest first, each level half as large as the one before.
        top_down: coarsest first; ``top_down[i]`` merges an upsampled map with the next finer level.
        bottom_up: finest first; ``bottom_up[i]`` merges a downsampled map with what came down at that level.
        down: finest first; the strided layers of the way back.
        reduce: coarsest first, applied before upsampling; the way back merges the reduced maps. ``None`` for none.

    Returns:
        One map per level, finest first.
    """
    x, came_down = features[-1], []
    for i, finer in enumerate(reversed(features[:-1])):
        if reduce is not None:
            x = reduce[i](x)
        came_down.append(x)
        x = top_down[i](torch.cat((F.interpolate(x, scale_factor=2.0, mode="nearest"), finer), 1))
    outputs = [x]
    for strided, merge, lateral in zip(down, bottom_up, reversed(came_down), strict=True):
        x = merge(torch.cat((strided(x), lateral), 1))
        outputs.append(x)
    return outputs
