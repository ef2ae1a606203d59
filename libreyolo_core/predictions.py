"""Canonical predictions: what a network says before thresholds, one container for all tasks."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor


@dataclass
class Predictions:
    """Fields that the task uses are set, the others are ``None``.

    Args:
        boxes: detect, float [N, A, 4], x1 y1 x2 y2 in pixels of the input, not clipped; all anchors or queries.
        scores: detect, float [N, A, C], the confidence a threshold applies to (objectness multiplied in);
            point, float [N, 1 + C, gh, gw], softmax over channels, channel 0 background.
        levels: detect, how many of the A rows belong to each level, finest first; empty for queries.
        logits: classify [N, C] or semantic [N, C, h, w], before softmax.
        image: restore, float [N, 3, H, W], not clipped.
    """

    boxes: Tensor | None = None
    scores: Tensor | None = None
    levels: tuple[int, ...] = ()
    logits: Tensor | None = None
    image: Tensor | None = None

    def map(self, function) -> Predictions:
        """The same with ``function`` applied to every tensor, e.g. ``p.map(lambda t: t.float().cpu())``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Predictions(**{k: function(v) if isinstance(v, Tensor) else v for k, v in values.items()})
