"""One forward pass of inference: uint8 images in, canonical predictions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from libreyolo_core.data.batch import prepare
from libreyolo_core.family import Input
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions


@dataclass
class Inference:
    """Prepared images through a network in evaluation mode to canonical predictions.

    Args:
        forward: stands for the network and its ``predictions``.
    """

    network: Network
    rule: Input
    device: torch.device
    forward: Callable[[Tensor], Predictions] | None = None

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Predictions:
        """``images`` uint8 [N, 3, H, W] in the network's channel order, on any device."""
        self.network.eval()
        prepared = prepare(images.to(self.device, non_blocking=True), self.rule)
        if self.forward is not None:
            return self.forward(prepared)
        return self.network.predictions(self.network(prepared), (images.shape[-2], images.shape[-1]))
