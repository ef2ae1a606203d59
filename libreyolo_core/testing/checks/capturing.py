"""Capture safety: nothing in the region, or in a static loss, that a CUDA graph cannot hold. Needs no GPU.

Each pass below sees what the others cannot: fake tensors know CUDA but no backward, torch's meta device knows a
backward but no autocast, the CPU has numbers but one device for all.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.profiler import profile
from torch.utils import _pytree as pytree

from libreyolo_core.data.batch import prepare
from libreyolo_core.engine.inference import Forward
from libreyolo_core.family import Task, resolve, with_path
from libreyolo_core.losses import Step
from libreyolo_core.profiler.tracer import quiet_kineto
from libreyolo_core.testing.context import Context, Failed, NotRun
from libreyolo_core.testing.safety import HostWatch, Unsafe, autocast_set, on_device
from libreyolo_core.testing.tape import PlayError, Tape

_READS = frozenset(
    {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2"}
)
_OF_CONSTANTS = ("aten::masked_fill", "aten::fill_", "aten::index_put", "aten::_index_put_impl_")
"""What asks for a constant that is on the host anyway."""
_NODE = "autograd::engine::evaluate_function: "


def capture(context: Context) -> str:
    """A CUDA graph can hold the region, with it ``finish`` and a loss that the sheet calls static, and the forward of
    an evaluation: no copy between devices, no value read on the host, no shape that depends on data, forward
    and backward, with autocast and without. Needs no GPU; a failure names the operation, the file and the line."""
    if context.sheet.capture.off_reason:
        raise NotRun(f"no region: {context.sheet.capture.off_reason}")
    sheet = context.sheet
    random: set[str] = set()
    for change in _phases(sheet):
        random |= _forward_on_cuda(_Part(context, change), torch.float16)
        _backward_on_meta(_Part(context, change))
    _backward_on_cpu(_Part(context))
    operations = _traced_on_cuda(_Part(context), torch.bfloat16)
    if not sheet.capture.inference_off_reason:
        _inference_on_cuda(_Part(context))
    what = "network and loss" if sheet.loss.static else sheet.capture.label
    drawn = f"; draws from global random state: {', '.join(sorted(random)[:3])}" if random else ""
    return f"{what}, {operations} operations forward and backward, with and without autocast{drawn}"


def _phases(sheet: Task) -> list[dict[str, Any]]:
    """What changes of network and loss a run goes through; the first is none."""
    parts = ("network.", "loss.")
    changes = [{k: v for k, v in change.set.items() if k.startswith(parts)} for change in sheet.changes]
    return [{}, *(change for change in changes if change)]


class _Part:
    """What a graph would hold, as a function of nothing: on whichever device network and inputs have been put."""

    def __init__(self, context: Context, change: Mapping[str, Any] | None = None) -> None:
        who = context.build()
        self.network, self.loss = who.network.train(), who.sheet.loss
        self.family = type(self.network).__module__.partition(".")[0]
        for path, value in (change or {}).items():
            part, _, name = path.partition(".")
            if part == "network":
                self.network.configure(**{name: value})
            else:
                self.loss = with_path(self.loss, name, value)
        batch = who.batch([3, 1], context.imgsz)
        self.images, self.draw, self.targets = prepare(batch.images, who.sheet.input), batch.draw, batch.targets
        self.trained = [p for p in self.network.parameters() if p.requires_grad]

    def move(self, device: str) -> None:
        """To empty tensors on ``device``."""

        def empty(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device=device)

        on_device(self.network, device)
        self.images, self.draw, self.targets = empty(self.images), empty(self.draw), self.targets.map(empty)
        self.trained = [p for p in self.network.parameters() if p.requires_grad]

    def tensors(self) -> list[Tensor]:
        """Parameters, buffers and inputs."""
        targets = [v for v in vars(self.targets).values() if isinstance(v, Tensor)]
        return [*self.network.parameters(), *self.network.buffers(), self.images, self.draw, *targets]

    def __call__(self) -> list[Tensor]:
        """The tensors that come out: the region's, or the total loss."""
        outputs = self.network.region(self.images, self.draw)
        if self.loss.static:
            outputs = self.network.finish(outputs, self.targets, self.draw)
            loss = resolve(self.loss.code)(self.network, **self.loss.options)
            outputs = loss(outputs, self.targets, Step(draw=self.draw)).total
        return [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]

    def gradients(self, outputs: list[Tensor]) -> list[Tensor | None]:
        """Of every trained parameter."""
        wanted = [x for x in outputs if x.requires_grad]
        seeds = [torch.ones_like(x) for x in wanted]
        return list(torch.autograd.grad(wanted, self.trained, seeds, allow_unused=True))


