"""``check_family``: what the core demands of every family, as checks that anyone can run on their own package.

To add a check, write a function ``check(subject_of: Context) -> str`` (its return value is the detail line), raise
``Failed`` when the contract is broken and ``NotRun`` when it cannot be judged here, and add it to ``CHECKS``.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from libreyolo_core.engine.step import TrainStep
from libreyolo_core.errors import LibreYOLOError, UnknownNameError, suggestion
from libreyolo_core.family import Family, Task, resolve
from libreyolo_core.losses import float32_island
from libreyolo_core.network import Network
from libreyolo_core.registry import registry
from libreyolo_core.testing.reference import Reference
from libreyolo_core.testing.steps import Subject, loss_terms, subject

REPLAYED_STEPS = 20
"""Steps of the check ``replay``."""


class Failed(Exception):
    """The contract is broken; the message says how."""


class NotRun(Exception):
    """The check cannot be judged here; the message says why. Never counted as passed."""


@dataclass
class Report:
    """What ``check_family`` found: one row per check."""

    family: str
    rows: list[dict[str, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check that ran passed, and at least one ran."""
        ran = [r for r in self.rows if r["status"] != "not run"]
        return bool(ran) and all(r["status"] == "passed" for r in ran)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"family": self.family, "ok": self.ok, "checks": self.rows}

    def __str__(self) -> str:
        width = max((len(r["check"]) for r in self.rows), default=0)
        return "\n".join(f"{r['status']:8} {r['check']:{width}}  {r['detail']}" for r in self.rows)


@dataclass
class Context:
    """The family under examination."""

    key: str
    task: str
    size: str
    reference: Reference | None
    folder: Path

    @property
    def family(self) -> Family:
        """Its data sheet."""
        return registry().family(self.key)

    @property
    def sheet(self) -> Task:
        """The sheet of the task examined."""
        return self.family.tasks[self.task]

    def build(self, *, nc: int = 0, training: bool = True) -> Subject:
        """A fresh network from scratch; ``training``: with the modules that exist in training only."""
        return subject(self.key, size=self.size, task=self.task, nc=nc, training=training)

    @property
    def imgsz(self) -> int:
        """A small input side: 128 pixels, or the next that the input rule allows."""
        if self.sheet.input.fixed:
            return self.sheet.sizes[self.size].imgsz
        multiple = self.sheet.for_size(self.size).input.multiple
        return -(-128 // multiple) * multiple

    def need_reference(self) -> Reference:
        """The reference file, or ``NotRun``."""
        if self.reference is None:
            raise NotRun("no reference file given (--reference FILE)")
        return self.reference


def check_family(
    key: str,
    *,
    only: Iterable[str] = (),
    reference: str | Path | None = None,
    size: str = "",
    task: str = "",
) -> Report:
    """Run the contract's checks on an installed family.

    Args:
        only: names of checks, default all.
        reference: a numeric reference file; ``parity`` and ``loss parity`` need one.
        size: which size, default the reference's or the first of the sheet.
        task: which task, default the reference's or the first.

    Raises:
        UnknownNameError: no such family, size, task or check.
    """
    family = registry().family(key)
    file = Reference.read(reference) if reference else None
    task = task or (file.content["task"] if file else family.default_task)
    if task not in family.tasks:
        raise UnknownNameError(f"{key} has no task {task!r}", where="check-family", mend=suggestion(task, family.tasks))
    sizes = family.tasks[task].sizes
    size = size or (file.size if file else next(iter(sizes)))
    if size not in sizes:
        raise UnknownNameError(f"{key} has no size {size!r}", where="check-family", mend=suggestion(size, sizes))
    wanted = list(only) or list(CHECKS)
    for name in wanted:
        if name not in CHECKS:
            raise UnknownNameError(f"Unknown check {name!r}", where="check-family", mend=suggestion(name, CHECKS))
    report = Report(key)
    with tempfile.TemporaryDirectory() as folder:
        context = Context(key, task, size, file, Path(folder))
        for name in wanted:
            report.rows.append({"check": name, **_run(CHECKS[name], context)})
    return report


def _run(check: Callable[[Context], str], context: Context) -> dict[str, str]:
    threads = torch.get_num_threads()
    try:
        return {"status": "passed", "detail": check(context)}
    except NotRun as reason:
        return {"status": "not run", "detail": str(reason)}
    except Failed as reason:
        return {"status": "failed", "detail": str(reason)}
    except Exception as error:  # a stranger's code under test: whatever it raises is the finding
        text = str(error) if isinstance(error, LibreYOLOError) else f"{type(error).__name__}: {error}"
        return {"status": "failed", "detail": " ".join(text.split())[:400]}
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # recordings and networks of a check hold each other, and there are gigabytes of them


def registration(context: Context) -> str:
    """Hooks answer, references resolve, every size builds with its declared parameters, the plugin imports no torch."""
    family = context.family
    for name, task in family.tasks.items():
        registry().task(name)
        for reference in (family.network, task.loss.code, *(a.code for a in task.augment)):
            resolve(reference, declared_by=f"{family.key} {name}")
        for size in task.sizes:
            sheet = task.for_size(size)
            with torch.device("meta"):
                network = resolve(family.network)(nc=task.classes, **sheet.model)
            count = sum(p.numel() for p in network.parameters())
            if count != task.sizes[size].params:
                raise Failed(f"{name} {size} has {count:,} parameters, the sheet says {task.sizes[size].params:,}")
    if family.checkpoint.adapter:
        resolve(family.checkpoint.adapter, declared_by=family.key)
    module = _plugin_module(family.key)
    if module:
        code = f"import {module}, sys; print([m for m in ('torch','numpy','torchvision','cv2') if m in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if found.stdout.strip() != "[]":
            raise Failed(f"importing {module} also imports {found.stdout.strip() or found.stderr.strip()[-200:]}")
    sizes = sum(len(t.sizes) for t in family.tasks.values())
    return f"{sizes} sizes build" + (f", {module} is torch-free" if module else "")


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


def replay(context: Context) -> str:
    """Training with the region recorded once and replayed equals eager training bit for bit in float32 on the CPU, with
    the region's Python made to raise as soon as it has been recorded."""
    if context.sheet.capture.off_reason:
        raise NotRun(f"no region: {context.sheet.capture.off_reason}")
    from libreyolo_core.engine.capture import SEEN, Captured, Replay

    def train(capture: bool) -> tuple[list[float], dict[str, torch.Tensor], Captured | None]:
        who = context.build()
        step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
        manager = Captured(who.network, Replay(), who.sheet.capture) if capture else None
        step.region = manager or step.region
        trained = [p for p in who.network.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9)
        losses = []
        for number in range(REPLAYED_STEPS):
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
    if (counts.captured, counts.replayed, counts.eager) != (1, REPLAYED_STEPS - SEEN + 1, SEEN - 1):
        raise Failed("; ".join(counts.reasons))
    for number, (a, b) in enumerate(zip(eager, replayed, strict=True)):
        if a != b:
            raise Failed(f"the loss of step {number} is {a:.9g} eagerly and {b:.9g} replayed")
    for name, value in state.items():
        if not torch.equal(value, other[name]):
            raise Failed(f"{name} differs after {REPLAYED_STEPS} steps")
    return f"{counts.replayed} of {REPLAYED_STEPS} steps replayed, losses and weights equal bit for bit"


def _raises(*_: Any) -> Any:
    raise RuntimeError("the region's Python ran after it had been recorded")


def learns(context: Context) -> str:
    """From scratch, one batch is overfitted: the loss falls below half within 120 steps of AdamW at 2e-3."""
    who = context.build(nc=min(context.sheet.classes, 3))
    data = who.batch([2, 1], context.imgsz)
    trainable = [p for p in who.network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-3, weight_decay=0.0)
    first = last = 0.0
    for number in range(120):
        terms = loss_terms(who, data)
        last = float(terms.total.detach())
        first = first or last
        if last < 0.5 * first:
            return f"loss {first:.4g} -> {last:.4g} in {number} steps"
        optimizer.zero_grad()
        terms.total.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 10.0)
        optimizer.step()
    raise Failed(f"the loss of one batch went from {first:.4g} only to {last:.4g} in 120 steps")


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
    """Forward and loss are finite in bfloat16 autocast, and the loss is computed in float32."""
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
    return f"{len(terms.terms)} terms finite and in float32"


