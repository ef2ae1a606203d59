"""The YOLOX loss: SimOTA's three terms, and in the last epochs an L1 term on undecoded boxes (section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from libreyolo_core.errors import ConfigError
from libreyolo_core.network import Network
from libreyolo_kit_yolo.simota import Assignment, SimOTALoss


class YOLOXLoss(SimOTALoss):
    """Terms ``iou``, ``obj``, ``cls``, and ``l1`` while its weight is not zero.

    Args:
        network: the network; with ``l1`` its option of the same name must be on.
        iou, obj, cls, l1: weights of the terms.
    """

    def __init__(
        self, network: Network, *, iou: float = 5.0, obj: float = 1.0, cls: float = 1.0, l1: float = 0.0
    ) -> None:
        super().__init__(network, iou=iou, obj=obj, cls=cls)
        self.weights["l1"] = l1

    def sums(self, outputs: Mapping[str, Tensor], assignment: Assignment) -> dict[str, Tensor]:
        """Every term before weight and normaliser, a scalar summed over the batch."""
        terms = super().sums(outputs, assignment)
        if self.weights["l1"]:
            terms["l1"] = self._l1(outputs, assignment)
        return terms

    def _l1(self, outputs: Mapping[str, Tensor], assignment: Assignment) -> Tensor:
        if "raw" not in outputs:
            raise ConfigError(
                f"loss.l1={self.weights['l1']:g} needs the network's undecoded boxes",
                where="YOLOX loss",
                mend="Set network.l1 to true together with it.",
            )
        columns, boxes = assignment.columns, assignment.target_boxes
        cells = outputs["cells"][columns.cell]  # [N, K, 3]
        corner, stride = cells.split((2, 1), -1)
        first, last = boxes.split(2, -1)
        offset = (first + last) * 0.5 / stride - corner
        log_size = torch.log((last - first) / stride + 1e-8)
        error = (columns.pick(outputs["raw"]) - torch.cat((offset, log_size), -1)).abs()
        return (error * assignment.matches.positive[..., None]).sum()
