"""One forward pass of training: the module that distributed training would wrap and capture would look into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from libreyolo_core.data.batch import Batch, prepare
from libreyolo_core.family import Input, Loss, resolve
from libreyolo_core.losses import LossTerms, Ranks, Step
from libreyolo_core.network import Network
from libreyolo_core.targets import Targets


class TrainStep(nn.Module):
    """``loss(finish(region(images), targets), targets)``.

    ``region`` is the network's own method until something wraps it (a CUDA graph, ``torch.compile``), and ``whole`` is
    ``terms`` until a recording of the whole step does; nothing else in training is ever replaced.
    """

    def __init__(self, network: Network, loss: Loss, rule: Input, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.network, self.rule, self.ranks = network, rule, ranks or Ranks()
        self.region: Callable = network.region
        self.whole: Callable = self.terms
        self.memory_format = torch.contiguous_format
        self.set_loss(loss)

    def set_loss(self, loss: Loss) -> None:
        """Build the loss; it has no state, so a change of its options is a new one."""
        self.loss = resolve(loss.code)(self.network, **loss.options)

    def forward(self, batch: Batch) -> LossTerms:
        """The loss of a batch whose tensors are on the network's device."""
        images = prepare(batch.images, self.rule).contiguous(memory_format=self.memory_format)
        return self.whole(images, batch.targets, batch.draw)  # type: ignore[no-any-return]

    def terms(
        self, images: Tensor, targets: Targets, draw: Tensor | None, *, region: Callable | None = None
    ) -> LossTerms:
        """The loss of prepared images.

        Args:
            images: float [N, 3, H, W].
            targets: padded, of the same N images.
            draw: int64 [N], their random keys.
            region: runs instead of ``self.region``.
        """
        features = (region or self.region)(images, draw)
        outputs = self.network.finish(features, targets, draw)
        return self.loss(outputs, targets, Step(self.ranks, draw))
