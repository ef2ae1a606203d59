"""The base class of every network, and its split point.

A family writes ``region`` (the part that can be captured: images in, tree of tensors out, no targets, no host reads)
and, when something eager must follow, ``finish``. The training forward *is* ``finish(region(images), targets)``; there
is no other, so capture and ``torch.compile`` wrap ``region`` and cannot drift from eager training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core.predictions import Predictions

Tree = Any
"""Nested dicts, lists and tuples of tensors, of the same structure at every call in the same mode."""


class Network(nn.Module):
    """A model family's network.

    The constructor takes ``nc`` (number of classes) and the options of the size, builds from scratch and downloads
    nothing. Attributes a family may set: ``strides`` (pixels per cell of each level).
    """

    strides: tuple[int, ...] = (32,)
    open_sides: bool = True
    """Whether one exported graph can serve inputs of any size; false where the computation itself depends on it."""

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tree:
        """The captured part.

        Args:
            images: float [N, 3, H, W], prepared as the sheet's ``Input`` says.
            draw: int64 [N], one random key per sample (``libreyolo_core.draw``); ``None`` in evaluation.
        """
        raise NotImplementedError

    def finish(self, features: Tree, targets: Any = None, draw: Tensor | None = None) -> Tree:
        """The eager rest of the forward, e.g. a DETR decoder with denoising queries; by default nothing.

        Args:
            features: what ``region`` returned.
            targets: ``libreyolo_core.targets`` of the batch while training, ``None`` in evaluation.
            draw: as in ``region``.
        """
        return features

    def forward(self, images: Tensor, targets: Any = None, draw: Tensor | None = None) -> Tree:
        """``finish(region(images, draw), targets, draw)``. Do not override."""
        return self.finish(self.region(images, draw), targets, draw)

    def predictions(self, outputs: Tree, image_size: tuple[int, int]) -> Predictions:
        """Canonical predictions from evaluation outputs, before any threshold.

        Args:
            outputs: what ``forward`` returned in evaluation mode.
            image_size: (height, width) of the network's input in pixels.
        """
        raise NotImplementedError

    def configure(self, **options: Any) -> None:
        """Switch what a ``Change`` addresses as ``network.<option>``; unknown options are an error."""
        for name in options:
            raise TypeError(f"{type(self).__name__} has no option {name!r}")

    def reset_classes(self, names: list[str] | None = None) -> None:
        """Give the class head its prior-probability initialisation (new heads of a fine-tune). Default: nothing."""

    def deploy(self) -> Network:
        """Become the inference form in place: fused, re-parameterised, no training-only modules. Returns self."""
        return self


@torch.no_grad()
def fuse_conv_bn(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """One biased convolution that computes ``norm(conv(x))`` with the norm's running statistics."""
    fused = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        bias=True,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    fused.weight.copy_(conv.weight * scale.reshape(-1, 1, 1, 1))
    bias = conv.bias if conv.bias is not None else torch.zeros_like(norm.running_mean)
    assert fused.bias is not None
    fused.bias.copy_((bias - norm.running_mean) * scale + norm.bias)
    return fused.eval().requires_grad_(False)
