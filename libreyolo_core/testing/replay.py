"""Recording a region's forward and backward as a flat list of operations, and replaying it on other inputs.

This is what a CUDA graph does, without a GPU: after recording, no Python of the network runs any more. What a recording
cannot hold (a value read on the host, a branch on data, randomness from global state) shows as a difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from libreyolo_core.network import Network

Step = tuple[Any, dict[str, Tensor], dict[str, Tensor]]
"""Outputs, gradients by parameter name, buffers after the step."""


class Recording:
    """The joint forward and backward of ``network.region`` for one input shape.

    Args:
        network: in training mode; its parameters and buffers are read but not changed by recording.
        images: float [N, 3, H, W], ``draw`` int64 [N]: an example input.
    """

    def __init__(self, network: Network, images: Tensor, draw: Tensor) -> None:
        self.module = _Region(network)
        self.parameters = {k: v for k, v in self.module.named_parameters() if v.requires_grad}
        outputs = functional_call(self.module, self._copies(), (images, draw))
        leaves, self.spec = pytree.tree_flatten(outputs)
        self.wanted = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        seeds = [torch.randn_like(x) for x, w in zip(leaves, self.wanted, strict=True) if w]
        # make_fx counts the arguments of a function, a bound method would count self
        self.graph = make_fx(lambda *args: self._joint(*args))(*self._state(), images, draw, seeds)

    def replay(self, images: Tensor, draw: Tensor, seeds: list[Tensor]) -> Step:
        """Run the recording on new inputs with the network's present state.

        Args:
            seeds: gradients of the differentiable outputs, in order.

        Returns:
            Outputs, gradients by parameter name, and buffers after the step (the network's own are left alone).
        """
        parameters, buffers = self._state()
        leaves, gradients = self.graph(parameters, buffers, images, draw, seeds)
        named = {k: g for k, g in zip(self.parameters, gradients, strict=True) if g is not None}
        return pytree.tree_unflatten(list(leaves), self.spec), named, buffers

    def eager(self, images: Tensor, draw: Tensor, seeds: list[Tensor]) -> Step:
        """The same by running the network's Python."""
        parameters, buffers = self._state()
        leaves, gradients = self._joint(parameters, buffers, images, draw, seeds)
        named = {k: g for k, g in zip(self.parameters, gradients, strict=True) if g is not None}
        return pytree.tree_unflatten(list(leaves), self.spec), named, buffers

    def seeds(self, images: Tensor, draw: Tensor) -> list[Tensor]:
        """Random output gradients of the right shapes and strides."""
        leaves = pytree.tree_leaves(functional_call(self.module, self._copies(), (images, draw)))
        return [torch.randn_like(x) for x, w in zip(leaves, self.wanted, strict=True) if w]

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return dict(self.parameters), {k: v.clone() for k, v in self.module.named_buffers()}

    def _copies(self) -> dict[str, Tensor]:
        parameters, buffers = self._state()
        return {**parameters, **buffers}

    def _joint(self, parameters, buffers, images, draw, seeds):
        outputs = functional_call(self.module, {**parameters, **buffers}, (images, draw))
        leaves = pytree.tree_leaves(outputs)
        wanted = [x for x, w in zip(leaves, self.wanted, strict=True) if w]
        gradients = torch.autograd.grad(wanted, list(parameters.values()), seeds, allow_unused=True)
        return [x.detach() if isinstance(x, Tensor) else x for x in leaves], list(gradients)


class _Region(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images, draw):
        return self.network.region(images, draw)
