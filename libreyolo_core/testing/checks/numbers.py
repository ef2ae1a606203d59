"""Agreement with a numeric reference file."""

from __future__ import annotations

import torch

from libreyolo_core.family import resolve
from libreyolo_core.testing.context import Context, Failed, NotRun
from libreyolo_core.testing.reference import Reference
from libreyolo_core.testing.steps import Subject


def parity(context: Context) -> str:
    """A checkpoint with the reference's keys loads with none missing or left over, and evaluation outputs agree."""
    from libreyolo_core.api import LibreYOLO
    from libreyolo_core.checkpoint.load import Layout, native

    file = context.need_reference()
    who = _reference_subject(context, file)
    state = file.state(who.network.state_dict())
    path = context.folder / f"{_released_name(context)}.pt"
    torch.save(state, path)
    model = LibreYOLO(path, device="cpu")
    if (model.key, model.size) != (context.key, context.size):
        raise Failed(f"recognised as {model.key} {model.size}")
    layout = set(Layout.of(model.network).shapes)
    given = set(native(state, context.family.checkpoint))
    if layout - given or given - layout:
        raise Failed(f"missing {sorted(layout - given)[:3]}, left over {sorted(given - layout)[:3]}")
    images = file.images(file.content["input"], model.sheet.input)
    with torch.no_grad():
        outputs = model.network.eval()(images)
        found = model.network.predictions(outputs, (images.shape[-2], images.shape[-1]))
    problems = file.compare_predictions(found)
    if problems:
        raise Failed("; ".join(problems[:3]))
    return f"{len(state)} keys filled, {len(file.content['canonical'])} arrays within 1e-4 of their absmax"


def loss_parity(context: Context) -> str:
    """Loss terms in training mode, random parts off, equal the reference's."""
    file = context.need_reference()
    if not file.content.get("loss"):
        raise NotRun("the reference file has no loss")
    from libreyolo_core.checkpoint import load_into
    from libreyolo_core.losses import Step

    who = _reference_subject(context, file)
    load_into(who.network, file.state(who.network.state_dict()), context.family.checkpoint)
    images = file.images(file.content["loss"]["input"], who.sheet.input)
    targets = file.targets((images.shape[-2], images.shape[-1]))
    loss = resolve(who.sheet.loss.code)(who.network, **who.sheet.loss.options)
    terms = loss(who.network.train()(images, targets, None), targets, Step())
    total_loss = terms.total
    named = {k: float(v) for k, v in terms.named().items()} | {"total_loss": float(total_loss.detach())}
    problems, compared = file.compare_loss(named)
    if not compared:
        raise Failed(f"no term has a name of the reference: {sorted(named)}")
    if problems:
        raise Failed("; ".join(problems[:3]))
    total_loss.backward()
    norms = file.content["loss"].get("gradient", {})
    squares = [p.grad.double().square().sum() for p in who.network.parameters() if p.grad is not None]
    total = float(torch.stack(squares).sum().sqrt())
    if norms and abs(total - norms["total_l2_norm"]) > 1e-2 * norms["total_l2_norm"]:
        raise Failed(f"the gradient's norm is {total:.6g}, expected {norms['total_l2_norm']:.6g}")
    left = sorted(set(file.content["loss"]["components"]) - set(compared))
    return f"{len(compared)} terms agree" + (f" (not in the loss: {', '.join(left)})" if left else "")


def _reference_subject(context: Context, file: Reference) -> Subject:
    who = context.build(nc=file.content["classes"], training=False)
    options = file.content.get("options") or {}
    if options:
        raise NotRun(f"the reference was recorded with options {options}, which this check does not set")
    return who


def _released_name(context: Context) -> str:
    return context.family.weights.pattern.format(size=context.size).removesuffix(".pt")
