"""The criterion of D-FINE (Peng et al., 2024, section 4.2): a set criterion whose box terms share one union of all
matchings, and two terms for the distributions of box edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from libreyolo_core.losses import LossTerms, Ranks, Step, float32_island
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import fdr
from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, iou_giou
from libreyolo_kit_detr.criterion import SetCriterion
from libreyolo_kit_detr.denoising import rows
from libreyolo_kit_detr.matcher import match_owners, pair_cost
from libreyolo_kit_detr.scores import SCORES

EDGES = 4


@dataclass(frozen=True)
class Counts:
    """What sums are divided by: a rank's share of the counts over all ranks, at least that of 1.

    Args:
        boxes: true boxes, for the score. ``pairs``: queries that have a box, for the box terms.
        others: queries without one. ``split``: [2], what queries with and without a box weigh in DDF.
    """

    boxes: Tensor
    pairs: Tensor
    others: Tensor
    split: Tensor

    @classmethod
    def of(cls, boxes: Tensor, pairs: Tensor, others: Tensor, split: Tensor, ranks: Ranks) -> Counts:
        """From counts over all ranks."""
        return cls(*(count.clamp(min=1) / ranks.size for count in (boxes, pairs, others)), split)


class FDRCriterion(SetCriterion):
    """Fine-grained localisation (FGL) and decoupled distillation (DDF, equations 6 to 8) beside score, L1 and GIoU.

    Args:
        network: the network whose outputs it judges; nothing is needed of it.
        fgl_weight, ddf_weight: weights of the two terms.
        temperature: of the distributions in DDF.
        options: see ``SetCriterion``.
    """

    def __init__(
        self,
        network: Any = None,
        *,
        fgl_weight: float = 0.15,
        ddf_weight: float = 1.5,
        temperature: float = 5.0,
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        self.weights |= {"fgl": fgl_weight, "ddf": ddf_weight}
        self.temperature = temperature

    @float32_island
    def __call__(self, outputs: dict[str, Tensor], targets: BoxTargets, step: Step) -> LossTerms:
        """Judge the training outputs of a network with L decoder layers.

        Args:
            outputs: ``logits`` [L + 2, N, Q, C] and ``boxes`` [L + 2, N, Q, 4] (cx cy w h as shares of the image) of
                the final layer, the earlier layers, the initial boxes and the encoder; ``corners`` [L, N, Q, 132], the
                distributions of the layers in the same order, about ``initial`` [N, Q, 4]; ``truth`` [N, M, 4];
                ``bins`` [33] and ``reg_scale`` [1], see ``fdr``; with denoising also ``dn_logits`` and ``dn_boxes``
                [L + 1, N, D, ...], ``dn_corners`` [L, N, D, 132] and ``dn_initial`` [N, D, 4].
            targets: labels, validity and the largest count of the step.

        Returns:
            Terms by set: the final layer without suffix, then ``_aux_i``, ``_pre``, ``_enc_0``; for denoising
            ``_dn_i`` and ``_dn_pre``. The final layers teach the others, they have no ``ddf`` themselves.
        """
        owner = self.owners(outputs, targets)  # [L + 3, N, Q]
        union = owner[-1]
        found = torch.stack((targets.valid.sum(), (union >= 0).sum(), (union < 0).sum()))
        counts = step.ranks.sum(found.float())
        boxes, pairs, others = counts.unbind()
        root = counts[1:].sqrt()
        split = root / root.sum()
        counted = Counts.of(boxes, pairs, others, split, step.ranks)
        parts = [self.set_terms(outputs, "", owner[:-1], union, targets, counted)]
        layers = len(outputs["corners"])
        aux = [f"_aux_{i}" for i in range(layers - 1)]
        names = {self.score: ["", *aux, "_pre", "_enc_0"], "fgl": ["", *aux], "ddf": aux}
        if "dn_logits" in outputs:
            noisy = self.denoising_owners(outputs["dn_logits"], targets)  # [N, D]
            restored = boxes * (noisy.shape[1] // (2 * targets.most))
            images = (pairs + others) / union.shape[1]
            counted = Counts.of(restored, restored, images * noisy.shape[1] - restored, split, step.ranks)
            parts.append(self.set_terms(outputs, "dn_", None, noisy, targets, counted))
            aux, final = [f"_dn_{i}" for i in range(layers - 1)], f"_dn_{layers - 1}"
            names = {self.score: [*names[self.score], final, *aux, "_dn_pre"], "fgl": [*names["fgl"], final, *aux]} | {
                "ddf": names["ddf"] + aux
            }
        names["bbox"] = names["giou"] = names[self.score]
        terms = {name: torch.cat([part[name] for part in parts]) * weight for name, weight in self.weights.items()}
        return LossTerms(terms, {name: tuple(suffixes) for name, suffixes in names.items()})

    def owners(self, outputs: dict[str, Tensor], targets: BoxTargets) -> Tensor:
        """The box of every query in each set and, last, in their union: int64 [L + 3, N, Q], -1 for none."""
        logits, boxes = outputs["logits"], outputs["boxes"]
        if targets.most == 0:
            return targets.labels.new_full((len(logits) + 1, *logits.shape[1:3]), -1)
        cost = pair_cost(logits, boxes, outputs["truth"], targets.labels, eps=0.0, **self.costs)
        return match_owners(cost, targets.valid)

    def denoising_owners(self, logits: Tensor, targets: BoxTargets) -> Tensor:
        """The box of every denoising query, int64 [N, D], -1 for none: positive j of a group restores box j."""
        most = targets.most
        valid = F.pad(rows(targets.valid, most), (0, most))  # a group's negatives follow its positives
        slot = torch.arange(2 * most, device=valid.device)
        return torch.where(valid, slot, -1).repeat(1, logits.shape[2] // (2 * most))

    def set_terms(
        self,
        outputs: dict[str, Tensor],
        prefix: str,
        own: Tensor | None,
        union: Tensor,
        targets: BoxTargets,
        counts: Counts,
    ) -> dict[str, Tensor]:
        """Unweighted terms of the S sets with a prefix: float32 [S], ``fgl`` [L] and ``ddf`` [L - 1].

        Args:
            own: int64 [S, N, Q], the box that each set alone gives a query; ``None`` where that is ``union``.
            union: int64 [N, Q], the box of each query for every term but the score.
        """
        truth = outputs["truth"]
        logits, boxes, corners = (outputs[prefix + name] for name in ("logits", "boxes", "corners"))
        matched = union >= 0
        target = box_of(union, truth)  # [N, Q, 4]
        target_corners = cxcywh_to_xyxy(target)
        answer = cxcywh_to_xyxy(boxes, positive=True)
        iou, giou = iou_giou(answer, target_corners, eps=0.0)  # [S, N, Q]
        quality = iou = iou.detach()
        if own is None:
            own = union.expand(len(boxes), -1, -1)
        else:
            quality, _ = iou_giou(answer.detach(), cxcywh_to_xyxy(box_of(own, truth)), eps=0.0)
        quality = at_class(quality, own, targets.labels, logits.shape[-1])
        place, share = fdr.encode(outputs[prefix + "initial"], target_corners, outputs["bins"], outputs["reg_scale"])
        localisation = self.localisation(corners, place, share) * iou[: len(corners)] * matched
        terms = {
            self.score: SCORES[self.score](logits, quality) / counts.boxes,
            "bbox": ((boxes - target).abs().sum(-1) * matched).sum((1, 2)) / counts.pairs,
            "giou": ((1 - giou) * matched).sum((1, 2)) / counts.pairs,
            "fgl": localisation.sum((1, 2)) / counts.pairs,
        }
        trust = torch.where(matched, iou[1 : len(corners)], logits[0].detach().amax(-1).sigmoid())  # [L - 1, N, Q]
        distance = self.distance(corners) * trust
        both = torch.stack(((distance * matched).sum((1, 2)), (distance * ~matched).sum((1, 2))), -1)  # [L - 1, 2]
        mean = both / (EDGES * torch.stack((counts.pairs, counts.others)))
        terms["ddf"] = (mean * counts.split).sum(-1)
        return terms

    def localisation(self, corners: Tensor, place: Tensor, share: Tensor) -> Tensor:
        """FGL of every query, [L, N, Q]: cross-entropy to the two offsets on either side of each true edge.

        Args:
            corners: [L, N, Q, 132]. ``place``, ``share``: [N, Q, 4], see ``fdr.encode``.
        """
        log_p = corners.unflatten(-1, (EDGES, fdr.BINS)).log_softmax(-1)  # [L, N, Q, 4, 33]
        two = torch.stack((place, place + 1), -1).expand(len(corners), -1, -1, -1, -1)
        return -(log_p.gather(-1, two) * torch.stack((1 - share, share), -1)).sum((-1, -2))

    def distance(self, corners: Tensor) -> Tensor:
        """How far the earlier layers' distributions [L, N, Q, 132] are from the final layer's, the first: the
        Kullback-Leibler divergence of all edges together, [L - 1, N, Q]."""
        soft = corners.unflatten(-1, (EDGES, fdr.BINS)) / self.temperature
        teacher = soft[0].detach().log_softmax(-1)
        divergence = teacher.exp() * (teacher - soft[1:].log_softmax(-1))
        return divergence.sum((-1, -2)) * self.temperature**2


def box_of(owner: Tensor, truth: Tensor) -> Tensor:
    """The true box of every query: ``truth`` [N, M, 4] by ``owner`` int64 [..., N, Q], giving [..., N, Q, 4]. A query
    without one has a box of ones, whose overlap with anything is a number."""
    boxes = truth.expand(*owner.shape[:-2], -1, -1, -1)
    chosen = boxes.gather(-2, owner.clamp(min=0)[..., None].expand(*owner.shape, 4))
    return torch.where(owner[..., None] >= 0, chosen, 1.0)


def at_class(quality: Tensor, owner: Tensor, labels: Tensor, classes: int) -> Tensor:
    """``quality`` [S, N, Q] at the class of the query's box, -1 everywhere else: [S, N, Q, C].

    Args:
        owner: int64 [S, N, Q], -1 for none. ``labels``: int64 [N, M].
    """
    label = labels.expand(len(owner), -1, -1).gather(2, owner.clamp(min=0))
    blank = quality.new_full((*quality.shape, classes), -1.0)
    return blank.scatter_(3, label[..., None], torch.where(owner >= 0, quality, -1.0)[..., None])
