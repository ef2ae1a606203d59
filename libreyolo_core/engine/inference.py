"""Predictions through recordings: one for each shape of the input, the least recently used dropped for a new one.

The same manager and backends as in training (``libreyolo_core.engine.capture``), with a forward pass only: the network
in evaluation mode and its ``predictions``. Preparing the images before and thresholds after stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from libreyolo_core.engine.capture import Backend, Manager, choose_backend, signature
from libreyolo_core.family import Capture
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions

log = logging.getLogger("libreyolo")
MOST_SHAPES = 8
"""Recordings kept at a time; each holds the activations of a forward pass."""


class CapturedInference(Manager):
    """Prepared images to predictions, from a recording where there is one.

    Args:
        network: in evaluation mode.
        backend: records it; ``None`` leaves everything eager.
        capture: the sheet's word on what may be captured.
        why_not: why there is no backend.
        quiet: keep the reasons known from the beginning to oneself, because nobody insists.
    """

    most = MOST_SHAPES
    noun = "predictions"

    def __init__(
        self, network: Network, backend: Backend | None, capture: Capture, *, why_not: str = "", quiet: bool = False
    ) -> None:
        self.network, self.quiet = network, quiet
        self.weights = [*network.parameters(), *network.buffers()]
        self.recorded_at: list[int] = []
        capture = replace(capture, off_reason=capture.inference_off_reason or capture.off_reason)
        super().__init__(Forward(network), backend, capture, "network and predictions", why_not)

    @classmethod
    def on(cls, device: torch.device, network: Network, capture: Capture, *, quiet: bool) -> CapturedInference:
        """With the backend of a device."""
        backend, why_not = choose_backend(device)
        return cls(network, backend, capture, why_not=why_not, quiet=quiet)

    def insist(self) -> None:
        """Say now what has been kept quiet."""
        if self.quiet:
            self.quiet = False
            for reason in self.counts.reasons:
                log.info("cuda_graph: %s", reason)

    def __call__(self, images: Tensor) -> Predictions:
        """``images`` float [N, 3, H, W], prepared; the predictions are the caller's to keep."""
        if self._graphs and self.recorded_at != [t.data_ptr() for t in self.weights]:
            self.invalidate("the weights lie elsewhere in memory")
        return self.run(signature(images), (images,))  # type: ignore[no-any-return]

    def run(self, shape: tuple, inputs: tuple, further: Callable[[], tuple] = tuple) -> Any:
        """As ``Manager.run``; what was used last is dropped last."""
        outputs = super().run(shape, inputs, further)
        if shape in self._graphs:
            self._graphs[shape] = self._graphs.pop(shape)
        return outputs

    def record(self, *inputs: Any) -> Callable:
        """See ``Manager``."""
        assert self.backend is not None
        self.recorded_at = [t.data_ptr() for t in self.weights]
        return self.backend.record_inference(self.network, *inputs)

    def make_room(self) -> bool:
        """Drop the recording that was not used for the longest; its shape is counted anew."""
        if not self._full:
            self.say(f"more than {self.most} shapes come again and again; the least recently used recordings go")
        self._full = True
        oldest = next(iter(self._graphs))
        del self._graphs[oldest], self._seen[oldest]
        return True

    def say(self, reason: str) -> None:
        """Keep a reason and log it, unless quiet."""
        if self.quiet:
            self.counts.reasons.append(reason)
        else:
            super().say(reason)

    def summary(self) -> str:
        """The counts in words."""
        counts = self.counts
        return f"{counts.captured} shapes recorded, {counts.replayed} predictions replayed, {counts.eager} eager"


class Forward(nn.Module):
    """Network and ``predictions`` as one module.

    Args:
        network: in evaluation mode when called.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Predictions:
        """As evaluation does, for float [N, 3, H, W]."""
        return self.network.predictions(self.network(images), (images.shape[-2], images.shape[-1]))


class RecordedInference:
    """The operations of one forward pass, run one by one on other images.

    Args:
        network: in evaluation mode.
        images: an example, float [N, 3, H, W].
    """

    def __init__(self, network: Network, images: Tensor) -> None:
        self.module = Forward(network)
        names = [n for n, _ in (*self.module.named_parameters(), *self.module.named_buffers())]
        self.layout = self.module(images)

        def run(state: list[Tensor], images: Tensor) -> list[Tensor]:
            return tensors_of(functional_call(self.module, dict(zip(names, state, strict=True)), (images,)))

        self.recorded = make_fx(run)(self._state(), images)

    def _state(self) -> list[Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def __call__(self, images: Tensor) -> Predictions:
        """The predictions."""
        return with_tensors(self.layout, self.recorded(self._state(), images))


def tensors_of(predictions: Predictions) -> list[Tensor]:
    """The tensors among the fields, in their order."""
    return [v for f in fields(predictions) if isinstance(v := getattr(predictions, f.name), Tensor)]


def with_tensors(layout: Predictions, tensors: list[Tensor]) -> Predictions:
    """Like ``layout``, with other tensors in place of its own."""
    fresh = iter(tensors)
    return layout.map(lambda _: next(fresh))