def _forward_on_cuda(part: _Part, dtype: torch.dtype | None) -> set[str]:
    """Run the part with fake tensors on a pretended CUDA device; returns where it draws random numbers."""
    watch = HostWatch(part.family)
    with FakeTensorMode(allow_non_fake_inputs=True), autocast_set("cuda", dtype), _named("forward", watch):
        part.move("cuda")
        with watch:
            part()
    return watch.random


def _inference_on_cuda(part: _Part) -> None:
    """Run the evaluation forward and its predictions on the pretended CUDA device."""
    watch = HostWatch(part.family)
    with FakeTensorMode(allow_non_fake_inputs=True), _named("inference", watch), torch.no_grad():
        part.move("cuda")
        part.network.eval()
        with watch:
            Forward(part.network)(part.images)


def _backward_on_meta(part: _Part) -> None:
    """Run the backward on torch's meta device: autograd cannot on a CUDA device that is not there, and like CUDA it is
    another device than that of tensors made without one, so that copies show."""
    part.move("meta")

    def run(remember: bool) -> None:
        watch = HostWatch(part.family, scalars_anywhere=True)
        with torch.autograd.set_detect_anomaly(remember, check_nan=False), _named("backward", watch), watch:
            part.gradients(part())

    try:
        run(False)
    except Failed:
        run(True)  # again, with every operation's line in the forward pass at hand, which takes time


def _backward_on_cpu(part: _Part) -> None:
    """Run the backward with numbers and nothing in between: some of torch's formulas read the host, but take another
    way under fake tensors and modes."""
    outputs = part()
    with quiet_kineto(), profile(use_cpu=True) as events:
        part.gradients(outputs)
    for event in events.function_events or ():
        if event.name not in _READS:
            continue
        caller = event
        while caller is not None and not caller.name.startswith((_NODE, *_OF_CONSTANTS)):
            caller = caller.cpu_parent
        if caller is not None and caller.name.startswith(_NODE):
            node, operation = caller.name.removeprefix(_NODE), event.name.removeprefix("aten::")
            places = _lines_of(part, node)
            raise Failed(
                f"backward: {operation} at {places or node}: torch computes this gradient with a read on the host; "
                "write the operation with others"
            )


def _lines_of(part: _Part, name: str) -> str:
    """Where the forward operations whose backward has this name were called."""
    watch = HostWatch(part.family)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        stack, seen, found = [x.grad_fn for x in part() if x.grad_fn is not None], set(), set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.name() == name:
                found.add(watch.forward_place(node))
            stack += [n for n, _ in node.next_functions if n is not None]
    return ", ".join(sorted(found)[:3])


def _traced_on_cuda(part: _Part, dtype: torch.dtype) -> int:
    """Record the operations of forward and backward under autocast on the CPU, and run those on the pretended CUDA
    device; returns how many there are."""
    watch = HostWatch(part.family, scalars_anywhere=True)
    with FakeTensorMode(allow_non_fake_inputs=True), _named("backward", watch):
        part.move("cpu")
        inputs = part.tensors()
        tape = Tape(inputs, lambda: watch.where(sys._getframe(2)))
        with autocast_set("cpu", dtype), tape:
            part.gradients(part())
        there = [torch.empty_like(t, device="cuda") for t in inputs]
        with torch.no_grad(), watch:
            tape.play(there, "cuda")
    return len(tape.operations)


@contextmanager
def _named(half: str, watch: HostWatch) -> Iterator[None]:
    """Turn whatever goes wrong into a failure of the check that says where."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly mode tells its own story of every error
        try:
            yield
        except (Unsafe, PlayError) as error:
            raise Failed(f"{half}: {error}") from None
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise Failed(f"{half}: {type(error).__name__} at {watch.place_of(error)}: {text}") from error
