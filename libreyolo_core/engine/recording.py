"""A region's forward and backward, or a whole step's, as a flat list of operations, and running it on other inputs.

This is what a CUDA graph does, without a GPU: after recording, no Python of the network runs any more. What a recording
cannot hold (a value read on the host, a branch on data, randomness from global state) shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from libreyolo_core.losses import LossTerms
from libreyolo_core.network import Network, Tree
from libreyolo_core.targets import Targets

if TYPE_CHECKING:
    from libreyolo_core.engine.step import TrainStep


class RegionModule(nn.Module):
    """``network.region`` as the forward of a module that has the network's parameters and buffers."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, draw: Tensor | None) -> Tree:
        """As ``Network.region``."""
        return self.network.region(images, draw)


class StepModule(nn.Module):
    """``TrainStep.terms`` with the network's own region as the forward of a module; no other of the step's parts."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__()
        self.network = step.network
        self.terms = step.terms

    def forward(self, images: Tensor, targets: Targets, draw: Tensor | None) -> LossTerms:
        """As ``TrainStep.terms``."""
        return self.terms(images, targets, draw, region=self.network.region)


class Functional:
    """A module as a function of its trained parameters, its buffers and its inputs."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = [n for n, p in module.named_parameters() if p.requires_grad]
        self.fixed = {n: p for n, p in module.named_parameters() if not p.requires_grad}

    def state(self) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Trained parameters and buffers as they are now."""
        parameters = dict(self.module.named_parameters())
        return [parameters[n] for n in self.names], dict(self.module.named_buffers())

    def __call__(self, trained: Sequence[Tensor], buffers: Mapping[str, Tensor], *inputs: Any) -> Any:
        """The module's forward with these in the place of its own."""
        everything = {**dict(zip(self.names, trained, strict=True)), **self.fixed, **buffers}
        return functional_call(self.module, everything, inputs)


class Recorded:
    """Stands for ``network.region`` for inputs of one shape; gradients reach the network's parameters through autograd
    as they do from the region itself, and its buffers change as they would.

    Args:
        network: in training mode; nothing of it changes by recording.
        images: float [N, 3, H, W], ``draw`` int64 [N] or ``None``: an example input.
    """

    def __init__(self, network: Network, images: Tensor, draw: Tensor | None) -> None:
        self.region = region = Functional(RegionModule(network))
        self.with_draw = draw is not None
        example = [images.detach()] + ([] if draw is None else [draw])

        def run(trained: list[Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]) -> Tree:
            return region(trained, buffers, inputs[0], inputs[1] if self.with_draw else None)

        trained, buffers = region.state()
        leaves, self.spec = pytree.tree_flatten(run(trained, {n: b.clone() for n, b in buffers.items()}, example))
        self.wanted = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        self.constant = [None if isinstance(x, Tensor) else x for x in leaves]
        seeds = [torch.ones_like(x) for x, w in zip(leaves, self.wanted, strict=True) if w]
        del leaves

        def joint(trained, buffers, inputs, seeds):
            outputs = pytree.tree_leaves(run(trained, buffers, inputs))
            wanted = [x for x, w in zip(outputs, self.wanted, strict=True) if w]
            return [x.detach() if isinstance(x, Tensor) else x for x in outputs], gradients_of(wanted, trained, seeds)

        copies = {n: b.clone() for n, b in buffers.items()}
        recorded = make_fx(joint)(trained, copies, example, seeds)
        self._split(recorded, len(trained) + len(copies) + len(example))

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """The region's outputs."""
        trained, buffers = self.region.state()
        inputs = [images] + ([draw] if self.with_draw and draw is not None else [])
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
        with no_autocast(inputs[0].device.type):  # casts are among the recorded operations
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
        with no_autocast(seeds[0].device.type):
            found = ctx.recorded.backward(*kept, *seeds)
        return (None, None, None, *found)


