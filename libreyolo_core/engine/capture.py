"""Capturing a network's region, so that a step launches one graph instead of a thousand operations.

``Captured`` takes the place of ``network.region`` in the training step. It counts input shapes, has a backend record
the region once a shape has come three times, replays the recording for that shape and runs everything else eagerly. It
is always safe: whatever cannot be captured is one log line and an eager run, and the counts of what happened are kept.

A backend records ``region`` (forward and its backward) for one shape and returns a function of the same arguments.
There are two: ``CudaGraphs``, and ``Replay``, which records the operations themselves and runs on any device; tests
and ``check_family`` use it (``LIBREYOLO_CAPTURE_BACKEND=replay``): what breaks a CUDA graph breaks it as well.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from libreyolo_core.engine.recording import Recorded, RegionModule
from libreyolo_core.family import Capture
from libreyolo_core.network import Network, Tree

log = logging.getLogger("libreyolo")
SEEN = 3
"""A shape is captured when it comes for this many times."""
MOST_GRAPHS = 4
"""Shapes captured at a time: every graph holds a set of activations."""
Region = Callable[[Tensor, "Tensor | None"], Tree]


class Backend(Protocol):
    """How a region is recorded."""

    name: str

    def record(self, network: Network, images: Tensor, draw: Tensor | None) -> Region:
        """Record forward and backward for inputs like these. Parameters, buffers, ``.grad`` and random state are as
        before when it returns."""
        ...


class CudaGraphs:
    """One CUDA graph each for the region's forward and its backward."""

    name = "CUDA graphs"

    def record(self, network: Network, images: Tensor, draw: Tensor | None) -> Region:
        """See ``Backend``; warm-up and capture run the region, so buffers are put back."""
        module = RegionModule(network).train(network.training)
        buffers = {n: b.detach().clone() for n, b in network.named_buffers()}
        states = torch.cuda.get_rng_state(images.device)
        example = (images.detach().clone(), None if draw is None else draw.clone())
        try:
            graphed = torch.cuda.make_graphed_callables(module, example, allow_unused_input=True)  # type: ignore[arg-type]
        finally:
            with torch.no_grad():
                for name, buffer in network.named_buffers():
                    buffer.copy_(buffers[name])
            torch.cuda.set_rng_state(states, images.device)
        return graphed  # type: ignore[return-value]


class Replay:
    """The operations themselves, recorded by tracing and run one by one: what a graph does, on any device."""

    name = "recorded operations"

    def record(self, network: Network, images: Tensor, draw: Tensor | None) -> Region:
        """See ``Backend``."""
        with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
            return Recorded(network, images, draw)


def choose_backend(device: torch.device) -> tuple[Backend | None, str]:
    """The backend for a device, or why there is none; ``LIBREYOLO_CAPTURE_BACKEND=replay`` overrides."""
    asked = os.environ.get("LIBREYOLO_CAPTURE_BACKEND", "")
    if asked == "replay":
        return Replay(), ""
    if asked not in ("", "cuda"):
        return None, f"LIBREYOLO_CAPTURE_BACKEND={asked!r} is neither cuda nor replay"
    if device.type != "cuda":
        return None, f"CUDA graphs need a CUDA device, this run is on {device.type}"
    return CudaGraphs(), ""


@dataclass
class Counts:
    """How the steps of a run went.

    Args:
        captured: steps in which a region was recorded (they also count as replayed).
        replayed: steps that ran a recording.
        eager: steps that ran the network's Python.
        reasons: why, one line each.
    """

    captured: int = 0
    replayed: int = 0
    eager: int = 0
    reasons: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"captured": self.captured, "replayed": self.replayed, "eager": self.eager, "reasons": self.reasons}


class Captured:
    """Stands for ``network.region`` in a training step.

    Args:
        network: whose region it is.
        backend: records it; ``None`` leaves everything eager.
        capture: the sheet's word on what may be captured.
        region: what runs eagerly, and what a backend that runs Python records; default ``network.region``.
        why_not: why there is no backend.
    """

    def __init__(
        self,
        network: Network,
        backend: Backend | None,
        capture: Capture,
        *,
        region: Region | None = None,
        why_not: str = "",
    ) -> None:
        self.network, self.backend, self.eager = network, backend, region or network.region
        self.counts = Counts()
        self._seen: Counter[tuple] = Counter()
        self._graphs: dict[tuple, Region] = {}
        if capture.off_reason:
            self.give_up(f"nothing of this family is captured: {capture.off_reason}")
        elif backend is None:
            self.give_up(why_not)
        else:
            self._say(f"capturing {capture.label} with {backend.name} once a shape has come {SEEN} times")

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """As ``Network.region``, from a recording where there is one for these shapes."""
        shape = _shape_of(images, draw)
        graph = self._graphs.get(shape) or self._recorded(shape, images, draw)
        if graph is None:
            self.counts.eager += 1
            return self.eager(images, draw)
        try:
            outputs = graph(images, draw)
        except Exception as error:  # whatever a replay dies of, the run goes on without it
            self.give_up(f"a replay failed ({_brief(error)})")
            self.counts.eager += 1
            return self.eager(images, draw)
        self.counts.replayed += 1
        return outputs

    def invalidate(self, reason: str) -> None:
        """Drop every recording, because the region changed; shapes are counted anew."""
        if self._graphs:
            self._say(f"{reason}: recordings dropped, captured anew when a shape has come {SEEN} times")
        self._graphs.clear()
        self._seen.clear()

    def give_up(self, reason: str) -> None:
        """Run eagerly from here on."""
        self.backend = None
        self._graphs.clear()
        self._say(f"{reason}; steps run eagerly")

    def _recorded(self, shape: tuple, images: Tensor, draw: Tensor | None) -> Region | None:
        if self.backend is None:
            return None
        self._seen[shape] += 1
        if self._seen[shape] < SEEN or len(self._graphs) >= MOST_GRAPHS:
            return None
        try:
            with _uncached_autocast(images.device.type):
                graph = self.backend.record(self.network, images, draw)
        except torch.OutOfMemoryError:
            self.give_up("capture ran out of memory; use a smaller batch, or cuda_graph=false")
            return None
        except Exception as error:  # a family that cannot be captured must still train
            self.give_up(f"capture failed ({_brief(error)})")
            return None
        self._graphs[shape] = graph
        self.counts.captured += 1
        return graph

    def _say(self, reason: str) -> None:
        self.counts.reasons.append(reason)
        log.info("cuda_graph: %s", reason)


def _shape_of(images: Tensor, draw: Tensor | None) -> tuple:
    autocast = torch.is_autocast_enabled(images.device.type)
    return (
        tuple(images.shape),
        images.stride(),
        images.dtype,
        images.device,
        draw is None,
        torch.get_autocast_dtype(images.device.type) if autocast else None,
    )


def _uncached_autocast(device_type: str) -> torch.autocast:
    """Autocast as it is, without its cache of cast weights: a cast made outside a recording would be missing in it."""
    enabled = torch.is_autocast_enabled(device_type)
    return torch.autocast(
        device_type, dtype=torch.get_autocast_dtype(device_type), enabled=enabled, cache_enabled=False
    )


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
