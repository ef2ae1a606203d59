"""The Charbonnier loss."""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo_core.losses import LossTerms, Step, float32_island
from libreyolo_core.network import Network
from libreyolo_core.targets import ImageTargets


class Charbonnier:
    """Mean over all values of all ranks of sqrt(d^2 + eps^2), d the difference to the clean image in [0, 1]: an
    absolute error that is smooth at zero (Lai et al., "Fast and Accurate Image Super-Resolution with Deep Laplacian
    Pyramid Networks", 2018, section 3.3).

    The one term is called ``restore``. Logged beside it is ``psnr`` in dB, of the values as they are, not clipped.

    Args:
        eps: where the absolute error begins, in units of the image's range.
    """

    def __init__(self, network: Network, *, eps: float = 1e-3) -> None:
        self.eps = eps

    def __call__(self, outputs: Tensor, targets: ImageTargets, step: Step) -> LossTerms:
        """``outputs`` float [N, 3, H, W], not clipped; ``targets.images`` uint8, padded to at least that size."""
        loss, psnr = self._compare(outputs, targets.images, step)
        return LossTerms({"restore": loss}, extra={"psnr": psnr})

    @float32_island
    def _compare(self, restored: Tensor, clean: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        squares = torch.square(restored - clean / 255.0)
        errors = torch.sqrt(squares + self.eps**2)
        if step.ranks.size == 1:
            loss = errors.mean()
        else:  # ranks may hold shards of different sizes, so the mean is taken over all of them together
            loss = errors.sum() / step.ranks.normaliser(errors.new_full((), errors.numel()))
        psnr = -10.0 * torch.log10(squares.detach().mean().clamp(min=1e-12))
        return loss, psnr
