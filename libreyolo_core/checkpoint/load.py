"""Filling a network from a state dict: renaming, what may be missing or left over, and changes of the class count."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from libreyolo_core.errors import CheckpointError, PluginError
from libreyolo_core.family import Checkpoint, resolve
from libreyolo_core.network import Network

log = logging.getLogger("libreyolo")
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class LoadReport:
    """What did not go one to one.

    Args:
        missing: keys of the network that the file does not have; they keep their value.
        unexpected: keys of the file that the network does not have; they are not used.
        reshaped: keys whose shape in the file differs by axes of length 1 only.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The state dict a network expects: shape of each key, integer counters, and names that share one tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    counters: frozenset[str]
    tied: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, network: torch.nn.Module) -> Layout:
        """The layout of a network on any device, ``meta`` included."""
        live = network.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        tied = tuple((k, first[id(v)]) for k, v in live.items() if first.setdefault(id(v), k) != k)
        counters = frozenset(k for k, v in live.items() if _is_counter(v))
        return cls({k: tuple(v.shape) for k, v in live.items()}, counters, tied)


@dataclass
class Match:
    """A native state dict against a layout: what fits, and every way in which the rest does not."""

    take: dict[str, Tensor] = field(default_factory=dict)
    reshaped: list[str] = field(default_factory=list)
    clashing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    tolerated_missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    tolerated_unexpected: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """How many keys stand in the way of a strict load; 0 is a perfect fit."""
        return len(self.clashing) + len(self.missing) + len(self.unexpected)


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Whether a shell-style pattern or a plain ending (whole dotted parts) applies to ``key``."""
    return any(fnmatchcase(key, p) or key == p or key.endswith("." + p) for p in patterns)


def adapter_function(checkpoint: Checkpoint, name: str) -> Any:
    """A function of the sheet's adapter (a module, or ``"module:object"``), ``None`` when it has none of that name."""
    if not checkpoint.adapter:
        return None
    module, _, attribute = checkpoint.adapter.partition(":")
    if attribute:
        return getattr(resolve(checkpoint.adapter, declared_by="checkpoint.adapter"), name, None)
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise PluginError(
            f"{module!r} cannot be imported: {error}",
            where="checkpoint.adapter",
            mend="Reinstall the package that declares it.",
        ) from error


def native(state: State, checkpoint: Checkpoint) -> dict[str, Tensor]:
    """``state`` under the network's own key names: the adapter's ``convert``, then every ``rename`` in order.

    Raises:
        CheckpointError: two keys come to share one name.
    """
    convert = adapter_function(checkpoint, "convert")
    origin: dict[str, str] = {}
    out: dict[str, Tensor] = {}
    for key, value in (convert(dict(state)) if convert else state).items():
        new = key
        for pattern, replacement in checkpoint.rename:
            new = re.sub(pattern, replacement, new)
        if new in origin:
            raise CheckpointError(
                f"{origin[new]!r} and {key!r} both become {new!r}", mend="The file mixes two layouts; use another one."
            )
        origin[new], out[new] = key, value
    return out


def match(layout: Layout, state: State, checkpoint: Checkpoint) -> Match:
    """Compare a native state dict with a layout, by the rules of the sheet."""
    found = Match()
    given = {k: v for k, v in state.items() if not matches(k, checkpoint.drop)}
    dropped = [k for k in state if k not in given]
    ties = (*checkpoint.tied, *layout.tied)
    for alias, original in ties:
        for absent, present in ((alias, original), (original, alias)):
            if absent in layout.shapes and absent not in given and present in given:
                given[absent] = given[present]
    may_lack = (*checkpoint.optional, *checkpoint.training_only, *checkpoint.drop)
    for key, shape in layout.shapes.items():
        if key not in given:
            free = key in layout.counters or matches(key, may_lack)
            (found.tolerated_missing if free else found.missing).append(key)
        elif tuple(given[key].shape) == shape:
            found.take[key] = given[key]
        elif _without_ones(given[key].shape) == _without_ones(shape):
            found.take[key] = given[key].reshape(shape)
            found.reshaped.append(key)
        else:
            found.clashing.append(key)
    aliases = {name for pair in ties for name in pair}
    for key in given:
        if key not in layout.shapes:
            free = matches(key, checkpoint.training_only) or key in aliases or _is_counter(given[key])
            (found.tolerated_unexpected if free else found.unexpected).append(key)
    found.tolerated_unexpected += dropped
    return found


