"""Tells size and class count of a bare FOMO weight file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from libreyolo_core.checkpoint import Found

SIZES = {(96, 48): "s", (96, 96): "m", (192, 144): "l"}
"""Columns of the head and rows of the second block's widening: sizes s and m share the former."""


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """What a state dict holds, or ``None`` when it is not FOMO.

    Args:
        state: keys as in the file; prefixes such as ``module.`` already stripped.
    """
    from libreyolo_core.checkpoint import Found

    head, widening = state["head.weight"], state["backbone.block_2.conv.0.0.conv.weight"]
    size = SIZES.get((head.shape[1], widening.shape[0]), "")
    return Found(size=size, nc=max(head.shape[0] - 1, 1))  # the first row of the head is background
