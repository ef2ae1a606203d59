"""Capturing a step, so that it launches one graph instead of a thousand operations.

``Captured`` takes the place of ``network.region`` in the training step, ``CapturedStep`` that of network and loss. They
count input shapes, have a backend record a shape once it has come three times, replay the recording for that shape and
run everything else eagerly. They are always safe: whatever cannot be captured is one log line and an eager run, and the
counts of what happened are kept.

A backend records forward and backward for one shape and returns a function of the same arguments. There are two:
``CudaGraphs``, and ``Replay``, which records the operations themselves and runs on any device; tests and
``check_family`` use it (``LIBREYOLO_CAPTURE_BACKEND=replay``): what breaks a CUDA graph breaks it as well.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from libreyolo_core.engine.plan import PhaseChanged
from libreyolo_core.engine.recording import Recorded, RecordedStep, untouched
from libreyolo_core.family import Capture
from libreyolo_core.losses import LossTerms
from libreyolo_core.network import Network, Tree
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import Targets

if TYPE_CHECKING:
    from libreyolo_core.engine.step import TrainStep

log = logging.getLogger("libreyolo")
SEEN = 3
"""A shape is captured when it comes for this many times."""
MOST_GRAPHS = 4
"""Shapes of a region captured at a time: every graph holds a set of activations."""
MOST_STEP_GRAPHS = 12
"""Shapes of a whole step: they also differ by the rows of padded targets, and share the memory of their activations."""
Region = Callable[[Tensor, "Tensor | None"], Tree]
WholeStep = Callable[[Tensor, Targets, "Tensor | None", Tensor], LossTerms]


class Backend(Protocol):
    """How a region or a whole step is recorded. Parameters, buffers, ``.grad`` and random state are as before when a
    method returns."""

    name: str
    runs_python: bool
    """Whether a compiled region cannot be recorded, only the network's own."""

    def record(self, network: Network, images: Tensor, draw: Tensor | None, *, region: Region | None = None) -> Region:
        """Record forward and backward of a region for inputs like these.

        Args:
            region: what runs instead of ``network.region``, e.g. compiled.
        """
        ...

    def record_step(
        self, step: TrainStep, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor
    ) -> WholeStep:
        """Record network, loss and backward; see ``RecordedStep``."""
        ...

    def record_inference(self, network: Network, images: Tensor) -> Callable[[Tensor], Predictions]:
        """Record the forward of a network in evaluation mode and its ``predictions``."""
        ...


class Replay:
    """The operations themselves, recorded by tracing and run one by one: what a graph does, on any device."""

    name = "recorded operations"
    runs_python = True

    def record(self, network: Network, images: Tensor, draw: Tensor | None, *, region: Region | None = None) -> Region:
        """See ``Backend``; a compiled region is not traced, the network's own is."""
        with untouched(network, images.device):
            return Recorded(network, images, draw)

    def record_step(
        self, step: TrainStep, images: Tensor, targets: Targets, draw: Tensor | None, seed: Tensor
    ) -> WholeStep:
        """See ``Backend``."""
        with untouched(step.network, images.device):
            return RecordedStep(step, images, targets, draw, seed)

    def record_inference(self, network: Network, images: Tensor) -> Callable[[Tensor], Predictions]:
        """See ``Backend``."""
        from libreyolo_core.engine.inference import RecordedInference

        return RecordedInference(network, images)


def choose_backend(device: torch.device) -> tuple[Backend | None, str]:
    """The backend for a device, or why there is none; ``LIBREYOLO_CAPTURE_BACKEND=replay`` overrides."""
    asked = os.environ.get("LIBREYOLO_CAPTURE_BACKEND", "")
    if asked == "replay":
        return Replay(), ""
    if asked not in ("", "cuda"):
        return None, f"LIBREYOLO_CAPTURE_BACKEND={asked!r} is neither cuda nor replay"
    if device.type != "cuda":
        return None, f"CUDA graphs need a CUDA device, this run is on {device.type}"
    from libreyolo_core.engine.cuda_graphs import CudaGraphs

    return CudaGraphs(), ""


