"""How much of a gradient is left when a network computes in fewer digits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

SMALLEST = 1e-12
"""Parameters whose gradient is smaller than this have none."""


def gradient_agreement(
    network: nn.Module, images: Tensor, dtype: torch.dtype = torch.bfloat16, *, seed: int = 0
) -> float:
    """Median over parameters of the cosine between the float32 gradient and the one under autocast to ``dtype``.

    The gradient is that of a smooth function of all outputs in training mode: a seeded weighting of the softmax over
    their last axis. 1 where rounding changes nothing, 0 where it decides everything. ``network`` is left as it is.

    Args:
        images: [N, 3, H, W], on the device of the network.
    """
    exact = _gradients(network, images, None, seed)
    rounded = _gradients(network, images, dtype, seed)
    found = [
        float(torch.cosine_similarity(grad.flatten(), rounded[name].flatten(), dim=0))
        for name, grad in exact.items()
        if grad.norm() > SMALLEST
    ]
    return median(found)


def _gradients(network: nn.Module, images: Tensor, dtype: torch.dtype | None, seed: int) -> dict[str, Tensor]:
    network = copy.deepcopy(network).train()
    device = images.device.type
    torch.manual_seed(seed)
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = [x for x in _tensors(network(images)) if x.requires_grad]
    if not outputs:
        raise ValueError(f"{type(network).__name__} has no output that depends on a parameter")
    draw = torch.Generator().manual_seed(seed)
    total = torch.zeros((), device=images.device)
    for output in outputs:
        rows = output.float().reshape(len(output), -1) if output.dim() < 3 else output.float()
        weight = torch.randn(rows.shape[-1], generator=draw).to(images.device)
        total = total + (rows.softmax(-1) * weight).mean()
    total.backward()
    return {name: p.grad.double() for name, p in network.named_parameters() if p.grad is not None}


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, (list, tuple)):
        for value in outputs:
            yield from _tensors(value)