def ranks(context: Context) -> str:
    """Two processes with half the batch each compute the gradients of one process with all of it: with frozen batch
    statistics to 5e-6 of the norm (2e-5 per tensor), with statistics over both ranks to 1e-4."""
    from libreyolo_core.testing.ranks import differences

    if context.sheet.ranks.exempt:
        raise NotRun(f"exempt: {context.sheet.ranks.exempt}")
    several = registry().task(context.task).counts_objects
    shards = ([0, 0, 21, 3], [2, 1, 0, 22]) if several else ([1, 1, 1, 1],)
    who: dict[str, Any] = {"key": context.key, "size": context.size, "task": context.task, "imgsz": context.imgsz}
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
    """ONNX under onnxruntime equals torch to 1e-3 of the largest absolute value."""
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
        worst = float((a - b).abs().max() / a.abs().max())
        if worst > 1e-3:
            raise Failed(f"{name} differ by {worst:.2e} of their absmax")
    return "onnxruntime agrees to 1e-3"


CHECKS: dict[str, Callable[[Context], str]] = {
    "registration": registration,
    "parity": parity,
    "loss parity": loss_parity,
    "split": split,
    "replay": replay,
    "learns": learns,
    "empty": empty,
    "precision": precision,
    "ranks": ranks,
    "classes": classes,
    "checkpoint": checkpoint,
    "export": export,
}


class _Wrapper(nn.Module):
    """What capture and compile do to a region: call it through a module of their own."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images, draw):
        return self.network.region(images, draw)


def _region(who: Subject, data: Any, region: Callable) -> Any:
    from libreyolo_core.data.batch import prepare

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


def _pixels(context: Context, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, 3, context.imgsz, context.imgsz), generator=generator, dtype=torch.uint8)


def _reference_subject(context: Context, file: Reference) -> Subject:
    who = context.build(nc=file.content["classes"], training=False)
    options = file.content.get("options") or {}
    if options:
        raise NotRun(f"the reference was recorded with options {options}, which this check does not set")
    return who


def _released_name(context: Context) -> str:
    return context.family.weights.pattern.format(size=context.size).removesuffix(".pt")


def _plugin_module(key: str) -> str:
    """The plugin module that brought a family, "" when it did not come through an entry point."""
    for plugin in registry().plugins:
        if key in plugin.entries.get("families", ()):
            for point in entry_points(group="libreyolo"):
                if point.name == plugin.name:
                    return point.value
    return ""
