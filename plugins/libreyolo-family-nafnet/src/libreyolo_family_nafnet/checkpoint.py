"""Tells size and block layout of a NAFNet weight file, which its keys alone know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from libreyolo_core.checkpoint import Found

SIZES = {32: "s", 64: "l"}
"""Size by the number of channels at full resolution."""


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """What a state dict holds, or ``None`` when it is not NAFNet.

    GoPro and SIDD models have the same number of keys and the same names at every level; only the block counts differ.

    Args:
        state: keys as in the file; prefixes such as ``module.`` already stripped.
    """
    from libreyolo_core.checkpoint import Found

    encoder, decoder = _blocks(state, "encoders"), _blocks(state, "decoders")
    middle = {m[1] for key in state if (m := re.fullmatch(r"middle_blks\.(\d+)\.beta", key))}
    if not encoder or len(encoder) != len(decoder) or 0 in (*encoder, *decoder):
        return None
    layout = {"encoder": encoder, "middle": len(middle), "decoder": decoder}
    return Found(size=SIZES.get(state["intro.weight"].shape[0], ""), nc=1, model=layout)


def _blocks(state: Mapping[str, Tensor], part: str) -> tuple[int, ...]:
    """Number of blocks of every level of the encoders or decoders."""
    found = {(int(m[1]), int(m[2])) for key in state if (m := re.fullmatch(rf"{part}\.(\d+)\.(\d+)\.beta", key))}
    levels = 1 + max((level for level, _ in found), default=-1)
    return tuple(sum(level == i for level, _ in found) for i in range(levels))
