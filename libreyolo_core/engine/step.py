"""One forward pass of training: the module that distributed training would wrap and capture would look into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from libreyolo_core.data.batch import Batch, prepare
from libreyolo_core.family import Input, Loss, resolve
from libreyolo_core.losses import LossTerms, Ranks, Step
from libreyolo_core.network import Network


class TrainStep(nn.Module):
    """``loss(finish(region(images), targets), targets)``.

    ``region`` is the network's own method until something wraps it (a CUDA graph, ``torch.compile``); nothing else in
    training is ever replaced.
    """

    def __init__(self, network: Network, loss: Loss, rule: Input, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.network, self.rule, self.ranks = network, rule, ranks or Ranks()
        self.region: Callable = network.region
        self.memory_format = torch.contiguous_format
        self.set_loss(loss)

    def set_loss(self, loss: Loss) -> None:
        """Build the loss; it has no state, so a change of its options is a new one."""
        self.loss = resolve(loss.code)(self.network, **loss.options)

    def forward(self, batch: Batch) -> LossTerms:
        """The loss of a batch whose tensors are on the network's device."""
        images = prepare(batch.images, self.rule).contiguous(memory_format=self.memory_format)
        features = self.region(images, batch.draw)
        outputs = self.network.finish(features, batch.targets, batch.draw)
        return self.loss(outputs, batch.targets, Step(self.ranks, batch.draw))