@dataclass
class Counts:
    """How the steps of a run went.

    Args:
        what: what is recorded, in words.
        captured: steps in which something was recorded (they also count as replayed).
        replayed: steps that ran a recording.
        eager: steps that ran the network's Python.
        reasons: why, one line each.
    """

    what: str = ""
    captured: int = 0
    replayed: int = 0
    eager: int = 0
    reasons: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


class Manager:
    """What ``Captured`` and ``CapturedStep`` have in common: counting shapes, and giving up.

    Args:
        eager: what runs where there is no recording.
        backend: records; ``None`` leaves everything eager.
        capture: the sheet's word on what may be captured.
        what: what is recorded, in words.
        why_not: why there is no backend.
    """

    most = MOST_GRAPHS
    noun = "steps"

    def __init__(self, eager: Callable, backend: Backend | None, capture: Capture, what: str, why_not: str) -> None:
        self.eager, self.backend = eager, backend
        self.counts = Counts(what)
        self._seen: Counter[tuple] = Counter()
        self._graphs: dict[tuple, Callable] = {}
        self._full = False
        if capture.off_reason:
            self.give_up(f"nothing of this family is captured: {capture.off_reason}")
        elif backend is None:
            self.give_up(why_not)
        else:
            self.say(f"capturing {what} with {backend.name} once a shape has come {SEEN} times")

    def phase_changed(self, change: PhaseChanged) -> None:
        """Drop recordings that a phase of the run makes stale."""
        if change.old and change.old.network != change.new.network:
            self.invalidate(f"epoch {change.epoch + 1} changes the network")

    def invalidate(self, reason: str) -> None:
        """Drop every recording, because what was recorded has changed; shapes are counted anew."""
        if self._graphs:
            self.say(f"{reason}: recordings dropped, captured anew when a shape has come {SEEN} times")
        self._graphs.clear()
        self._seen.clear()

    def give_up(self, reason: str) -> None:
        """Run eagerly from here on."""
        self.backend = None
        self._graphs.clear()
        self.say(f"{reason}; {self.noun} run eagerly")

    def close(self) -> dict[str, Any]:
        """The counts, and a line that says them, when a run ends."""
        counts = self.counts
        if self.backend and not counts.captured:
            self.say(
                f"no shape came {SEEN} times in {counts.eager} steps, so nothing was captured; "
                "longer runs do better, and multi_scale=0 makes batches alike"
            )
        if counts.captured:
            log.info(
                "cuda_graph: %d shapes recorded, %d steps replayed, %d eager",
                counts.captured,
                counts.replayed,
                counts.eager,
            )
        return counts.to_dict()

    def say(self, reason: str) -> None:
        """Keep a reason and log it."""
        self.counts.reasons.append(reason)
        log.info("cuda_graph: %s", reason)

    def run(self, shape: tuple, inputs: tuple, further: Callable[[], tuple] = tuple) -> Any:
        """Replay these inputs, or run them eagerly.

        Args:
            shape: all that a recording depends on.
            further: what a recording takes besides the inputs.
        """
        graph = self._graphs.get(shape) or self._recorded(shape, inputs, further)
        if graph is not None:
            try:
                outputs = graph(*inputs, *further())
            except Exception as error:  # whatever a replay dies of, the run goes on without it
                self.give_up(f"a replay failed ({brief(error)})")
            else:
                self.counts.replayed += 1
                return outputs
        self.counts.eager += 1
        return self.eager(*inputs)

    def record(self, *inputs: Any) -> Callable:
        """Have the backend record inputs like these."""
        raise NotImplementedError

    def make_room(self) -> bool:
        """Whether one more shape may be captured when there are ``most`` of them."""
        if not self._full:
            self.say(f"{self.most} shapes are captured, the most at a time; steps of others run eagerly")
        self._full = True
        return False

    def _recorded(self, shape: tuple, inputs: tuple, further: Callable[[], tuple]) -> Callable | None:
        if self.backend is None:
            return None
        self._seen[shape] += 1
        if self._seen[shape] < SEEN:
            return None
        if len(self._graphs) >= self.most and not self.make_room():
            return None
        try:
            with _uncached_autocast(inputs[0].device.type):
                graph = self.record(*inputs, *further())
        except Exception as error:  # what cannot be captured must still train
            if out_of_memory(error):
                self.give_up("capture ran out of memory; use a smaller batch, or cuda_graph=false")
            else:
                self.give_up(f"capture failed ({brief(error)})")
            return None
        self._graphs[shape] = graph
        self.counts.captured += 1
        return graph


