"""Contrastive denoising queries (Zhang et al., 2023, "DINO", section 3.3), drawn per sample.

For every true box of an image each group holds a positive query (a slightly disturbed box, which the decoder must
restore) and a negative one (a box disturbed too much, to be rejected). All images have the slots of the fullest image
of the step, so that every rank builds the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.draw import site, uniform
from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh
from libreyolo_kit_detr.queries import LOGIT_EPS

_LABEL, _BOX = site("denoising.label"), site("denoising.box")


@dataclass
class DenoisingQueries:
    """Queries made from true boxes; a group's slots are ``most`` positives, then ``most`` negatives.

    Args:
        labels: int64 [N, D], the (sometimes wrong) classes shown to the decoder; ``classes`` in padded slots.
        box_logits: float32 [N, D, 4], logits of cx cy w h as shares of the image.
        groups: how many groups, D = groups * 2 * most.
    """

    labels: Tensor
    box_logits: Tensor
    groups: int


def group_count(queries: int, most: int) -> int:
    """How many groups fit into about ``queries`` queries when the fullest image has ``most`` boxes."""
    return max(1, queries // most)


@torch.no_grad()
def denoising_queries(
    boxes: Tensor,
    labels: Tensor,
    valid: Tensor,
    draw: Tensor,
    *,
    most: int,
    queries: int,
    classes: int,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
    mirror: bool = False,
) -> DenoisingQueries:
    """Disturb true boxes and labels.

    Args:
        boxes: float32 [N, M, 4], cx cy w h as shares of the image. ``labels`` int64 [N, M]. ``valid`` bool [N, M].
        draw: int64 [N], the samples' random keys.
        most: slots a group has for positives (and again for negatives), at least 1.
        queries: about how many queries to make. ``classes``: class count.
        label_noise: half of this share of the labels is replaced by random ones.
        box_noise: corners move by less than this share of half the box (positives), negatives by up to twice as much.
        mirror: swap corners that crossed; without, such a box has almost no size.
    """
    groups = group_count(queries, most)
    boxes, labels, valid = (rows(x, most)[:, None, None] for x in (boxes, labels, valid))  # [N, 1, 1, most]
    slots = (groups, 2, most)

    # One number decides whether a label is replaced and, spread over its share again, by which class.
    spread = uniform(draw, _LABEL, slots) * (2 / label_noise) if label_noise else torch.ones(1, device=boxes.device)
    shown = torch.where(spread < 1, (spread * classes).long(), labels)
    shown = torch.where(valid, shown, classes).expand(-1, *slots)

    shift = uniform(draw, _BOX, (*slots, 4)) * 2 - 1  # positives move by [-1, 1), negatives one further
    far = torch.arange(2, device=boxes.device)[:, None, None]
    shift = (shift + torch.where(shift < 0, -1, 1) * far) * (0.5 * box_noise)
    corners = cxcywh_to_xyxy(boxes) + shift * boxes[..., 2:].repeat(1, 1, 1, 1, 2)  # w h w h
    noisy = xyxy_to_cxcywh(corners.clamp(0, 1))
    if mirror:
        noisy = noisy.abs()  # centres are positive anyway
    # A size that is still negative, because corners crossed, is clipped to almost nothing by the logit.
    return DenoisingQueries(shown.flatten(1), noisy.logit(eps=LOGIT_EPS).flatten(1, 3), groups)


def rows(x: Tensor, count: int) -> Tensor:
    """The first ``count`` rows of a padded target [N, M, ...], padded further when M is smaller."""
    missing = count - x.shape[1]
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) if missing > 0 else x[:, :count]


def attention_mask(most: int, groups: int, queries: int, device: torch.device) -> Tensor:
    """Who may see whom, bool [D + queries, D + queries], true where the row's token may attend to the column's.

    Denoising queries see their own group and the matching queries; matching queries see only each other, because a
    denoising query would tell them the answer.
    """
    group = torch.arange(groups * 2 * most, device=device) // (2 * most)
    group = F.pad(group, (0, queries), value=groups)  # matching queries form one more group
    return (group[:, None] == group) | (group == groups)
