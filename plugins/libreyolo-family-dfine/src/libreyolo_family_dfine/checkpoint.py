"""Recognises bare D-FINE weight files and finds their size and class count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from libreyolo_core.errors import CheckpointError

if TYPE_CHECKING:
    from libreyolo_core.checkpoint import Found

# Dome-DETR's encoder, and the distillation part of RT-DETRv4's training files
OTHERS = ("encoder.DeFE.", "encoder.feature_projector.")
MASKS = ("decoder.mask_decoder.", "decoder.mask_head.")
BY_WIDTH = {128: "n", 384: "x"}
BY_BACKBONE = {256: "s", 384: "m", 512: "l"}


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """What a state dict holds, or ``None`` when it is not D-FINE. DEIM's files have the same keys and shapes; between
    the two the file's metadata or name decides.

    Args:
        state: keys as in the file; prefixes such as ``module.`` already stripped.

    Raises:
        CheckpointError: weights of the segmentation model.
    """
    from libreyolo_core.checkpoint import Found

    if any(key.startswith(OTHERS) for key in state):
        return None
    if any(key.startswith(MASKS) for key in state):
        raise CheckpointError(
            "These are D-FINE weights for segmentation, which this version of the family cannot do",
            where=next(key for key in state if key.startswith(MASKS)),
            mend="Use the weights for detection (without '-seg' in their name).",
        )
    width = state["encoder.lateral_convs.0.conv.weight"].shape[1]
    size = BY_WIDTH.get(width) or BY_BACKBONE[state["encoder.input_proj.0.conv.weight"].shape[1]]
    return Found(size=size, nc=len(state["decoder.dec_score_head.0.bias"]), model={}, set={})
