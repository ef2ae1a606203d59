"""Finds what a CUDA graph cannot hold, on a machine without a GPU, and names operation, file and line.

``HostWatch`` looks at every operation that torch dispatches. ``on_device`` puts a network on a device that need not be
there: under torch's fake tensors, which know shapes and devices but hold no numbers, a region runs "on CUDA" anywhere.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

_TORCH = str(Path(torch.__file__).parent)
_SYNCHRONISING = frozenset({"equal", "is_nonzero", "allclose", "histc", "_linalg_check_errors"})
"""Operations that make a GPU wait for the host without a tag that says so."""
_MASKED_WRITES = frozenset({"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"})
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


class Unsafe(Exception):
    """An operation that no graph can hold; the message names it, its place in the code, and ``why`` with a mend."""

    def __init__(self, func: Any, where: str, why: str) -> None:
        super().__init__(f"{_name(func)} at {where}: {why}")
        self.why = why


class Place(NamedTuple):
    """A line of Python."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


class HostWatch(TorchDispatchMode):
    """While active, raises ``Unsafe`` at the first copy between devices, read by the host or shape that data decide.

    Values without axes may live on the CPU: a graph takes them as constants. In a backward of torch's own the line
    named is the one of the forward operation, which autograd's anomaly mode knows.

    Args:
        family: the package whose own line is named besides the innermost.
        scalars_anywhere: a constant may be written through a mask from any device. Python leaves it on the host, where
            a graph finds it, on CUDA alone.

    Attributes:
        random: places that draw from torch's global generators; a graph replays those, but not bit for bit.
    """

    def __init__(self, family: str, *, scalars_anywhere: bool = False) -> None:
        super().__init__()
        self.family, self.scalars_anywhere = family, scalars_anywhere
        self.random: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[override]
        if func is torch.ops.prim.device.default:  # half of all calls under fake tensors, and always harmless
            return func(*args)
        kwargs = kwargs or {}
        source = _devices((args, kwargs))
        why = _reads_host(func, args, kwargs, self.scalars_anywhere) or _mixes_devices(func, args, kwargs, source)
        if why:
            raise Unsafe(func, self.where(sys._getframe(1)), why)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random.add(f"{_name(func)} at {self.where(sys._getframe(1))}")
        out = func(*args, **kwargs)
        target = _devices(out)
        if source and len(source | target) > 1:
            raise Unsafe(func, self.where(sys._getframe(1)), _copy_in_words(source, target))
        return out

    def where(self, frame: Any) -> str:
        """The innermost line outside torch and, where that is not the family's, the family's line that led there."""
        places, own = [], None
        while frame is not None and not _is_checker(frame.f_code.co_filename):
            place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            if not place.file.startswith(_TORCH):
                places.append(place)
                if own is None and _package(frame) == self.family:
                    own = place
            frame = frame.f_back
        node = torch._C._current_autograd_node()
        if node is not None and not places:  # a backward of torch's own; one written in Python has a line
            return self.forward_place(node) or f"the backward ({node.name()})"
        return _in_words(places, own)

    def forward_place(self, node: Any) -> str:
        """Where the forward operation of an autograd node was called; "" without anomaly mode."""
        places = _forward_places(node)
        own = next((p for p in places if f"/{self.family}/" in p.file), None)
        return _in_words(places, own, prefix="the backward of ") if places else ""

    def place_of(self, error: BaseException) -> str:
        """The same for an exception that something else raised."""
        places, own = [], None
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            file = frame.f_code.co_filename
            if file.startswith(_TORCH) or _is_checker(file):
                continue
            places.append(Place(file, line, frame.f_code.co_name))
            if own is None and _package(frame) == self.family:
                own = places[-1]
        return _in_words(places, own)


@contextmanager
def autocast_set(device_type: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast to ``dtype`` (``None`` for off), without its cache; ``torch.autocast`` would switch itself off for a
    device that is not there."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled(device_type, dtype is not None)
    torch.set_autocast_dtype(device_type, dtype or before[1])
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])
        torch.set_autocast_cache_enabled(cached)


