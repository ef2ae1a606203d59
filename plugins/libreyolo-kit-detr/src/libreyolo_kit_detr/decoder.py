"""The decoder layer of the RT-DETR line."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_detr.deformable import DeformableAttention
from libreyolo_kit_detr.transformer import SelfAttention

FLOAT16_MAX = 65504.0


class DecoderLayer(nn.Module):
    """Post-norm: self-attention among queries, deformable cross-attention to the maps, feed-forward network.

    Args:
        dim: channels. ``ffn``: width of the feed-forward network. ``heads``: attention heads.
        levels, points: maps, and deformable points in each.
        clamp: keep the last sum within the range of float16 before its norm.
    """

    def __init__(
        self, dim: int = 256, ffn: int = 1024, heads: int = 8, levels: int = 3, points: int = 4, *, clamp: bool = True
    ) -> None:
        super().__init__()
        self.clamp = clamp
        self.self_attn = SelfAttention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = DeformableAttention(dim, heads, levels, points)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, ffn)
        self.linear2 = nn.Linear(ffn, dim)
        self.norm3 = nn.LayerNorm(dim)

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        boxes: Tensor,
        memory: Tensor,
        shapes: Sequence[tuple[int, int]],
        may_attend: Tensor | None = None,
    ) -> Tensor:
        """Refine queries.

        Args:
            x: float [N, Q, C], content. ``pos``: float [N, Q, C], position.
            boxes: float32 [N, Q, 4], reference boxes cx cy w h as shares of the image.
            memory, shapes: see ``DeformableAttention.forward``.
            may_attend: bool [Q, Q], see ``SelfAttention.forward``.
        """
        x = self.norm1(x + self.self_attn(x, pos, may_attend))
        x = self.norm2(x + self.cross_attn(x + pos, boxes, memory, shapes))
        x = x + self.linear2(F.relu(self.linear1(x)))
        return self.norm3(x.clamp(-FLOAT16_MAX, FLOAT16_MAX) if self.clamp else x)
