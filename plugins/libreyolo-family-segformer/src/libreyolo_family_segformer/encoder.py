"""The Mix Transformer encoder (section 3.1 of the paper).

Between layers the features are tokens [N, H*W, C], row by row. Seen as a map they are channels-last in memory, and the
convolutions keep that, so no change between the two forms copies anything. Linear layers get tokens [N*H*W, C].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.draw import drop_paths

HEADS = (1, 2, 5, 8)
REDUCTIONS = (8, 4, 2, 1)
KERNELS = (7, 3, 3, 3)
STRIDES = (4, 2, 2, 2)
MLP_RATIO = 4
DROP_PATH = 0.1
EPS = 1e-5


def to_map(tokens: Tensor, n: int, size: Sequence[int]) -> Tensor:
    """Tokens [N, H*W, C] or [N*H*W, C] as a map [N, C, H, W], a view."""
    return tokens.reshape(n, size[0], size[1], -1).permute(0, 3, 1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """A map [N, C, H, W] as tokens [N, H*W, C], a view."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


class Encoder(nn.Module):
    """Four stages at strides 4, 8, 16 and 32.

    Stochastic depth grows linearly over the blocks from 0 to 0.1; attention and feed-forward network of a block are
    dropped independently of each other. ``keep`` [2 * (blocks - 1)] holds what is left, without the first block's.
    """

    keep: Tensor

    def __init__(self, depths: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        inputs = (3, *widths[:-1])
        self.stages = nn.ModuleList(Stage(i, inputs[i], widths[i], depths[i]) for i in range(4))
        keep = 1 - torch.linspace(0, DROP_PATH, sum(depths))[1:].repeat_interleave(2)
        self.register_buffer("keep", keep, persistent=False)

    def forward(self, images: Tensor, words: Tensor | None) -> list[Tensor]:
        """Images [N, 3, H, W] to one map [N, C_i, H_i, W_i] per stage.

        Args:
            words: int64 [N, len(keep)] random words, ``None`` to drop nothing.
        """
        scales = [None] * len(self.keep) if words is None else drop_paths(words, self.keep, dims=3)
        scale = iter((None, None, *scales))
        maps, x = [], images
        for stage in self.stages:
            x = stage(x, scale)
            maps.append(x)
        return maps


class Stage(nn.Module):
    """Overlapping patch embedding, blocks, norm."""

    def __init__(self, index: int, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch_embeddings = PatchEmbedding(inputs, width, KERNELS[index], STRIDES[index])
        self.blocks = nn.ModuleList(Block(width, HEADS[index], REDUCTIONS[index]) for _ in range(depth))
        self.layer_norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor, scale: Iterator[Tensor | None]) -> Tensor:
        """A map to the next coarser one; the normalised map is this stage's output and the next one's input."""
        tokens, size = self.patch_embeddings(x)
        for block in self.blocks:
            tokens = block(tokens, size, next(scale), next(scale))
        return to_map(self.layer_norm(tokens), len(tokens), size)


class PatchEmbedding(nn.Module):
    """A strided convolution whose kernel overlaps its neighbours, then a norm."""

    def __init__(self, inputs: int, width: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(inputs, width, kernel, stride, kernel // 2)
        self.layer_norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor) -> tuple[Tensor, Sequence[int]]:
        """Tokens, and the (height, width) they have as a map."""
        x = self.proj(x)
        return self.layer_norm(to_tokens(x)), x.shape[-2:]


class Block(nn.Module):
    """Pre-norm residual attention and feed-forward network."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(width, eps=EPS)
        self.attention = Attention(width, heads, reduction)
        self.layernorm_after = nn.LayerNorm(width, eps=EPS)
        self.mlp = MixFFN(width, MLP_RATIO * width)

    def forward(self, x: Tensor, size: Sequence[int], first: Tensor | None, second: Tensor | None) -> Tensor:
        """``first`` and ``second`` [N, 1, 1] scale the two branches of each sample; ``None`` is 1."""
        x = add(x, self.attention(self.layernorm_before(x), size), first)
        return add(x, self.mlp(self.layernorm_after(x), size), second)


def add(x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
    """``x + scale * branch`` in one operation."""
    return x + branch if scale is None else torch.addcmul(x, branch, scale)


class Attention(nn.Module):
    """Self-attention whose keys and values come from a map reduced by ``reduction`` in each direction."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.o_proj = nn.Linear(width, width)
        self.sequence_reduction = SequenceReduction(width, reduction) if reduction > 1 else None

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Tokens [N, H*W, C] to tokens."""
        n = len(x)
        flat = x.flatten(0, 1)
        source = flat if self.sequence_reduction is None else self.sequence_reduction(x, size).flatten(0, 1)
        q, k, v = (self.split(part, n) for part in (self.q_proj(flat), self.k_proj(source), self.v_proj(source)))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)  # [N, H*W, heads, C/heads]
        return self.o_proj(mixed.reshape(flat.shape)).view(x.shape)

    def split(self, tokens: Tensor, n: int) -> Tensor:
        """Tokens [N*L, C] to [N, heads, L, C/heads], a view."""
        return tokens.view(n, -1, self.heads, tokens.shape[1] // self.heads).transpose(1, 2)


class SequenceReduction(nn.Module):
    """A convolution with kernel and stride ``reduction``, then a norm: fewer tokens to attend to."""

    def __init__(self, width: int, reduction: int) -> None:
        super().__init__()
        self.sequence_reduction = nn.Conv2d(width, width, reduction, reduction)
        self.layer_norm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Tokens [N, H*W, C] to tokens [N, H*W / reduction**2, C]."""
        return self.layer_norm(to_tokens(self.sequence_reduction(to_map(x, len(x), size))))


class DepthwiseConv(nn.Module):
    """3x3, which also tells tokens where they are: its zero padding shows the border."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """A map to a map."""
        return self.dwconv(x)


class MixFFN(nn.Module):
    """Feed-forward network with a depthwise convolution before its activation."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.dwconv = DepthwiseConv(hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Tokens [N, H*W, C] to tokens."""
        hidden = self.dwconv(to_map(self.fc1(x.flatten(0, 1)), len(x), size))
        hidden = F.gelu(hidden.permute(0, 2, 3, 1).flatten(0, 2))  # [N*H*W, 4 C]
        return self.fc2(hidden).view(x.shape)
