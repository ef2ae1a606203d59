"""What only the tensors of a YOLOv9 file can tell."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from libreyolo_core.checkpoint import Found

RELATIVES = ("head.one2one_cv", "neck.elan_up3.", "neck.elan_down0.")
"""Beginnings of keys that only networks derived from this one have."""


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """Class count and width of the class towers from a native state dict; ``None`` for derived networks.

    Files of the original project hold a fixed projection (``anc2vec``) and were trained on centred letterboxes.
    """
    if any(key.startswith(RELATIVES) for key in state):
        return None
    foreign = any(".anc2vec." in key for key in state)
    return Found(
        nc=state["head.cv3.0.2.weight"].shape[0],
        model={"class_width": state["head.cv3.0.0.conv.weight"].shape[0]},
        set={"input.side": "centre"} if foreign else {},
    )
