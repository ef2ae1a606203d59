"""Random numbers from keys instead of global state.

Every sample of a step carries an int64 key, a function of (seed, epoch, sample index). Whatever is random inside a
network (stochastic depth, denoising noise) is computed from that key and a *site* (a constant of the place in the code)
by a counter-based generator. So N ranks draw what one rank draws, and a replayed graph draws what an eager step draws.

The generator hashes 32-bit words with a two-round multiply-xorshift mixer; all products stay below 2**63, so int64
arithmetic is exact on every device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MASK = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words (in int64) with good avalanche."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD & _MASK
    x = (x ^ (x >> 15)) * 0x735A2D97 & _MASK
    return x ^ (x >> 15)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def key(*parts: int) -> int:
    """A non-negative 62-bit key from integers, e.g. ``key(seed, epoch, index)``; order matters."""
    high, low = 0x9E3779B9, 0x7F4A7C15
    for part in parts:
        part &= 0xFFFFFFFFFFFFFFFF
        low = _mix_int(low ^ (part & _MASK))
        high = _mix_int((high ^ (part >> 32) ^ low) & _MASK)
    return ((high << 32) | low) & 0x3FFFFFFFFFFFFFFF


def site(name: str) -> int:
    """The constant of a place in the code, from a readable name."""
    return zlib.crc32(name.encode())


def bits(draw: Tensor, where: int, count: int) -> Tensor:
    """32 random bits in int64, [N, count], for keys ``draw`` int64 [N] at the site ``where``."""
    low, high = draw & _MASK, (draw >> 32) & _MASK
    base = _mix(_mix(low ^ (where & _MASK)) ^ high)  # [N]
    counter = torch.arange(count, dtype=torch.int64, device=draw.device) * 0x3C6EF372 & _MASK
    return _mix(_mix(base[:, None] ^ counter[None, :]) + base[:, None] & _MASK)


def uniform(draw: Tensor, where: int, shape: Sequence[int]) -> Tensor:
    """Uniform float32 numbers in [0, 1), shape [N, *shape], for keys ``draw`` int64 [N]."""
    count = math.prod(shape)
    return ((bits(draw, where, count) >> 8).to(torch.float32) * 2.0**-24).reshape(draw.shape[0], *shape)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): drops a residual branch per sample with probability ``p``.

    The kept branches are scaled by ``1 / (1 - p)``.

    ``name`` must be unique in the network; it selects the random stream.
    """

    def __init__(self, p: float, name: str) -> None:
        super().__init__()
        self.p, self.where = float(p), site(name)

    def forward(self, x: Tensor, draw: Tensor | None) -> Tensor:
        """``x`` [N, ...]; ``draw`` int64 [N] while training, ``None`` to keep every branch (the trainer always has it;
        comparisons with recorded numbers leave it out)."""
        if not self.training or self.p == 0.0 or draw is None:
            return x
        keep = 1.0 - self.p
        kept = (uniform(draw, self.where, (1,)) < keep).to(x.dtype) / keep
        return x * kept.reshape(-1, *([1] * (x.dim() - 1)))


def drop_paths(words: Tensor, keep: Tensor, dims: int) -> tuple[Tensor, ...]:
    """What ``DropPath`` multiplies its branch by, for many residual branches at once: in a few operations for a whole
    network, where a module per branch hashes for each.

    Args:
        words: int64 [N, K] from ``bits``, one per sample and branch.
        keep: float32 [K], the probability of each branch to be kept, above 0.
        dims: number of axes of the branches.

    Returns:
        K tensors, float32 [N, 1, ...] of ``dims`` axes, each 0 or ``1 / keep``.
    """
    kept = (words * 2.0**-32 < keep) / keep  # [N, K]
    return kept.t().reshape(len(keep), -1, *([1] * (dims - 1))).unbind(0)


def dropout(x: Tensor, words: Tensor, p: float) -> Tensor:
    """Element-wise dropout (Srivastava et al., 2014); what stays is scaled by ``1 / (1 - p)``.

    The word of a channel times the word of a position, modulo 2**31, decides about an element (multiply-shift hashing,
    Dietzfelbinger et al., 1997): three operations per element where hashing a counter takes two dozen.

    Args:
        x: features [N, C, ...] with P positions.
        words: int64 [N, C + P] from ``bits``.
        p: the probability of an element to become 0, below 1.
    """
    by_channel, by_position = (words >> 1).split((x.shape[1], math.prod(x.shape[2:])), 1)
    by_channel = by_channel | 1  # an odd factor maps the positions' words one to one
    if x.stride(1) == 1:  # channels last: the mask is made in the memory order of the features
        product = (by_position[:, :, None] * by_channel[:, None, :]).transpose(1, 2)
    else:
        product = by_channel[:, :, None] * by_position[:, None, :]
    kept = product.bitwise_and_(0x7FFFFFFF) >= round(p * 2**31)
    return x * kept.reshape(x.shape) * (1.0 / (1.0 - p))
