"""Recognises bare RT-DETR weight files and finds their size and class count."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from libreyolo_core.checkpoint import Found


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """What a state dict holds, or ``None`` when it is not RT-DETR.

    Args:
        state: keys as in the file, original or renamed; prefixes such as ``module.`` already stripped.
    """
    from libreyolo_core.checkpoint import Found

    resnet = any(key.startswith("backbone.res_layers.") for key in state)
    hgnet = any(key.startswith("backbone.stages.") for key in state)
    scores = [key for key in state if re.fullmatch(r"decoder\.dec_score_head\.\d+\.bias", key)]
    projections = [_first(state, rf"{part}\.input_proj\.0\.(0|conv)\.weight") for part in ("encoder", "decoder")]
    if not (resnet or hgnet) or not scores or None in projections:
        return None
    # RT-DETRv2's ResNet files differ by this buffer alone; its HGNetV2 files are this network.
    if resnet and any(key.endswith("cross_attn.num_points_scale") for key in state):
        return None
    boxes = state.get("decoder.enc_bbox_head.layers.2.bias")
    if boxes is not None and len(boxes) != 4:  # oriented boxes
        return None
    wide = len(state[projections[0]]) == 384  # type: ignore[index]
    size = ("x" if wide else "l") if hgnet else _resnet_size(state, wide)
    return Found(size=size, nc=len(state[max(scores, key=_number)]), model={}, set={})


def _resnet_size(state: Mapping[str, Tensor], wide: bool) -> str:
    if wide:
        return "r101"
    if not any(".branch2c." in key for key in state):
        return "r34" if _blocks(state, stage=0) > 2 else "r18"
    if _blocks(state, stage=2) > 6:
        return "r101"
    narrow = len(state["encoder.fpn_blocks.0.conv1.conv.weight"]) == 128
    return "r50m" if narrow else "r50"


def _blocks(state: Mapping[str, Tensor], stage: int) -> int:
    found = (re.match(rf"backbone\.res_layers\.{stage}\.blocks\.(\d+)\.", key) for key in state)
    return 1 + max(int(hit[1]) for hit in found if hit)


def _first(state: Mapping[str, Tensor], pattern: str) -> str | None:
    return next((key for key in state if re.fullmatch(pattern, key)), None)


def _number(key: str) -> int:
    return int(key.split(".")[2])
