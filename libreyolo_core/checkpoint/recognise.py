"""What a weight file belongs to: its metadata first, then every installed family's recognition of bare state dicts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from typing import Any

import torch
from torch import Tensor

from libreyolo_core.checkpoint.files import File, complete_names
from libreyolo_core.checkpoint.load import Layout, Match, adapter_function, describe, match, native
from libreyolo_core.errors import CheckpointError, suggestion
from libreyolo_core.family import Family, Input, Task, resolve, with_path
from libreyolo_core.hub import named_by_file

log = logging.getLogger("libreyolo")
_CENTRED = ("center", "centre")


@dataclass(frozen=True)
class Found:
    """What a file holds. An adapter's ``inspect`` returns one too, with what only it can tell (``size``, ``nc``,
    ``task``, ``model``, ``set``); the rest is then filled in.

    Args:
        family, task, size: keys of the data sheet.
        nc: number of classes.
        names: class index to name, every index.
        imgsz: default input side in pixels, 0 for the size's own.
        model: constructor options of the network that differ from the size's.
        set: overrides of the sheet by dotted path.
        variant: a variant of the sheet, "" for none.
        state: the state dict as stored, for ``load_into``.
    """

    family: str = ""
    task: str = ""
    size: str = ""
    nc: int = 0
    names: Mapping[int, str] = field(default_factory=dict)
    imgsz: int = 0
    model: Mapping[str, Any] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    state: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def sheet(self, family: Family) -> Task:
        """The family's sheet for this file: size, variant and overrides applied, constructor options in ``model``."""
        task = family.tasks[self.task]
        sheet = task.for_size(self.size)
        for path, value in {**task.variants.get(self.variant, {}), **self.set}.items():
            sheet = with_path(sheet, path, value)
        return replace(sheet, model={**sheet.model, **self.model})


def identify(
    file: File,
    families: Mapping[str, Family],
    filename: str = "",
    *,
    family: str = "",
    task: str = "",
    size: str = "",
) -> Found:
    """Recognise a weight file.

    Args:
        families: installed families by key.
        filename: name of the file; settles what keys and shapes leave open. Default: the file's own.
        family, task, size: what the user says; must agree with the file's metadata.

    Raises:
        CheckpointError: the family is not installed, none or several claim the file, or it fits no size.
    """
    filename = filename or (file.path.name if file.path else "")
    stored = file.meta.get("model_family")
    if stored is None:
        return _from_keys(file, families, filename, family, task, size)
    if stored not in families:
        raise CheckpointError(
            f"{filename or 'The file'} belongs to the family {stored!r}, which is not installed",
            where=f"installed families: {', '.join(families) or 'none'}",
            mend=f"Install it: pip install libreyolo-family-{str(stored).replace('_', '-')}",
        )
    says = (("family", family, stored), ("task", task, file.meta.get("task")), ("size", size, file.meta.get("size")))
    for what, given, held in says:
        if given and held and given != held:
            raise CheckpointError(
                f"{filename or 'The file'} holds the {what} {held!r}, not {given!r}",
                where="metadata of the file",
                mend=f"Leave {what}= out, or give another file.",
            )
    return _from_metadata(file, families[stored], filename, families, task, size)


def _from_metadata(
    file: File, family: Family, filename: str, families: Mapping[str, Family], task: str, size: str
) -> Found:
    meta = file.meta
    state = native(file.state, family.checkpoint)
    seen = _inspect(family, state) or Found()
    task = _known(meta.get("task") or task or seen.task or family.default_task, family.tasks, "task", filename, family)
    sizes = family.tasks[task].sizes
    size = meta.get("size") or size or seen.size or _size_in_name(filename, families, family)
    nc = meta.get("nc") or seen.nc or _count_classes(family, state)
    if not size:
        size = _fit(family, state, filename, families, replace(seen, task=task, nc=nc or 0), "").size
    size = _known(size, sizes, "size", filename, family)
    nc = _checked_nc(nc or family.tasks[task].classes, family, state, filename)
    return Found(
        family.key,
        task,
        size,
        nc,
        complete_names(meta.get("names") or {}, nc),
        _side(meta.get("imgsz")),
        seen.model,
        {**seen.set, **_letterbox(meta)},
        _variant(meta, filename, family, families, task),
        file.state,
    )