class Captured(Manager):
    """Stands for ``network.region`` in a training step.

    Args:
        network: whose region it is.
        backend: records it; ``None`` leaves everything eager.
        capture: the sheet's word on what may be captured.
        region: what runs eagerly, and what a backend records where it can; default ``network.region``.
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
        self.network, self.region = network, region
        super().__init__(region or network.region, backend, capture, capture.label, why_not)

    def __call__(self, images: Tensor, draw: Tensor | None) -> Tree:
        """As ``Network.region``, from a recording where there is one for these shapes."""
        return self.run(signature(images, draw), (images, draw))

    def record(self, *inputs: Any) -> Callable:
        """See ``Manager``."""
        assert self.backend is not None
        return self.backend.record(self.network, *inputs, region=self.region)


class CapturedStep(Manager):
    """Stands for network and loss in a training step, and does the work of their backward as well.

    Args:
        step: whose ``terms`` it is.
        backend: records it; ``None`` leaves everything eager.
        capture: the sheet's word on what may be captured.
        seed: gives the gradient of the total loss that backward will begin with, float32 [].
        why_not: why there is no backend.
    """

    most = MOST_STEP_GRAPHS

    def __init__(
        self,
        step: TrainStep,
        backend: Backend | None,
        capture: Capture,
        *,
        seed: Callable[[], Tensor],
        why_not: str = "",
    ) -> None:
        self.step, self.seed = step, seed
        super().__init__(step.terms, backend, capture, "network, loss and backward", why_not)

    def __call__(self, images: Tensor, targets: Targets, draw: Tensor | None) -> LossTerms:
        """As ``TrainStep.terms``, from a recording where there is one for these shapes."""
        shape = signature(images, targets.static(), draw)
        return self.run(shape, (images, targets, draw), lambda: (self.seed(),))  # type: ignore[no-any-return]

    def record(self, *inputs: Any) -> Callable:
        """See ``Manager``."""
        assert self.backend is not None
        return self.backend.record_step(self.step, *inputs)

    def phase_changed(self, change: PhaseChanged) -> None:
        """Also a change of the loss makes a recording stale."""
        super().phase_changed(change)
        if change.old and change.old.sheet.loss != change.new.sheet.loss:
            self.invalidate(f"epoch {change.epoch + 1} changes the loss")


def signature(images: Tensor, *others: Any) -> tuple:
    """All that a recording depends on besides numbers: layouts of tensors, values of everything else, autocast."""
    kind = images.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (autocast, *(_layout(x) for x in (images, *others)))


def _layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    if isinstance(value, Targets):
        return type(value), *(_layout(getattr(value, f.name)) for f in fields(value))
    return value


def _uncached_autocast(device_type: str) -> torch.autocast:
    """Autocast as it is, without its cache of cast weights: a cast made outside a recording would be missing in it."""
    enabled = torch.is_autocast_enabled(device_type)
    return torch.autocast(
        device_type, dtype=torch.get_autocast_dtype(device_type), enabled=enabled, cache_enabled=False
    )


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory was what an error, or one that it came after, was about: a capture that runs out of it often ends
    with another error about the capture itself."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def brief(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
