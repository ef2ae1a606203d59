"""The YOLOv9 loss: task-aligned assignment for the head and, with less weight, for the auxiliary head."""

from __future__ import annotations

from libreyolo_core.network import Network
from libreyolo_kit_yolo.tal import Branch, TaskAlignedLoss


class YOLO9Loss(TaskAlignedLoss):
    """Terms ``box``, ``dfl``, ``cls``, and where the network has an auxiliary head ``aux_box``, ``aux_dfl``,
    ``aux_cls``.

    Args:
        network: the network.
        box, dfl, cls: weights of the terms.
        aux: further factor on the terms of the auxiliary head.
    """

    def __init__(
        self, network: Network, *, box: float = 7.5, dfl: float = 1.5, cls: float = 0.5, aux: float = 0.25
    ) -> None:
        super().__init__(network, box=box, dfl=dfl, cls=cls, branches=(Branch(), Branch("aux", aux)))
