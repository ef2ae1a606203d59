"""Training: the split point, learning, images without objects, precision, several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from libreyolo_core.data.batch import prepare
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.family import resolve
from libreyolo_core.losses import Step, float32_island
from libreyolo_core.network import Network
from libreyolo_core.registry import registry
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.context import Context, Failed, NotRun
from libreyolo_core.testing.steps import Subject, loss_terms


def split(context: Context) -> str:
    """The region returns a stable tree, and training through a wrapper around it is training with it."""
    who = context.build()
    data = who.batch([3, 1], context.imgsz)
    network = who.network
    if type(network).forward is not Network.forward:
        raise Failed(f"{type(network).__name__} overrides forward; write region and finish")
    first = _region(who, data, network.region)
    again = _region(who, data, network.region)
    if _tree(first) != _tree(again):
        raise Failed("the region's output tree changes between calls")
    plain, wrapped = _gradients(who, data, network.region), _gradients(who, data, _Wrapper(network))
    for name in plain:
        if not torch.equal(plain[name], wrapped[name]):
            raise Failed(f"gradient of {name} differs when the region is called through a wrapper")
    return f"{len(pytree.tree_leaves(first))} region outputs, {len(plain)} equal gradients"


SETTLING = 20
"""Steps in which a loss may rise first: where targets follow predictions, there are next to none at the beginning."""


def learns(context: Context) -> str:
    """From scratch, one batch is overfitted: the loss falls below half of its highest value in the first 20 steps,
    within 120 steps of AdamW at 2e-3."""
    who = context.build(nc=min(context.sheet.classes, 3))
    data = who.batch([2, 1], context.imgsz)
    trainable = [p for p in who.network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-3, weight_decay=0.0)
    highest = last = 0.0
    for number in range(120):
        terms = loss_terms(who, data)
        last = float(terms.total.detach())
        if number < SETTLING:
            highest = max(highest, last)
        elif last < 0.5 * highest:
            return f"loss {highest:.4g} -> {last:.4g} in {number} steps"
        optimizer.zero_grad()
        terms.total.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 10.0)
        optimizer.step()
    raise Failed(f"the loss of one batch went from {highest:.4g} only to {last:.4g} in 120 steps")


def empty(context: Context) -> str:
    """Batches without any annotation and with some: finite loss, a gradient for every trainable parameter."""
    if not context.build().task.counts_objects:
        raise NotRun("every image of this task has its annotation")
    for counts in ([0, 0], [0, 2], [1, 25]):
        who = context.build()
        total = loss_terms(who, who.batch(counts, context.imgsz)).total
        if not torch.isfinite(total):
            raise Failed(f"the loss of images with {counts} objects is {float(total.detach())}")
        total.backward()
        lacking = [n for n, p in who.network.named_parameters() if p.requires_grad and p.grad is None]
        if lacking:
            raise Failed(f"with {counts} objects {len(lacking)} parameters get no gradient: {', '.join(lacking[:3])}")
        broken = [n for n, p in who.network.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        if broken:
            raise Failed(f"with {counts} objects the gradient of {broken[0]} is not finite")
    return "0 and 0, 0 and 2, 1 and 25 objects: finite, every parameter has a gradient"


def precision(context: Context) -> str:
    """Forward, loss and gradients are finite in bfloat16 autocast, and the loss is computed in float32: it is finite
    for outputs that came in float16 too, with boxes whose areas float16 cannot hold."""
    who = context.build()
    data = who.batch([3, 1], context.imgsz)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = loss_terms(who, data)
    for name, value in terms.named().items():
        if not torch.isfinite(value):
            raise Failed(f"{name} is {float(value)} in bfloat16")
    low = [n for n, t in terms.terms.items() if t.dtype != torch.float32]
    if low:
        raise Failed(f"{low[0]} is computed in {terms.terms[low[0]].dtype}; wrap the loss in {float32_island.__name__}")
    terms.total.backward()
    broken = [n for n, p in who.network.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if broken:
        raise Failed(f"the gradient of {broken[0]} is not finite in bfloat16")
    _half_precision_outputs(context)
    return f"{len(terms.terms)} terms finite and in float32, in bfloat16 and for outputs in float16"


WIDE = 320
"""Side in pixels of an image whose area float16 cannot hold: its largest number is 65504."""


def _half_precision_outputs(context: Context) -> None:
    """The loss of outputs in float16 under float16 autocast is finite, also for a box as large as a wide image."""
    who = context.build()
    side = max(context.imgsz, WIDE) if who.task.counts_objects and not context.sheet.input.fixed else context.imgsz
    data = who.batch([3, 1], side)
    targets = data.targets
    if isinstance(targets, BoxTargets):
        targets.boxes[:, 0] = torch.tensor([0.0, 0.0, side, side])
    images = prepare(data.images, who.sheet.input)
    with torch.no_grad():
        outputs = who.network.train()(images, targets, data.draw)
        halves = pytree.tree_map(_half, outputs)
        loss = resolve(who.sheet.loss.code)(who.network, **who.sheet.loss.options)
        with torch.autocast("cpu", dtype=torch.float16):
            terms = loss(halves, targets, Step(draw=data.draw))
    for name, value in terms.named().items():
        if not torch.isfinite(value):
            raise Failed(
                f"{name} is {float(value)} for outputs in float16 of {side} x {side} pixels; "
                f"wrap the loss in {float32_island.__name__}"
            )


def _half(value: Any) -> Any:
    return value.half() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def ranks(context: Context) -> str:
    """Two processes with half the batch each compute the gradients of one process with all of it: with frozen batch
    statistics to 5e-6 of the norm (2e-5 per tensor), with statistics over both ranks to 1e-4."""
    from libreyolo_core.testing.ranks import differences

    if context.sheet.ranks.exempt:
        raise NotRun(f"exempt: {context.sheet.ranks.exempt}")
    several = registry().task(context.task).counts_objects
    shards = ([0, 0, 21, 3], [2, 1, 0, 22]) if several else ([1, 1, 1, 1],)
    # A loss over all pixels sums them into every weight, and convolutions of the CPU add in float32 one by one: at 128
    # pixels that rounding alone can be as large as what is allowed.
    side = context.imgsz if several else context.side(64)
    who: dict[str, Any] = {"key": context.key, "size": context.size, "task": context.task, "imgsz": side}
    worst = 0.0
    for counts in shards:
        whole, tensor, name = differences(**who, counts=list(counts), live=False)
        if not (whole <= 5e-6 and tensor <= 2e-5):
            raise Failed(f"with {counts} objects two ranks differ by {whole:.1e} in all, by {tensor:.1e} in {name}")
        worst = max(worst, whole)
    live, _, name = differences(**who, counts=list(shards[-1]), live=True)
    if not live <= 1e-4:
        raise Failed(f"with batch statistics over both ranks the gradients differ by {live:.1e}, most in {name}")
    return f"two ranks agree with one to {worst:.1e}, with live statistics to {live:.1e}"


class _Wrapper(nn.Module):
    """What capture and compile do to a region: call it through a module of their own."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images, draw):
        return self.network.region(images, draw)


def _region(who: Subject, data: Any, region: Callable) -> Any:
    return region(prepare(data.images, who.sheet.input), data.draw)


def _tree(outputs: Any) -> Any:
    leaves, spec = pytree.tree_flatten(outputs)
    return spec, [(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else type(x) for x in leaves]


def _gradients(who: Subject, data: Any, region: Callable) -> dict[str, torch.Tensor]:
    """Gradients of a step whose region is called through ``region``, from the same state."""
    network = who.network.train()
    buffers = {k: v.clone() for k, v in network.named_buffers()}
    step = TrainStep(network, who.sheet.loss, who.sheet.input)
    step.region = region
    network.zero_grad(set_to_none=True)
    step(data).total.backward()
    gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    for name, buffer in network.named_buffers():
        buffer.copy_(buffers[name])
    return gradients