def on_device(network: nn.Module, device: str) -> None:
    """Replace parameters and buffers by empty ones on ``device``, in place; shared ones stay shared. What a module
    keeps in a plain attribute stays where it is, as it does when a user moves the network."""
    moved: dict[Tensor, Tensor] = {}

    def other(tensor: Tensor) -> Tensor:
        if tensor not in moved:
            empty = torch.empty_like(tensor.detach(), device=device)
            trains = tensor.requires_grad
            moved[tensor] = nn.Parameter(empty, trains) if isinstance(tensor, nn.Parameter) else empty
        return moved[tensor]

    for module in network.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = other(tensor)  # type: ignore[assignment]


def _reads_host(func: Any, args: tuple, kwargs: dict, scalars_anywhere: bool) -> str:
    """Why an operation makes the host wait or look, "" when it does not."""
    name = func.overloadpacket.__name__
    if torch.Tag.data_dependent_output in func.tags or name in _SYNCHRONISING:
        return (
            "a value is read on the host (item, tolist, float, int, bool, if); keep it in a tensor, or compute it "
            "when the network is built"
        )
    shape = "a shape depends on data; keep all entries and use a mask (torch.where)"
    if name in _MASKED_WRITES and _has_mask(args[1]):
        value = args[2]
        constant = value.dim() == 0 and len(args[1]) == 1 and (scalars_anywhere or _device(value) == "cpu")
        return "" if constant else shape
    if torch.Tag.dynamic_output_shape not in func.tags:
        return ""
    if name == "index":
        return shape if _has_mask(args[1]) else ""
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return ""
    return shape


def _mixes_devices(func: Any, args: tuple, kwargs: dict, source: set[str]) -> str:
    """Whether tensors of several devices come together, or one goes to another device."""
    if len(source) > 1:
        return _copy_in_words(source, set())
    name = func.overloadpacket.__name__
    if name == "_to_copy" and kwargs.get("device") is not None:
        before, after = _device(args[0]), torch.device(kwargs["device"]).type
    elif name == "copy_":
        before, after = _device(args[1]), _device(args[0])
    else:
        return ""
    return _copy_in_words({before}, {after}) if before != after else ""


def _copy_in_words(source: set[str], target: set[str]) -> str:
    if target == {"cpu"}:
        return f"a copy from {', '.join(sorted(source))} to the host; keep the computation on the device"
    devices = ", ".join(sorted(source | target))
    return (
        f"a copy between devices ({devices}); create the tensor on images.device by an operation such as arange or "
        "zeros, or register a buffer"
    )


def _devices(values: Any) -> set[str]:
    """Device types of the tensors with axes in nested lists, tuples and dicts; one without may stay on the host."""
    if isinstance(values, Tensor):
        return {_device(values)} if values.dim() > 0 else set()
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return set()
    return set().union(*(_devices(v) for v in values))


def _device(tensor: Tensor) -> str:
    """Type of the device a tensor is on; asking a fake one directly would dispatch an operation."""
    return str((tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device).type)


def _has_mask(indices: Any) -> bool:
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_checker(file: str) -> bool:
    return file in _CHECKERS


def _forward_places(node: Any) -> list[Place]:
    """Where the forward operation of a backward node was called, innermost first; empty without anomaly mode."""
    text = "".join(node.metadata.get("traceback_", ()))
    places = [Place(f, int(n), name) for f, n, name in _FRAME.findall(text)]
    kept = [p for p in places if not p.file.startswith(_TORCH)]
    outermost = max((i for i, p in enumerate(kept) if _is_checker(p.file)), default=-1)
    return kept[outermost + 1 :][::-1]


def _in_words(places: list[Place], own: Place | None, prefix: str = "") -> str:
    if not places:
        return "an unknown line"
    inner = places[0]
    text = f"{prefix}{inner} ({inner.function})"
    return text if own is None or own == inner else f"{text}, called from {own} ({own.function})"


_CHECKERS = {__file__, str(Path(__file__).parent / "checks" / "capturing.py")}