def load_into(network: Network, state: State, sheet_checkpoint: Checkpoint, *, strict: bool = True) -> LoadReport:
    """Copy a state dict, as found in a file, into ``network`` in place.

    Keys are renamed, dropped and tied as the sheet says. Only ``optional`` and ``training_only`` keys and integer
    counters may be missing, only dropped and ``training_only`` ones left over. Half precision becomes the network's
    dtype.

    Args:
        strict: ``False`` turns missing and left-over keys into one log line; another shape is an error always.

    Raises:
        CheckpointError: with the first keys of each kind and their count.
    """
    given = native(state, sheet_checkpoint)
    found = match(Layout.of(network), given, sheet_checkpoint)
    if found.clashing or (strict and found.faults):
        raise CheckpointError(
            f"The weights do not fit {type(network).__name__}: {describe(found, network, given)}",
            mend="Use the file's own family, size and class count.",
        )
    if found.faults:
        log.warning(
            "weights loaded in part: %s; what is missing keeps its initial value, the rest is not used",
            describe(found, network, given),
        )
    network.load_state_dict(found.take, strict=False)
    return _report(found)


def fit_classes(
    network: Network,
    state: State,
    sheet_checkpoint: Checkpoint,
    *,
    old_nc: int,
    new_nc: int,
    names: Sequence[str] | None = None,
) -> list[str]:
    """Copy the weights of a model of ``old_nc`` classes into ``network``, which has ``new_nc``, in place.

    Every tensor of equal shape is kept. Where the class count changes the shape, the sheet's adapter may fill the new
    tensor (``fit``); what it does not fill gets the initialisation of ``network.reset_classes``.

    Args:
        names: names of the new classes, for adapters that can keep the rows of classes they know.

    Returns:
        The keys that were initialised afresh; they are logged here, in one line.

    Raises:
        CheckpointError: a shape differs for another reason than the class count, or keys are missing or left over.
    """
    given = native(state, sheet_checkpoint)
    found = match(Layout.of(network), given, sheet_checkpoint)
    own = network.state_dict()
    strange = [k for k in found.clashing if not _counts_classes(given[k].shape, own[k].shape, old_nc, new_nc)]
    if strange or found.missing or found.unexpected:
        found.clashing = strange
        raise CheckpointError(
            f"The weights do not fit {type(network).__name__}: {describe(found, network, given)}",
            where=f"apart from the change from {old_nc} to {new_nc} classes",
            mend="Use the file's own family and size.",
        )
    network.reset_classes(list(names) if names is not None else None)
    fit = adapter_function(sheet_checkpoint, "fit")
    fresh = []
    for key in found.clashing:
        filled = fit(key, given[key], own[key], names) if fit else None
        if filled is None:
            fresh.append(key)
        else:
            found.take[key] = filled
    network.load_state_dict(found.take, strict=False)
    if fresh:
        log.info(
            "class head initialised afresh for %d classes (the weights have %d), everything else kept: %s",
            new_nc,
            old_nc,
            _listed(fresh),
        )
    return fresh


def describe(found: Match, network: torch.nn.Module | None = None, state: State | None = None) -> str:
    """The faults of a match in words: counts and first keys."""
    parts = []
    if found.missing:
        parts.append(f"{len(found.missing)} keys are missing ({_listed(found.missing)})")
    if found.unexpected:
        parts.append(f"{len(found.unexpected)} are left over ({_listed(found.unexpected)})")
    if found.clashing:
        first = found.clashing[0]
        shapes = ""
        if network is not None and state is not None and first in state:
            shapes = (
                f": {_text(state[first].shape)} in the file, {_text(network.state_dict()[first].shape)} in the model"
            )
        parts.append(f"{len(found.clashing)} have another shape ({_listed(found.clashing)}{shapes})")
    return ", ".join(parts)


def _report(found: Match) -> LoadReport:
    return LoadReport(
        tuple(found.missing + found.tolerated_missing),
        tuple(found.unexpected + found.tolerated_unexpected),
        tuple(found.reshaped),
    )


def _counts_classes(old: Sequence[int], new: Sequence[int], old_nc: int, new_nc: int) -> bool:
    """Whether the shapes differ only in axes of length ``a * nc + b``, a >= 1 and b >= 0 the same for both counts."""
    if len(old) != len(new) or old_nc == new_nc:
        return False
    for was, now in zip(old, new, strict=True):
        factor, rest = divmod(was - now, old_nc - new_nc)
        if was != now and (rest or factor < 1 or was < factor * old_nc):
            return False
    return True


def _is_counter(value: Tensor) -> bool:
    return value.dim() == 0 and not value.is_floating_point() and value.dtype != torch.bool


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _listed(keys: Sequence[str], count: int = 3) -> str:
    return ", ".join(keys[:count]) + (", ..." if len(keys) > count else "")
