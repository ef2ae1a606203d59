"""``torch.compile`` on a network's region, for one input shape at a time.

``Compiled`` takes the place of ``network.region`` in the training step, as capture does; the network itself, its
parameters, its state dict, validation and checkpoints never meet it. The first shape is compiled at once. Compiling
takes as long as many steps, so another shape (a last partial batch, multi-scale) runs eagerly until it has come often.

Each shape is tried, forward and backward, before it is used: whatever a compiler dies of is one log line and an eager
run, and never an error in the middle of a step.
"""

from __future__ import annotations

import logging
import time
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from libreyolo_core.engine.capture import brief, out_of_memory, signature
from libreyolo_core.engine.plan import PhaseChanged
from libreyolo_core.engine.recording import gradients_of, untouched
from libreyolo_core.network import Network, Tree

log = logging.getLogger("libreyolo")
OFTEN = 20
"""A further shape is compiled when it comes for this many times."""
MOST_SHAPES = 4
"""Shapes compiled at a time."""
COMPILER = "inductor"
"""What compiles: the name of a backend of torch's."""


@dataclass
class Compilations:
    """What compiling did in a run.

    Args:
        mode: of ``torch.compile``.
        shapes: input shapes compiled, also those of an earlier phase of the run.
        graphs: pieces that they were cut into, one each where nothing in the network's Python stood in the way.
        recompiled: of these, how many came up in the middle of training.
        seconds: spent on it.
        compiled: steps that ran compiled code.
        eager: steps that ran the network's Python.
        reasons: why, one line each.
    """

    mode: str
    shapes: int = 0
    graphs: int = 0
    recompiled: int = 0
    seconds: float = 0.0
    compiled: int = 0
    eager: int = 0
    reasons: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "seconds": round(self.seconds, 1)}


class Compiled:
    """Stands for ``network.region`` in a training step.

    Args:
        network: whose region it is.
        mode: ``default``, ``reduce-overhead`` or ``max-autotune``.
        device: where it trains.
        why_not: a reason to leave everything eager.
    """

    def __init__(self, network: Network, mode: str, device: torch.device, *, why_not: str = "") -> None:
        self.network, self.mode, self.device = network, mode, device
        self.counts = Compilations(mode)
        self.on = True
        self._seen: Counter[tuple] = Counter()
        self._functions: dict[tuple, Callable] = {}
        self._full = False
        if why_not:
            self.give_up(why_not)
        elif mode == "reduce-overhead" and device.type != "cuda":
            self.say(f"mode=reduce-overhead means CUDA graphs, which a {device.type} has not: it compiles as 'default'")
            self.mode = self.counts.mode = "default"

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """As ``Network.region``, compiled where these shapes are."""
        shape = signature(images, draw)
        function = self._functions.get(shape) or self._compiled(shape, images, draw)
        if function is not None:
            before = graphs_compiled()
            try:
                outputs = function(images, draw)
            except Exception as error:  # whatever it dies of, the run goes on without it
                self.give_up(f"compiled code failed ({brief(error)})")
            else:
                self.counts.compiled += 1
                self._note_recompiled(graphs_compiled() - before)
                return outputs
        self.counts.eager += 1
        return self.network.region(images, draw)

    def phase_changed(self, change: PhaseChanged) -> None:
        """Compile anew when a phase of the run changes the network."""
        if change.old and change.old.network != change.new.network:
            self.invalidate(f"epoch {change.epoch + 1} changes the network")

    def invalidate(self, reason: str) -> None:
        """Drop what was compiled, because the region has changed."""
        if self._functions:
            self.say(f"{reason}: compiled anew")
        self._functions.clear()
        self._seen.clear()

    def give_up(self, reason: str) -> None:
        """Run eagerly from here on."""
        self.on = False
        self._functions.clear()
        self.say(f"{reason}; the network runs eagerly")

    def close(self) -> dict[str, Any]:
        """The counts, and a line that says them, when a run ends."""
        counts = self.counts
        if counts.shapes:
            log.info(
                "compile: %d shapes in %d graphs, %d recompilations, %.1f s; %d steps compiled, %d eager",
                counts.shapes,
                counts.graphs,
                counts.recompiled,
                counts.seconds,
                counts.compiled,
                counts.eager,
            )
        return counts.to_dict()

    def say(self, reason: str) -> None:
        """Keep a reason and log it."""
        self.counts.reasons.append(reason)
        log.info("compile: %s", reason)

    def _compiled(self, shape: tuple, images: Tensor, draw: Tensor | None) -> Callable | None:
        if not self.on:
            return None
        self._seen[shape] += 1
        if self._functions and self._seen[shape] < OFTEN:
            return None
        if len(self._functions) >= MOST_SHAPES:
            if not self._full:
                self.say(f"{MOST_SHAPES} shapes are compiled, the most at a time; steps of others run eagerly")
            self._full = True
            return None
        began, before = time.monotonic(), graphs_compiled()
        try:
            function = compile_region(self.network, self.mode)
            with untouched(self.network, self.device):
                self._try(function, images, draw)
        except Exception as error:  # a compiler's failures are of any type
            if out_of_memory(error):
                self.give_up("compiling ran out of memory; use a smaller batch, or compile=false")
            else:
                self.give_up(f"compiling failed ({brief(error)})")
            return None
        seconds, graphs = time.monotonic() - began, graphs_compiled() - before
        self.counts.shapes += 1
        self.counts.graphs += graphs
        self.counts.seconds += seconds
        size = "x".join(map(str, images.shape))
        self.say(
            f"compiled for images {size} in {seconds:.1f} s, mode {self.mode!r}, {graphs} graph{'s'[: graphs != 1]}"
        )
        self._functions[shape] = function
        return function

    def _try(self, function: Callable, images: Tensor, draw: Tensor | None) -> None:
        """Forward and backward, so that both are compiled; gradients of parameters stay as they are."""
        wanted = [x for x in pytree.tree_leaves(function(images, draw)) if isinstance(x, Tensor) and x.requires_grad]
        trained = [p for p in self.network.parameters() if p.requires_grad]
        gradients_of(wanted, trained, [torch.ones_like(x) for x in wanted])

    def _note_recompiled(self, graphs: int) -> None:
        if graphs:
            self.counts.graphs += graphs
            self.counts.recompiled += graphs
            self.say(f"torch compiled {graphs} more graphs for a shape that it had compiled before")


def compile_region(network: Network, mode: str) -> Callable[[Tensor, Tensor | None], Tree]:
    """``network.region``, compiled for the shape it is called with first."""

    def region(images: Tensor, draw: Tensor | None) -> Tree:
        return network.region(images, draw)

    # torch keeps what it compiled with a function's code, a limited number for all networks of a process: with code of
    # its own a function neither fills nor inherits that of others.
    own = types.FunctionType(
        region.__code__.replace(), region.__globals__, region.__name__, region.__defaults__, region.__closure__
    )
    chosen = {"mode": mode} if COMPILER == "inductor" else {}
    return torch.compile(own, backend=COMPILER, dynamic=False, **chosen)  # type: ignore[call-overload, no-any-return]


def graphs_compiled() -> int:
    """Graphs that torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