def _from_keys(file: File, families: Mapping[str, Family], filename: str, family: str, task: str, size: str) -> Found:
    if family:
        chosen = families[_known(family, families, "family", filename, None)]
        raw = file.state_in(chosen.checkpoint.containers)
    else:
        chosen, raw = _claimed(file, families, filename)
    state = native(raw, chosen.checkpoint)
    seen = _inspect(chosen, state) or Found()
    if task:
        seen = replace(seen, task=_known(task, chosen.tasks, "task", filename, chosen))
    nc = seen.nc or _count_classes(chosen, state) or 0
    found = _fit(chosen, state, filename, families, replace(seen, nc=nc), size)
    variant = _variant({}, filename, chosen, families, found.task)
    return replace(
        found, family=chosen.key, names=complete_names({}, found.nc), set=seen.set, variant=variant, state=raw
    )


def _claimed(file: File, families: Mapping[str, Family], filename: str) -> tuple[Family, dict[str, Tensor]]:
    """The one family that recognises a bare state dict."""
    claims: dict[str, dict[str, Tensor]] = {}
    for key, family in families.items():
        raw = file.state_in(family.checkpoint.containers)
        if _claims(family, raw):
            claims[key] = raw
    if not claims:
        raise CheckpointError(
            f"{filename or 'The file'} has no metadata and no installed family recognises its keys",
            where=f"such as {', '.join(list(file.state)[:3])}; installed families: {', '.join(families) or 'none'}",
            mend="Install the family's package, or name it with family=.",
        )
    standing = {k for k in claims if not any(_contains(families[o], families[k]) for o in claims if o != k)}
    if len(standing) > 1:
        standing = standing & {key for key, _, _ in named_by_file(filename, families)} or standing
    if len(standing) > 1:
        raise CheckpointError(
            f"{filename or 'The file'} has no metadata and its keys fit the families {' and '.join(sorted(standing))}",
            mend=f"Say which it is: family={sorted(standing)[0]!r}, or name the file as that family's weights are.",
        )
    (key,) = standing
    return families[key], claims[key]


def _claims(family: Family, raw: Mapping[str, Tensor]) -> bool:
    rules = family.checkpoint
    if not rules.signature and not rules.adapter:
        return False
    try:
        state = native(raw, rules)
    except CheckpointError:  # two keys under one name: the layout is not this family's
        return False
    if not all(matching(state, pattern) for pattern in rules.signature):
        return False
    return adapter_function(rules, "inspect") is None or _inspect(family, state) is not None


def _contains(larger: Family, smaller: Family) -> bool:
    """Whether one family's signature asks for all of the other's and more."""
    return {*larger.checkpoint.signature} > {*smaller.checkpoint.signature}


def _inspect(family: Family, state: Mapping[str, Tensor]) -> Found | None:
    function = adapter_function(family.checkpoint, "inspect")
    try:
        return function(state) if function else None
    except (KeyError, IndexError, ValueError, TypeError) as error:  # keys it took for granted are not there
        log.debug("the recogniser of %s stumbled over %r", family.key, error)
        return None


def _fit(
    family: Family,
    state: Mapping[str, Tensor],
    filename: str,
    families: Mapping[str, Family],
    seen: Found,
    size: str,
) -> Found:
    """``seen`` with task, size and class count decided: the size whose keys and shapes are those of the state dict."""
    if size and seen.size and size != seen.size:
        raise CheckpointError(
            f"{filename or 'The file'} holds the size {seen.size!r}, not {size!r}",
            where="keys and shapes of the file",
            mend="Leave size= out, or give another file.",
        )
    if seen.size and seen.nc:
        return replace(seen, task=seen.task or _task_of(family, seen.size))
    tried: list[tuple[str, str, Match]] = []
    for task, sheet in family.tasks.items():
        if seen.task and task != seen.task:
            continue
        for candidate in sheet.sizes:
            if candidate == (seen.size or size or candidate):
                chosen = replace(seen, task=task, size=candidate, nc=seen.nc or sheet.classes)
                tried.append((task, candidate, match(layout(family, chosen), state, family.checkpoint)))
    fits = [(task, candidate) for task, candidate, result in tried if not result.faults]
    if len(fits) > 1:
        named = _size_in_name(filename, families, family)
        fits = [(t, s) for t, s in fits if s == (size or named)] or fits
    if not fits:
        raise _no_size(family, filename, tried)
    if len({s for _, s in fits}) > 1:
        raise CheckpointError(
            f"{filename or 'The file'} fits the sizes {' and '.join(s for _, s in fits)} of {family.title}",
            mend=f"Say which it is: size={fits[0][1]!r}.",
        )
    task, candidate = fits[0]
    return replace(seen, task=task, size=candidate, nc=seen.nc or family.tasks[task].classes)


