"""Self-attention and the transformer encoder layer, with the parameter names of ``nn.MultiheadAttention``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_kit_detr.layers import keep_layout


class SelfAttention(nn.Module):
    """Multi-head attention in which queries and keys carry a position and values do not."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, pos: Tensor, may_attend: Tensor | None = None) -> Tensor:
        """Mix tokens.

        Args:
            x: float [N, T, C], the values.
            pos: float, broadcast to [N, T, C], added for queries and keys.
            may_attend: bool [T, T], true where the token of the row may see the token of the column; ``None`` for all.
        """
        dim = x.shape[-1]
        weight_qk, weight_v = self.in_proj_weight.split((2 * dim, dim))
        bias_qk, bias_v = self.in_proj_bias.split((2 * dim, dim))
        qk = F.linear(x + pos, weight_qk, bias_qk).unflatten(-1, (2, self.heads, -1))  # [N, T, 2, H, C/H]
        query, key = qk.permute(2, 0, 3, 1, 4).unbind(0)  # [N, H, T, C/H]
        value = F.linear(x, weight_v, bias_v).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=may_attend)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class TransformerEncoderLayer(nn.Module):
    """Post-norm: self-attention, then a feed-forward network with exact GELU (Vaswani et al., 2017)."""

    def __init__(self, dim: int, ffn: int, heads: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(dim, heads)
        self.linear1 = nn.Linear(dim, ffn)
        self.linear2 = nn.Linear(ffn, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        """``x`` float [N, T, C], ``pos`` broadcast to it."""
        x = self.norm1(x + self.self_attn(x, pos))
        return self.norm2(x + self.linear2(F.gelu(self.linear1(x))))


def to_tokens(x: Tensor) -> Tensor:
    """The cells of a map [N, C, H, W] row by row, [N, H * W, C], without copying."""
    return keep_layout(x).permute(0, 2, 3, 1).flatten(1, 2)


def grid_position(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """Sine and cosine codes of the cells of a map, float32 [height * width, dim], computed on ``device``.

    The cells are listed column by column while the tokens of a map are row by row. Released weights were trained with
    that mismatch, so it is part of the architecture.
    """
    quarter = dim // 4
    frequency = 10000.0 ** (torch.arange(quarter, dtype=torch.float32, device=device) / -quarter)
    x = torch.arange(width, dtype=torch.float32, device=device)[:, None] * frequency  # [W, D/4]
    y = torch.arange(height, dtype=torch.float32, device=device)[:, None] * frequency  # [H, D/4]
    code_x = torch.cat((x.sin(), x.cos()), 1)[:, None].expand(width, height, 2 * quarter)
    code_y = torch.cat((y.sin(), y.cos()), 1)[None].expand(width, height, 2 * quarter)
    return torch.cat((code_x, code_y), 2).flatten(0, 1)
