"""From what a caller or a command line gives to the type of an argument, checked, and types and ranges in words.

An argument is a dataclass field made by ``libreyolo_core.config.arg``; its metadata holds range and choices.
"""

from __future__ import annotations

import types
from dataclasses import Field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from libreyolo_core.errors import ConfigError


def convert(f: Field, hint: Any, raw: Any, *, where: str) -> Any:
    """``raw`` as the type of field ``f``, checked against its choices and range."""
    meta = f.metadata
    if "" in meta["choices"] and isinstance(raw, str) and raw.lower() == "none":
        raw = ""
    try:
        value = _coerce(hint, raw)
    except (TypeError, ValueError):
        raise ConfigError(f"{f.name}={raw!r} is not {_describe(hint)}", where=where, mend=_mend(f, hint)) from None
    if value is None or value in meta["also"]:
        return value
    if meta["choices"] and not any(type(value) is type(c) and value == c for c in meta["choices"]):
        raise ConfigError(f"{f.name}={raw!r} is none of the choices", where=where, mend=_mend(f, hint))
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            low, high = meta["low"], meta["high"]
            if number != number or (low is not None and number < low) or (high is not None and number > high):
                raise ConfigError(f"{f.name}={raw!r} is out of range", where=where, mend=_mend(f, hint))
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(n, float) for n in value)
    if pair and value[0] > value[1]:
        raise ConfigError(f"{f.name}={raw!r} runs backwards", where=where, mend="Give the lower end first.")
    return value


def _coerce(hint: Any, raw: Any) -> Any:
    if hint is Any:
        return raw
    if get_origin(hint) in (Union, types.UnionType):
        return _coerce_union(get_args(hint), raw)
    if get_origin(hint) is tuple:
        return _coerce_tuple(get_args(hint), raw)
    if get_origin(hint) is Literal:
        return raw
    if hint is bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in _TRUE | _FALSE:
            return raw.lower() in _TRUE
        raise TypeError
    if isinstance(raw, bool):
        raise TypeError
    if hint is int:
        if isinstance(raw, float) and not raw.is_integer():
            raise ValueError
        return int(raw)
    if hint is float:
        if not isinstance(raw, (int, float, str)):
            raise TypeError
        return float(raw)
    if hint is str:
        if isinstance(raw, (list, tuple)):
            return ",".join(str(r) for r in raw)
        if not isinstance(raw, (str, int, Path)):
            raise TypeError
        return str(raw)
    if isinstance(raw, hint):
        return raw
    raise TypeError


_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def _coerce_union(hints: tuple[Any, ...], raw: Any) -> Any:
    if raw is None or (isinstance(raw, str) and raw.lower() in ("none", "null") and type(None) in hints):
        if type(None) in hints:
            return None
        raise TypeError
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _coerce(hint, raw)
        except (TypeError, ValueError):
            continue
    raise TypeError


def _coerce_tuple(hints: tuple[Any, ...], raw: Any) -> tuple[Any, ...]:
    if isinstance(raw, str):
        raw = [part for part in raw.strip("[]() ").split(",") if part.strip()]
        raw = [part.strip() for part in raw]
    elif isinstance(raw, (int, float)) and not isinstance(raw, bool):
        raw = [raw]
    if not isinstance(raw, (list, tuple)):
        raise TypeError
    if hints[-1] is Ellipsis:
        return tuple(_coerce(hints[0], r) for r in raw)
    if len(raw) != len(hints):
        raise ValueError
    return tuple(_coerce(h, r) for h, r in zip(hints, raw, strict=True))


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _describe(hint: Any) -> str:
    parts = (
        [h for h in get_args(hint) if h is not type(None)] if get_origin(hint) in (Union, types.UnionType) else [hint]
    )
    return " or ".join(describe_one(h) for h in parts)


def describe_one(hint: Any) -> str:
    """A type in words: ``two numbers such as 0.5,1.5``."""
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        word = {float: "numbers", int: "whole numbers"}.get(inner[0], "names")
        return f"a list of {word}" if inner[-1] is Ellipsis else f"two {word} such as 0.5,1.5"
    return _WORDS.get(hint, "a value")


def allowed(f: Field) -> str:
    """The permitted range or choices of a field in words, "" when anything of its type goes."""
    meta = f.metadata
    if meta["choices"]:
        return ", ".join(
            "none" if c == "" else str(c).lower() if isinstance(c, bool) else str(c) for c in meta["choices"]
        )
    low, high = (f"{v:g}" if isinstance(v, float) else v for v in (meta["low"], meta["high"]))
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"{low} or more" if low is not None else f"at most {high}" if high is not None else ""


def _mend(f: Field, hint: Any) -> str:
    return f"Use {allowed(f) or _describe(hint)}."
