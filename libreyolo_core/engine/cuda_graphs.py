"""The backend of capture for CUDA devices: graphs that are captured once and launched as a whole.

All graphs of a run share one pool of memory. That is safe in any order of replay, because what a graph leaves behind is
consumed before the next one is launched: outputs by the loss and its log, gradients by the copies that autograd gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from libreyolo_core.engine.inference import Forward
from libreyolo_core.engine.recording import (
    PlayedStep,
    StepInputs,
    TermsLayout,
    gradients_of,
    untouched,
)
from libreyolo_core.losses import LossTerms
from libreyolo_core.network import Network, Tree
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import Targets

if TYPE_CHECKING:
    from libreyolo_core.engine.step import TrainStep

WARMUPS = 3
"""Runs before a capture, in which libraries choose algorithms and allocate their workspaces."""


class CudaGraphs:
    """A graph each for a region's forward and backward, or one for a whole step."""

    name = "CUDA graphs"
    runs_python = False

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def record(
        self, network: Network, images: Tensor, draw: Tensor | None, *, region: Callable[..., Tree] | None = None
    ) -> Callable[[Tensor, Tensor | None], Tree]:
        """See ``libreyolo_core.engine.capture.Backend``."""
        with self._capturing(network, images.device) as stream:
            return GraphedRegion(self, stream, network, region or network.region, images, draw)

    def record_step(
        self, step: TrainStep, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor
    ) -> Callable[[Tensor, Targets, Tensor | None, Tensor], LossTerms]:
        """See ``libreyolo_core.engine.capture.Backend``."""
        with self._capturing(step.network, images.device) as stream:
            return GraphedStep(self, stream, step, images, targets, draw, seed)

    def record_inference(self, network: Network, images: Tensor) -> Callable[[Tensor], Predictions]:
        """See ``libreyolo_core.engine.capture.Backend``."""
        with self._capturing(network, images.device) as stream:
            return GraphedInference(self, stream, network, images)

    @contextmanager
    def graph(self, stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
        """Everything within it becomes a graph. Only calls of this thread are held against the capture: the loader's
        pinning thread goes on working."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
            yield graph

    @contextmanager
    def _capturing(self, network: Network, device: torch.device) -> Iterator[torch.cuda.Stream]:
        """A side stream for warm-up and capture; the present one is current again afterwards, also after a capture that
        died half-way."""
        with torch.cuda.device(device), untouched(network, device):
            present = torch.cuda.current_stream()
            side = torch.cuda.Stream()
            try:
                yield side
            finally:
                torch.cuda.set_stream(present)
                torch.cuda.synchronize()


class GraphedRegion:
    """Stands for a region for inputs of one shape.

    Args:
        graphs: the backend.
        stream: for warm-up and capture.
        run: the region.
        images, draw: an example input.
    """

    def __init__(
        self,
        graphs: CudaGraphs,
        stream: torch.cuda.Stream,
        network: Network,
        run: Callable[..., Tree],
        images: Tensor,
        draw: Tensor | None,
    ) -> None:
        self.trained = [p for p in network.parameters() if p.requires_grad]
        self.inputs = [images.detach().clone()] + ([] if draw is None else [draw.clone()])
        given = (self.inputs[0], None if draw is None else self.inputs[1])

        def warm() -> None:
            wanted = [x for x in pytree.tree_leaves(run(*given)) if isinstance(x, Tensor) and x.requires_grad]
            gradients_of(wanted, self.trained, [torch.ones_like(x) for x in wanted])

        warm_up(warm, stream)
        with graphs.graph(stream) as self.ahead:
            outputs = run(*given)
        leaves, self.spec = pytree.tree_flatten(outputs)
        del outputs
        self.wanted = [isinstance(x, Tensor) and x.requires_grad for x in leaves]
        wanted = [x for x, w in zip(leaves, self.wanted, strict=True) if w]
        self.seeds = [torch.empty_like(x) for x in wanted]
        with graphs.graph(stream) as self.back:
            self.gradients = gradients_of(wanted, self.trained, self.seeds)
        self.leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """The region's outputs."""
        inputs = [images] + ([] if draw is None else [draw])
        leaves = _Launch.apply(self, inputs, *self.trained)
        return pytree.tree_unflatten(list(leaves), self.spec)


class _Launch(torch.autograd.Function):
    """A region's two graphs as one node of the autograd graph."""

    @staticmethod
    def forward(ctx, region: GraphedRegion, inputs, *trained):  # type: ignore[override]
        for place, value in zip(region.inputs, inputs, strict=True):
            place.copy_(value)
        region.ahead.replay()
        outputs = [x.detach() if isinstance(x, Tensor) else x for x in region.leaves]
        ctx.region = region
        ctx.set_materialize_grads(False)
        loose = [x for x, w in zip(outputs, region.wanted, strict=True) if isinstance(x, Tensor) and not w]
        ctx.mark_non_differentiable(*loose)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *arrived):  # type: ignore[override]
        region = ctx.region
        found = [g for g, w in zip(arrived, region.wanted, strict=True) if w]
        for place, value in zip(region.seeds, found, strict=True):
            place.zero_() if value is None else place.copy_(value)
        region.back.replay()
        return (None, None, *copies(region.gradients))


