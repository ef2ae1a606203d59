"""The set criterion of the DETR line: match, then one classification and two box terms for every set of predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from libreyolo_core.errors import ConfigError, suggestion
from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, iou_giou
from libreyolo_kit_detr.denoising import rows
from libreyolo_kit_detr.matcher import match, pair_cost
from libreyolo_kit_detr.scores import SCORES


class SetCriterion:
    """The loss of RT-DETR (Zhao et al., 2024) over the outputs of all layers at once.

    Args:
        network: the network whose outputs it judges; the base class needs nothing of it.
        score: classification term, a name of ``scores.SCORES``.
        score_weight, bbox_weight, giou_weight: weights of the classification, L1 and generalised IoU terms.
        score_cost, bbox_cost, giou_cost: weights of the same in the matching cost.
    """

    def __init__(
        self,
        network: Any = None,
        *,
        score: str = "vfl",
        score_weight: float = 1.0,
        bbox_weight: float = 5.0,
        giou_weight: float = 2.0,
        score_cost: float = 2.0,
        bbox_cost: float = 5.0,
        giou_cost: float = 2.0,
    ) -> None:
        if score not in SCORES:
            raise ConfigError(
                f"score={score!r} is no classification term", where="loss.score", mend=suggestion(score, SCORES)
            )
        self.score = score
        self.weights = {score: score_weight, "bbox": bbox_weight, "giou": giou_weight}
        self.costs = {"score": score_cost, "bbox": bbox_cost, "giou": giou_cost}

    @float32_island
    def __call__(self, outputs: dict[str, Tensor], targets: BoxTargets, step: Step) -> LossTerms:
        """Judge the training outputs of a network.

        Args:
            outputs: ``logits`` [S, N, Q, C] and ``boxes`` [S, N, Q, 4] (cx cy w h as shares of the image), the final
                layer first; ``truth`` [N, M, 4], the true boxes in the same form; with denoising also ``dn_logits``
                [L, N, D, C] and ``dn_boxes`` [L, N, D, 4].
            targets: labels, validity and the largest count of the step.

        Returns:
            Terms by layer: the final one without suffix, ``_aux_i`` for the other sets, ``_dn_i`` for denoising.
        """
        logits, boxes, truth = outputs["logits"], outputs["boxes"], outputs["truth"]
        count = step.ranks.normaliser(targets.valid.sum().float())
        query = self.match(logits, boxes, truth, targets)
        parts = [self.terms(logits, boxes, query, truth, targets.labels, count)]
        suffixes = self.suffixes(len(logits))
        if "dn_logits" in outputs:
            parts.append(self.denoising_terms(outputs["dn_logits"], outputs["dn_boxes"], truth, targets, count))
            suffixes += tuple(f"_dn_{i}" for i in range(len(outputs["dn_logits"])))
        terms = {name: torch.cat([part[name] for part in parts]) * weight for name, weight in self.weights.items()}
        return LossTerms(terms, dict.fromkeys(terms, suffixes))

    def suffixes(self, sets: int) -> tuple[str, ...]:
        """Names of the matched sets, in the order of ``outputs``."""
        return ("", *(f"_aux_{i}" for i in range(sets - 1)))

    def match(self, logits: Tensor, boxes: Tensor, truth: Tensor, targets: BoxTargets) -> Tensor:
        """The query of each true box in each set, int64 [S, N, M], -1 for none."""
        if targets.most == 0:
            return targets.labels.new_full((len(logits), *targets.labels.shape), -1)
        return match(pair_cost(logits, boxes, truth, targets.labels, **self.costs), targets.valid)

    def denoising_terms(
        self, logits: Tensor, boxes: Tensor, truth: Tensor, targets: BoxTargets, count: Tensor
    ) -> dict[str, Tensor]:
        """Terms of the denoising queries, which need no matching: positive j of a group restores box j."""
        most = targets.most
        groups = logits.shape[2] // (2 * most)
        truth, labels, valid = (rows(x, most) for x in (truth, targets.labels, targets.valid))
        slot = torch.arange(groups * most, device=truth.device)
        slot = slot + slot // most * most  # skips the negatives that follow each group's positives
        query = torch.where(valid.repeat(1, groups), slot, -1).expand(len(logits), -1, -1)  # [L, N, G * most]
        return self.terms(logits, boxes, query, truth.repeat(1, groups, 1), labels.repeat(1, groups), count * groups)

    def terms(
        self, logits: Tensor, boxes: Tensor, query: Tensor, truth: Tensor, labels: Tensor, divisor: Tensor
    ) -> dict[str, Tensor]:
        """Unweighted terms of every set, float32 [S] each.

        Args:
            logits: [S, N, Q, C]. ``boxes``: [S, N, Q, 4].
            query: int64 [S, N, K], which query each of K true boxes has, -1 for none.
            truth: [N, K, 4]. ``labels``: int64 [N, K].
            divisor: scalar, what sums are divided by.
        """
        matched = query >= 0
        picked = boxes.gather(2, query.clamp(min=0)[..., None].expand(-1, -1, -1, 4))  # [S, N, K, 4]
        iou, giou = iou_giou(cxcywh_to_xyxy(picked), cxcywh_to_xyxy(truth))
        distance = (picked - truth).abs().sum(-1)
        quality = self.quality(logits, query, labels, matched, iou.detach())
        return {
            self.score: SCORES[self.score](logits, quality) / divisor,
            "bbox": (distance * matched).sum((1, 2)) / divisor,
            "giou": ((1 - giou) * matched).sum((1, 2)) / divisor,
        }

    def quality(self, logits: Tensor, query: Tensor, labels: Tensor, matched: Tensor, iou: Tensor) -> Tensor:
        """``iou`` at the matched query and class, -1 everywhere else, [S, N, Q, C]."""
        sets, n, queries, classes = logits.shape
        # One spare place at the end takes what padding writes.
        place = torch.where(matched, query * classes + labels, queries * classes)
        blank = logits.new_full((sets, n, queries * classes + 1), -1.0)
        return blank.scatter_(2, place, iou)[..., :-1].unflatten(2, (queries, classes))
