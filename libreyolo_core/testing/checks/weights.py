"""Weights: another number of classes, saving and loading, export."""

from __future__ import annotations

import torch

from libreyolo_core.registry import registry
from libreyolo_core.testing.context import Context, Failed, NotRun
from libreyolo_core.testing.steps import loss_terms

TINY = 1e-9
"""Scores are compared no finer than this: a logit of zero has no end."""


def classes(context: Context) -> str:
    """Weights of the family's class count go into a model of another one: everything but the class head is kept."""
    from libreyolo_core.checkpoint import fit_classes

    if not registry().task(context.task).has_classes:
        raise NotRun("this task has no classes")
    old = context.build()
    nc = 3 if old.nc != 3 else 5
    new, scratch = context.build(nc=nc), context.build(nc=nc)
    names = [f"class {i}" for i in range(nc)]
    fresh = fit_classes(
        new.network, old.network.state_dict(), context.family.checkpoint, old_nc=old.nc, new_nc=nc, names=names
    )
    before, after = old.network.state_dict(), new.network.state_dict()
    kept = [k for k in after if k in before and before[k].shape == after[k].shape]
    for key in kept:
        if not torch.equal(before[key], after[key]):
            raise Failed(f"{key} was not kept")
    if not fresh:
        raise Failed("nothing was re-initialised, although the class count changed")
    first, fresh_loss = (float(loss_terms(w, w.batch([2, 1], context.imgsz)).total.detach()) for w in (new, scratch))
    if not first <= 3 * fresh_loss:
        raise Failed(f"the first loss of the new head is {first:.4g}, of a model from scratch {fresh_loss:.4g}")
    return f"{len(kept)} entries kept, re-initialised: {', '.join(fresh[:4])}{' ...' if len(fresh) > 4 else ''}"


def checkpoint(context: Context) -> str:
    """Saved and loaded: identical outputs and names."""
    from libreyolo_core.api import LibreYOLO

    nc = 4 if registry().task(context.task).has_classes else 1
    names = [f"thing {i}" for i in range(nc)]
    name = f"{context.key}-{context.size}"
    model = LibreYOLO(name, pretrained=False, nc=nc, names=names, task=context.task, device="cpu")
    images = _pixels(context)
    before = model.infer(images)
    for suffix in (".pt", ".safetensors"):
        path = model.save(context.folder / f"saved{suffix}")
        loaded = LibreYOLO(path, device="cpu")
        if loaded.names != model.names or (loaded.key, loaded.size, loaded.nc) != (model.key, model.size, nc):
            raise Failed(f"{suffix}: came back as {loaded!r} with names {loaded.names}")
        after = loaded.infer(images)
        for field_ in ("boxes", "scores", "logits", "image"):
            a, b = getattr(before, field_), getattr(after, field_)
            if a is not None and not torch.equal(a, b):
                raise Failed(f"{suffix}: {field_} differ after loading")
    return "pt and safetensors give identical outputs and names"


def export(context: Context) -> str:
    """ONNX under onnxruntime equals torch to 1e-3 of the largest absolute value; scores are compared as logits, because
    those of a new network can all be tiny."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise NotRun(f"{error.name} is not installed (pip install 'libreyolo-core[export]')") from None
    from libreyolo_core.api import LibreYOLO

    model = LibreYOLO(f"{context.key}-{context.size}", pretrained=False, task=context.task, device="cpu")
    path = model.export(path=str(context.folder / "model.onnx"), imgsz=context.imgsz)
    images = _pixels(context, batch=1)
    torch_side, onnx_side = model.infer(images), LibreYOLO(path, device="cpu").infer(images)
    for name in ("boxes", "scores", "logits", "image"):
        a, b = getattr(torch_side, name), getattr(onnx_side, name)
        if a is None:
            continue
        if b is None or a.shape != b.shape:
            raise Failed(
                f"{name}: shape {tuple(a.shape)} in torch, {tuple(b.shape) if b is not None else None} in ONNX"
            )
        if name == "scores":
            a, b = a.double().logit(TINY), b.double().logit(TINY)
        worst = float((a - b).abs().max() / a.abs().max())
        if worst > 1e-3:
            raise Failed(f"{name} differ by {worst:.2e} of their absmax")
    return "onnxruntime agrees to 1e-3"


def _pixels(context: Context, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, 3, context.imgsz, context.imgsz), generator=generator, dtype=torch.uint8)
