"""Replay: a recording computes what the network does, with none of its Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from libreyolo_core.data.batch import prepare
from libreyolo_core.engine.capture import SEEN, Captured, Replay
from libreyolo_core.engine.inference import Forward, tensors_of
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.testing.context import Context, Failed, NotRun

OTHER = 5
"""Every how many batches one has another length."""


def replay(context: Context) -> str:
    """Training with the region recorded and replayed equals eager training bit for bit in float32 on the CPU, with the
    region's Python made to raise wherever a recording of the batch's shape exists. The training has what a real one
    has: every fifth batch of another length, gradients accumulated over two batches, a validation in between; and
    once more with a part of the network frozen."""
    if context.sheet.capture.off_reason:
        raise NotRun(f"no region: {context.sheet.capture.off_reason}")
    count = context.replayed_steps
    replayed = _compare(context, count, frozen=False)
    _compare(context, SEEN + 1, frozen=True)
    if not context.sheet.capture.inference_off_reason:
        _replay_inference(context)
    return f"{replayed} of {count} steps replayed, losses and weights equal bit for bit"


def _compare(context: Context, count: int, *, frozen: bool) -> int:
    """Train eagerly and with recordings; returns how many steps were replayed."""
    (eager, state, _), (replayed, other, manager) = (_train(context, count, c, frozen) for c in (False, True))
    assert manager is not None
    others = count // OTHER
    python = min(SEEN - 1, count - others) + min(SEEN - 1, others)
    wanted = (1 + (others >= SEEN), count - python, python)
    counts = manager.counts
    if (counts.captured, counts.replayed, counts.eager) != wanted:
        raise Failed(f"{counts.captured} captured, {counts.replayed} replayed; " + "; ".join(counts.reasons))
    for number, (a, b) in enumerate(zip(eager, replayed, strict=True)):
        if a != b:
            raise Failed(f"the loss of step {number} is {a:.9g} eagerly and {b:.9g} replayed")
    for name, value in state.items():
        if not torch.equal(value, other[name]):
            raise Failed(f"{name} differs after {count} steps{', a part of the network frozen' if frozen else ''}")
    return counts.replayed


def _train(
    context: Context, count: int, capture: bool, frozen: bool
) -> tuple[list[float], dict[str, torch.Tensor], Captured | None]:
    """Losses, weights at the end, and the manager of recordings if there was one."""
    who = context.build()
    network = who.network.train()
    parameters = list(network.parameters())
    if frozen:
        for parameter in parameters[: len(parameters) // 4]:
            parameter.requires_grad_(False)
    step = TrainStep(network, who.sheet.loss, who.sheet.input)
    manager = Captured(network, Replay(), who.sheet.capture) if capture else None
    step.region = manager or step.region
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=1e-4, momentum=0.9)
    python, losses, seen = network.region, [], Counter[int]()
    for number in range(count):
        boxes = [3, 1, 0] if number % OTHER == OTHER - 1 else [3, 1]
        recorded = manager is not None and seen[len(boxes)] >= SEEN
        network.region = _raises if recorded else python  # type: ignore[method-assign, assignment]
        batch = who.batch(boxes, context.imgsz, seed=number)
        total = step(batch).total
        total.backward()
        losses.append(float(total.detach()))
        seen[len(boxes)] += 1
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        if number == count // 2:
            network.region = python  # type: ignore[method-assign]
            with torch.no_grad():
                network.eval()(prepare(batch.images, who.sheet.input))
            network.train()
    return losses, {k: v.clone() for k, v in network.state_dict().items()}, manager


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
