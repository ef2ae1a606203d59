"""A region's forward and backward as a flat list of operations, and running it on other inputs.

This is what a CUDA graph does, without a GPU: after recording, no Python of the network runs any more. What a recording
cannot hold (a value read on the host, a branch on data, randomness from global state) shows as a difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from libreyolo_core.network import Network, Tree


class RegionModule(nn.Module):
    """``network.region`` as the forward of a module that has the network's parameters and buffers."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, draw: Tensor | None) -> Tree:
        """As ``Network.region``."""
        return self.network.region(images, draw)


class Recorded:
    """Stands for ``network.region`` for inputs of one shape; gradients reach the network's parameters through autograd
    as they do from the region itself, and its buffers change as they would.

    Args:
        network: in training mode; nothing of it changes by recording.
        images: float [N, 3, H, W], ``draw`` int64 [N] or ``None``: an example input.
    """

    def __init__(self, network: Network, images: Tensor, draw: Tensor | None) -> None:
        self.module = RegionModule(network)
        self.names = [n for n, p in self.module.named_parameters() if p.requires_grad]
        fixed = {n: p for n, p in self.module.named_parameters() if not p.requires_grad}
        self.state = lambda: (dict(self.module.named_parameters()), dict(self.module.named_buffers()))
        example = [images.detach()] + ([] if draw is None else [draw])
        self.with_draw = draw is not None

        def region(trained: list[Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]) -> Tree:
            everything = {**dict(zip(self.names, trained, strict=True)), **fixed, **buffers}
            return functional_call(self.module, everything, (inputs[0], inputs[1] if self.with_draw else None))

        parameters, buffers = self.state()
        trained: list[Tensor] = [parameters[n] for n in self.names]
        copies = {n: b.clone() for n, b in buffers.items()}
        leaves, self.spec = pytree.tree_flatten(region(trained, copies, example))
        self.wanted = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        self.constant = [None if isinstance(x, Tensor) else x for x in leaves]
        seeds = [torch.ones_like(x) for x, w in zip(leaves, self.wanted, strict=True) if w]
        del leaves

        def joint(trained, buffers, inputs, seeds):
            outputs = pytree.tree_leaves(region(trained, buffers, inputs))
            wanted = [x for x, w in zip(outputs, self.wanted, strict=True) if w]
            gradients = torch.autograd.grad(wanted, trained, seeds, allow_unused=True)
            return [x.detach() if isinstance(x, Tensor) else x for x in outputs], list(gradients)

        copies = {n: b.clone() for n, b in buffers.items()}
        recorded = make_fx(joint)(trained, copies, example, seeds)
        self._split(recorded, len(trained) + len(copies) + len(example))

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """The region's outputs."""
        parameters, buffers = self.state()
        inputs = [images] + ([draw] if self.with_draw and draw is not None else [])
        trained: list[Tensor] = [parameters[n] for n in self.names]
        leaves = _Play.apply(self, list(buffers.values()), inputs, *trained)
        whole = [x if c is None else c for x, c in zip(leaves, self.constant, strict=True)]
        return pytree.tree_unflatten(whole, self.spec)

    def _split(self, recorded: fx.GraphModule, first_seed: int) -> None:
        """Cut the list where the first gradient comes in: before it is the forward."""
        nodes = list(recorded.graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        early_places, seed_places = places[:first_seed], places[first_seed:]
        late = set(seed_places)
        body = [n for n in nodes if n.op not in ("placeholder", "output")]
        for node in body:
            if any(a in late for a in node.all_input_nodes):
                late.add(node)
        (output,) = (n for n in nodes if n.op == "output")
        flat = list(output.args[0])  # type: ignore[arg-type]
        outputs, gradients = flat[: len(self.wanted)], flat[len(self.wanted) :]
        needed = {a for n in body if n in late for a in n.all_input_nodes if a not in late}
        needed |= {g for g in gradients if isinstance(g, fx.Node) and g not in late}
        kept = [n for n in nodes if n in needed]
        self.forward = _module(recorded, early_places, [n for n in body if n not in late], [outputs, kept])
        self.backward = _module(recorded, [*kept, *seed_places], [n for n in body if n in late], gradients)


def _module(recorded: fx.GraphModule, places: list[fx.Node], body: list[fx.Node], output: Any) -> fx.GraphModule:
    """A part of a recording as a function of its own."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in places}
    for node in body:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(fx.map_arg(output, copies.__getitem__))
    return fx.GraphModule(recorded, graph)


class _Play(torch.autograd.Function):
    """A recording as one node of the autograd graph."""

    @staticmethod
    def forward(ctx, recorded: Recorded, buffers, inputs, *trained):  # type: ignore[override]
        with _no_autocast(inputs[0].device.type):  # casts are among the recorded operations
            outputs, ctx.kept = recorded.forward(*trained, *buffers, *inputs)
        ctx.recorded = recorded
        # What is returned learns of this node; were it kept here as well, neither would ever be freed.
        outputs = [x.detach() if isinstance(x, Tensor) else x for x in outputs]
        ctx.like = [(x.shape, x.dtype, x.device) if w else None for x, w in zip(outputs, recorded.wanted, strict=True)]
        ctx.set_materialize_grads(False)
        loose = [x for x, w in zip(outputs, recorded.wanted, strict=True) if isinstance(x, Tensor) and not w]
        ctx.mark_non_differentiable(*loose)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):  # type: ignore[override]
        seeds = [
            torch.zeros(like[0], dtype=like[1], device=like[2]) if g is None else g
            for g, like in zip(gradients, ctx.like, strict=True)
            if like is not None
        ]
        kept, ctx.kept = ctx.kept, None
        with _no_autocast(seeds[0].device.type):
            found = ctx.recorded.backward(*kept, *seeds)
        return (None, None, None, *found)


def _no_autocast(device_type: str) -> torch.autocast:
    return torch.autocast(device_type, enabled=False)
