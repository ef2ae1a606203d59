"""Replay: a recording computes what the network does, with none of its Python."""

from __future__ import annotations

from typing import Any

import torch

from libreyolo_core.data.batch import prepare
from libreyolo_core.engine.capture import SEEN, Captured, Replay
from libreyolo_core.engine.inference import Forward, tensors_of
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.testing.context import Context, Failed, NotRun


def replay(context: Context) -> str:
    """Training with the region recorded once and replayed equals eager training bit for bit in float32 on the CPU, with
    the region's Python made to raise as soon as it has been recorded."""
    if context.sheet.capture.off_reason:
        raise NotRun(f"no region: {context.sheet.capture.off_reason}")

    def train(capture: bool) -> tuple[list[float], dict[str, torch.Tensor], Captured | None]:
        who = context.build()
        step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
        manager = Captured(who.network, Replay(), who.sheet.capture) if capture else None
        step.region = manager or step.region
        trained = [p for p in who.network.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9)
        losses = []
        for number in range(context.replayed_steps):
            if manager and manager.counts.captured:
                who.network.region = _raises  # type: ignore[method-assign, assignment]
            total = step(who.batch([3, 1], context.imgsz, seed=number)).total
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(total.detach()))
        return losses, {k: v.clone() for k, v in who.network.state_dict().items()}, manager

    (eager, state, _), (replayed, other, manager) = train(False), train(True)
    assert manager is not None
    counts = manager.counts
    if (counts.captured, counts.replayed, counts.eager) != (1, context.replayed_steps - SEEN + 1, SEEN - 1):
        raise Failed("; ".join(counts.reasons))
    for number, (a, b) in enumerate(zip(eager, replayed, strict=True)):
        if a != b:
            raise Failed(f"the loss of step {number} is {a:.9g} eagerly and {b:.9g} replayed")
    for name, value in state.items():
        if not torch.equal(value, other[name]):
            raise Failed(f"{name} differs after {context.replayed_steps} steps")
    if not context.sheet.capture.inference_off_reason:
        _replay_inference(context)
    return f"{counts.replayed} of {context.replayed_steps} steps replayed, losses and weights equal bit for bit"


def _replay_inference(context: Context) -> None:
    """Recorded on one batch and played for another, an evaluation's forward gives what the network gives."""
    who = context.build(training=False)
    forward = Forward(who.network.eval())
    first, second = (prepare(who.batch([3, 1], context.imgsz, seed=s).images, who.sheet.input) for s in (0, 1))
    with torch.no_grad():
        expected = forward(second)
        recorded = Replay().record_inference(who.network, first)
        who.network.region = _raises  # type: ignore[method-assign, assignment]
        found = recorded(second)
    for a, b in zip(tensors_of(expected), tensors_of(found), strict=True):
        if not torch.equal(a, b):
            raise Failed(f"predictions differ by {float((a - b).abs().max()):.2e} when they are replayed")


def _raises(*_: Any) -> Any:
    raise RuntimeError("the region's Python ran after it had been recorded")