class StepInputs:
    """The tensors that a step's forward takes, as a list and back.

    Args:
        targets: padded; values that are no tensors (see ``Targets.static``) stay those of this example.
        draw: ``None`` stays ``None``.
    """

    def __init__(self, targets: Targets, draw: Tensor | None) -> None:
        self.like, self.with_draw = targets.static(), draw is not None

    def tensors(self, images: Tensor, targets: Targets, draw: Tensor | None) -> list[Tensor]:
        """Images, keys and every tensor of the targets."""
        found: list[Tensor] = [images] + ([draw] if draw is not None else [])
        targets.map(lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
        return found

    def whole(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Targets, Tensor | None]:
        """``(images, targets, draw)`` of such a list."""
        rest = iter(tensors)
        images, draw = next(rest), next(rest) if self.with_draw else None
        return images, self.like.map(lambda _: next(rest)), draw


class TermsLayout:
    """Loss terms as a list of tensors and back: the terms first, then what is logged beside them."""

    def __init__(self, terms: LossTerms) -> None:
        self.names, self.extra, self.parts = list(terms.terms), list(terms.extra), terms.parts

    def tensors(self, terms: LossTerms) -> list[Tensor]:
        """The list."""
        return [*terms.terms.values(), *terms.extra.values()]

    def whole(self, tensors: Sequence[Tensor]) -> LossTerms:
        """The terms of such a list."""
        count = len(self.names)
        return LossTerms(
            dict(zip(self.names, tensors[:count], strict=True)),
            parts=self.parts,
            extra=dict(zip(self.extra, tensors[count:], strict=True)),
        )


class RecordedStep:
    """Stands for ``TrainStep.terms`` for inputs of one shape: network, loss and backward in one list of operations.
    Gradients exist when the terms do; the loss's ``backward`` hands them to the parameters.

    Args:
        step: its network in training mode; nothing of it changes by recording.
        images, targets, draw: an example input, see ``TrainStep.terms``.
        seed: the gradient of the total that backward begins with, float32 [].
    """

    def __init__(self, step: TrainStep, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor) -> None:
        self.function = function = Functional(StepModule(step))
        self.inputs = StepInputs(targets, draw)
        example = self.inputs.tensors(images.detach(), targets, draw)

        def joint(trained, buffers, inputs, seed):
            terms = function(trained, buffers, *self.inputs.whole(inputs))
            self.layout = TermsLayout(terms)
            gradients = gradients_of([terms.total], trained, [seed])
            return [x.detach() for x in self.layout.tensors(terms)], gradients

        trained, buffers = function.state()
        copies = {n: b.clone() for n, b in buffers.items()}
        self.operations = make_fx(joint)(trained, copies, example, seed)

    def __call__(self, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor) -> LossTerms:
        """The step's loss terms; ``seed`` as it will be when ``backward`` comes."""
        trained, buffers = self.function.state()
        inputs = self.inputs.tensors(images, targets, draw)
        return self.layout.whole(PlayedStep.apply(self, (buffers, inputs, seed), *trained))

    def run(self, trained: Sequence[Tensor], given: tuple) -> tuple[list[Tensor], Any]:
        """See ``PlayedStep``."""
        buffers, inputs, seed = given
        with no_autocast(seed.device.type):
            outputs, gradients = self.operations(list(trained), buffers, inputs, seed)
        return outputs, (gradients, seed)

    def gradients(self, state: Any, arrived: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """See ``PlayedStep``."""
        found, seed = state
        if any(g is not None and bool((g != seed).any()) for g in arrived):
            raise RuntimeError("backward began with another gradient than the one that this step was recorded for")
        return found


class PlayedStep(torch.autograd.Function):
    """A step's recording as one node of the autograd graph. The recording offers ``layout``,
    ``run(trained, given) -> (outputs, state)`` and ``gradients(state, gradients of the outputs) -> gradients``."""

    @staticmethod
    def forward(ctx, recorded, given, *trained):  # type: ignore[override]
        outputs, ctx.state = recorded.run(trained, given)
        outputs = [x.detach() for x in outputs]
        ctx.recorded = recorded
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[len(recorded.layout.names) :])
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *arrived):  # type: ignore[override]
        state, ctx.state = ctx.state, None
        return (None, None, *ctx.recorded.gradients(state, arrived))


def gradients_of(outputs: Sequence[Tensor], trained: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients as the trainer's backward computes them, which runs outside autocast; ``None`` where there is none."""
    with no_autocast(seeds[0].device.type):
        return list(torch.autograd.grad(outputs, trained, seeds, allow_unused=True))


def no_autocast(device_type: str) -> torch.autocast:
    """A context without autocast."""
    return torch.autocast(device_type, enabled=False)


@contextmanager
def untouched(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Within it the network may run as often as it likes: its buffers and torch's random state are put back."""
    buffers = [(b, b.detach().clone()) for b in network.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