def _task_of(family: Family, size: str) -> str:
    return next((t for t, sheet in family.tasks.items() if size in sheet.sizes), family.default_task)


def layout(family: Family, found: Found) -> Layout:
    """The keys and shapes of the network that ``found`` describes, without allocating it."""
    code = resolve(family.network, declared_by=family.key)
    options = found.sheet(family).model
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return Layout.of(code(nc=found.nc, **options))
        except (NotImplementedError, RuntimeError):  # a constructor that computes with its tensors needs real ones
            return Layout.of(code(nc=found.nc, **options))


def _no_size(family: Family, filename: str, tried: list[tuple[str, str, Match]]) -> CheckpointError:
    if not tried:
        return CheckpointError(f"{family.title} has no such size", mend=f"Known: {', '.join(_sizes(family))}.")
    _, size, nearest_match = min(tried, key=lambda t: t[2].faults)
    return CheckpointError(
        f"{filename or 'The file'} looks like {family.title} but fits none of its sizes",
        where=f"nearest is {size!r}: {describe(nearest_match)}",
        mend=f"Known sizes: {', '.join(_sizes(family))}.",
    )


def _sizes(family: Family) -> list[str]:
    return sorted({s for t in family.tasks.values() for s in t.sizes})


def _count_classes(family: Family, state: Mapping[str, Tensor]) -> int:
    key = family.checkpoint.classes
    return int(state[key].shape[0]) if key in state and state[key].dim() else 0


def _checked_nc(nc: Any, family: Family, state: Mapping[str, Tensor], filename: str) -> int:
    """The class count; a file whose metadata and tensors disagree is damaged or made up."""
    counted = _count_classes(family, state)
    valid = isinstance(nc, int) and not isinstance(nc, bool) and nc > 0
    if not valid or (counted and counted != nc):
        raise CheckpointError(
            f"{filename or 'The file'} says nc={nc!r}" + (f" but its class head has {counted}" if counted else ""),
            where="metadata of the file",
            mend="Use an undamaged file.",
        )
    return nc


def _known(value: str, known: Mapping[str, Any], what: str, filename: str, family: Family | None) -> str:
    if value in known:
        return value
    of = f" of {family.title}" if family else ""
    raise CheckpointError(
        f"{filename or 'The file'}: {value!r} is no {what}{of}",
        mend=suggestion(str(value), known, what=f"{what} names"),
    )


def _size_in_name(filename: str, families: Mapping[str, Family], family: Family) -> str:
    return next((size for key, size, _ in named_by_file(filename, families) if key == family.key), "")


def _variant(meta: Mapping[str, Any], filename: str, family: Family, families: Mapping[str, Family], task: str) -> str:
    named = next((v for key, _, v in named_by_file(filename, families) if key == family.key), "")
    variant = meta.get("variant") or meta.get("weight_variant") or named
    return _known(variant, family.tasks[task].variants, "variant", filename, family) if variant else ""


def marks(rule: Input) -> dict[str, Any]:
    """Metadata beyond the schema's that a file needs for ``identify`` to find this input rule again."""
    return {"letterbox_pad": _CENTRED[0]} if rule.fit == "letterbox" and rule.side == "centre" else {}


def _letterbox(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Files trained on centred letterboxes say so; unmarked means what the sheet says."""
    pad = meta.get("letterbox_pad")
    return {"input.side": "centre" if pad in _CENTRED else "top-left"} if pad else {}


def _side(imgsz: Any) -> int:
    """The default side; files may hold a pair of equal sides."""
    value = max(imgsz) if isinstance(imgsz, (list, tuple)) and imgsz else imgsz
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