class GraphedStep:
    """Stands for a step's terms and its backward for inputs of one shape; see ``RecordedStep``."""

    def __init__(
        self,
        graphs: CudaGraphs,
        stream: torch.cuda.Stream,
        step: TrainStep,
        images: Tensor,
        targets: Targets,
        draw: Tensor | None,
        seed: Tensor,
    ) -> None:
        self.trained = [p for p in step.network.parameters() if p.requires_grad]
        self.loss = step.loss  # constants that a loss made are read by the graph, so they must live as long
        self.layout_of = StepInputs(targets, draw)
        self.inputs = [x.detach().clone() for x in self.layout_of.tensors(images, targets, draw)]
        self.seed = seed.clone()
        given = self.layout_of.whole(self.inputs)

        def whole() -> tuple[LossTerms, list[Tensor | None]]:
            terms = step.terms(*given)
            return terms, gradients_of([terms.total], self.trained, [self.seed])

        warm_up(whole, stream)
        with graphs.graph(stream) as self.graph:
            terms, self.gradients_ = whole()
        self.layout = TermsLayout(terms)
        self.outputs = [x.detach() for x in self.layout.tensors(terms)]

    def __call__(self, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor) -> LossTerms:
        """The step's loss terms; ``seed`` as it will be when ``backward`` comes."""
        given = (self.layout_of.tensors(images, targets, draw), seed)
        return self.layout.whole(PlayedStep.apply(self, given, *self.trained))

    def run(self, trained: Sequence[Tensor], given: tuple) -> tuple[list[Tensor], Any]:
        """See ``PlayedStep``."""
        inputs, seed = given
        for place, value in zip((*self.inputs, self.seed), (*inputs, seed), strict=True):
            place.copy_(value)
        self.graph.replay()
        return self.outputs, None

    def gradients(self, state: Any, arrived: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """See ``PlayedStep``."""
        return copies(self.gradients_)


class GraphedInference:
    """Stands for the forward of a network in evaluation mode and its ``predictions`` for images of one shape."""

    def __init__(self, graphs: CudaGraphs, stream: torch.cuda.Stream, network: Network, images: Tensor) -> None:
        self.run = Forward(network)
        self.images = images.detach().clone()
        warm_up(lambda: self.run(self.images), stream)
        with graphs.graph(stream) as self.graph:
            self.predictions = self.run(self.images)

    def __call__(self, images: Tensor) -> Predictions:
        """The predictions, copied out of the graph's memory."""
        self.images.copy_(images)
        self.graph.replay()
        return self.predictions.map(torch.clone)


def warm_up(run: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Run something ``WARMUPS`` times on the stream that will capture it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def copies(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients that autograd may keep, in a few launches: the graph's own are overwritten by its next replay, and
    autograd would copy them one by one."""
    present = [g for g in gradients if g is not None]
    fresh = iter(torch._foreach_mul(present, 1.0))  # exact
    return [None if g is None else next(fresh) for g in gradients]
