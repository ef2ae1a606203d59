"""Records the operations of a computation on the CPU and runs them again on a device that need not be there.

Autograd cannot run a backward on a CUDA device that is missing; it can on the CPU, and the operations it dispatched
there can be dispatched again to fake tensors that say they are on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_NORMS = frozenset(
    {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"}
)
"""Under autocast the CPU computes these with a half-precision input and float32 weights, CUDA wholly in float32."""


class Recorded(NamedTuple):
    """One operation; tensors among its arguments stand as ``Slot``."""

    func: Any
    args: Any
    kwargs: Any
    outputs: list[Output]
    place: str


class Slot(NamedTuple):
    """A tensor by its number."""

    number: int


class Output(NamedTuple):
    """A tensor that an operation made, by its number, and how it lay in memory."""

    number: int
    stride: tuple[int, ...]
    dtype: torch.dtype


class Tape(TorchDispatchMode):
    """While active, records every operation that makes tensors.

    Args:
        inputs: tensors that are there from the beginning, numbered 0, 1, 2 ...
        where: names the place an operation is called from.
    """

    def __init__(self, inputs: list[Tensor], where: Callable[[], str]) -> None:
        super().__init__()
        self.where = where
        self.operations: list[Recorded] = []
        self.known: dict[int, int] = {}
        self.kept: list[Tensor] = []  # alive, so that no other tensor gets the id of one of them
        for tensor in inputs:
            self._number(tensor)

    def _number(self, tensor: Tensor) -> int:
        self.kept.append(tensor)
        return self.known.setdefault(id(tensor), len(self.kept) - 1)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[override]
        if func is torch.ops.prim.device.default:
            return func(*args)

        def slot(value: Any) -> Any:
            return Slot(self.known[id(value)]) if isinstance(value, Tensor) and id(value) in self.known else value

        slots, named = pytree.tree_map(slot, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        if made:
            numbers = [Output(self._number(t), t.stride(), t.dtype) for t in made]
            self.operations.append(Recorded(func, slots, named, numbers, self.where()))
        return out

    def play(self, inputs: list[Tensor], device: str) -> None:
        """Run all operations again on other inputs, and on ``device`` what was made on the CPU.

        Raises:
            PlayError: an operation failed; it names the operation and the place it was recorded at.
        """
        values: dict[int, Tensor] = {self.known[id(old)]: new for old, new in zip(self.kept, inputs, strict=False)}
        for step in self.operations:
            args, kwargs = pytree.tree_map(
                lambda v: values[v.number] if isinstance(v, Slot) else v,
                (step.args, step.kwargs),
                is_leaf=lambda v: isinstance(v, Slot),
            )
            kwargs = {k: device if isinstance(v, torch.device) and v.type == "cpu" else v for k, v in kwargs.items()}
            if step.func.overloadpacket.__name__ in _NORMS:
                args = pytree.tree_map(_float32, args)
            try:
                out = step.func(*args, **kwargs)
            except Exception as error:
                raise PlayError(
                    f"{step.func.overloadpacket.__name__} at {step.place}: {getattr(error, 'why', error)}"
                ) from error
            made = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
            for output, tensor in zip(step.outputs, made, strict=True):
                values[output.number] = _laid_out(tensor, output)


class PlayError(Exception):
    """A recorded operation cannot run on the other device."""


def _laid_out(tensor: Tensor, output: Output) -> Tensor:
    """As it was on the CPU; kernels of other devices may choose another order of axes, and a view asks for one."""
    if (tensor.stride(), tensor.dtype) == (output.stride, output.dtype):
        return tensor
    return tensor.new_empty_strided(tensor.shape, output.stride, dtype=output.dtype)


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
