"""What the decoders of the DETR line share: object queries chosen among the maps' cells, and denoising queries beside
them while training (Zhao et al., 2024, section 4.3; Zhang et al., 2022, "DINO", section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr.boxes import relative_cxcywh
from libreyolo_kit_detr.denoising import attention_mask, denoising_queries
from libreyolo_kit_detr.layers import MLP
from libreyolo_kit_detr.queries import anchor_logits, best_rows, take_rows

PRIOR = 0.01
"""What every class score starts at."""


@dataclass(frozen=True)
class Queries:
    """What the decoder layers start from.

    Args:
        content: float [N, D + Q, C], denoising queries first.
        reference: box logits, float32 [N, D + Q, 4].
        noisy: D, the number of denoising queries.
        may_attend: bool [D + Q, D + Q], ``None`` where everything may.
        truth: the true boxes, cx cy w h as shares of the image, ``None`` without targets.
    """

    content: Tensor
    reference: Tensor
    noisy: int = 0
    may_attend: Tensor | None = None
    truth: Tensor | None = None


class QueryDecoder(nn.Module):
    """Base of a decoder; its ``forward`` is the subclass's own.

    Args:
        nc: number of classes.
        queries: object queries. ``denoising``: about how many denoising queries to train with, 0 for none.
        mirror: see ``denoising_queries``.
    """

    enc_output: nn.Sequential
    enc_score_head: nn.Linear
    enc_bbox_head: MLP
    dec_score_head: nn.ModuleList
    denoising_class_embed: nn.Embedding

    def __init__(self, nc: int, *, queries: int, denoising: int, mirror: bool = False) -> None:
        super().__init__()
        self.nc, self.queries, self.denoising, self.mirror = nc, queries, denoising, mirror

    def reset_scores(self) -> None:
        """Every class score starts at ``PRIOR``."""
        for head in (self.enc_score_head, *self.dec_score_head):
            nn.init.constant_(head.bias, -math.log((1 - PRIOR) / PRIOR))

    def select(self, memory: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The most promising cells.

        Args:
            memory: all cells of all maps, float [N, S, C]. ``shapes``: (height, width) of each map, finest first.

        Returns:
            Content [N, Q, C] and reference (box logits, [N, Q, 4]), both detached, and with their gradient the class
            logits ([N, Q, nc] of the chosen cells while training, [N, S, nc] of all in evaluation) and box logits
            [N, Q, 4]. An input with fewer cells than queries gives as many as cells.
        """
        anchors, valid = anchor_logits(shapes, memory.device)
        # Cells without a valid anchor are blanked for selection only; cross-attention reads them.
        candidates = self.enc_output(torch.where(valid, memory, 0))
        logits = self.enc_score_head(candidates)  # [N, S, nc]
        index = best_rows(logits, self.queries)
        content = take_rows(candidates, index)
        boxes = self.enc_bbox_head(content).float() + anchors[index]  # [N, Q, 4]
        return content.detach(), boxes.detach(), (take_rows(logits, index) if self.training else logits, boxes)

    def with_denoising(
        self,
        content: Tensor,
        reference: Tensor,
        image_size: tuple[int, int],
        targets: BoxTargets | None,
        draw: Tensor | None,
    ) -> Queries:
        """The chosen queries, behind denoising queries where there are true boxes and random keys to make them of.

        Args:
            content, reference: what ``select`` returned. ``image_size``: (height, width) of the input in pixels.
            targets, draw: as in ``Network.finish``.
        """
        truth = None if targets is None else relative_cxcywh(targets.boxes, image_size)
        if targets is None or truth is None or draw is None or self.denoising == 0 or targets.most == 0:
            # Every parameter takes part in every step, so that all ranks reduce the same gradients.
            return Queries(content + 0 * self.denoising_class_embed.weight.sum(), reference, truth=truth)
        noisy = denoising_queries(
            truth,
            targets.labels,
            targets.valid,
            draw,
            most=targets.most,
            queries=self.denoising,
            classes=self.nc,
            mirror=self.mirror,
        )
        return Queries(
            torch.cat((self.denoising_class_embed(noisy.labels), content), 1),
            torch.cat((noisy.box_logits, reference), 1),
            noisy.labels.shape[1],
            attention_mask(targets.most, noisy.groups, content.shape[1], content.device),
            truth,
        )
