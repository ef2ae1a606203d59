"""Average pooling for channel attention: over the image in training, over a window around each pixel at inference.

A network trained on crops has learned statistics of crops; on a whole photo its global averages mean something else.
Averaging over a window of about the crop's size restores what it knows (TLC: Chu et al., "Improving Image Restoration
by Revisiting Global Information Aggregation", 2022, section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.losses import autocast_off


class Pool(nn.Module):
    """Mean of every channel; has no weights.

    Args:
        window: side of the local window in cells of this map.
        local: whether the local window is used in evaluation mode; training is always global.
    """

    def __init__(self, window: int, *, local: bool = True) -> None:
        super().__init__()
        self.window, self.local = window, local

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to the mean at every position of the window, [N, C, H - kh + 1, W - kw + 1]. The window's sides
        are cut to the map's; where it covers the map the result is [N, C, 1, 1]. ``spread`` undoes the shrinking."""
        h, w = x.shape[-2:]
        if self.training or not self.local or (self.window >= h and self.window >= w):
            return x.mean((2, 3), keepdim=True)
        return window_mean(x, (min(self.window, h), min(self.window, w)))


def window_mean(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Mean at every position of a (height, width) window, stride 1: [N, C, H, W] to [N, C, H - kh + 1, W - kw + 1].

    From running sums, one axis after the other: the cost does not depend on the window, and no sum is longer than a row
    or column. They are kept in float32 whatever the precision around: the sum of a few thousand pixels overflows
    float16.
    """
    with autocast_off():
        sums = _window_sum(_window_sum(x.float(), window[1], -1), window[0], -2)
        return (sums / (window[0] * window[1])).to(x.dtype)


def _window_sum(x: Tensor, length: int, axis: int) -> Tensor:
    places = x.shape[axis] - length + 1
    running = F.pad(x, (1, 0) if axis == -1 else (0, 0, 1, 0)).cumsum(axis)
    return running.narrow(axis, length, places) - running.narrow(axis, 0, places)


def spread(pooled: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Means per window position, [N, C, h, w], repeated at the borders to ``size`` (height, width): every pixel gets
    the mean of the window around it, or of the nearest one inside the map. A single mean is left to broadcasting."""
    down, right = size[0] - pooled.shape[-2], size[1] - pooled.shape[-1]
    if pooled.shape[-2:] == (1, 1):
        return pooled
    return F.pad(pooled, (right // 2, (right + 1) // 2, down // 2, (down + 1) // 2), mode="replicate")
