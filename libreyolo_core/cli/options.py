"""Options of commands: described once, derived from the argument dataclasses of ``libreyolo_core.config``.

The same descriptions serve the parser, ``--help``, ``--help --json`` and the tables of the documentation. Values stay
the text that was typed: conversion and its errors belong to ``config``.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Union, get_args, get_origin

from libreyolo_core.conversion import allowed, convert, describe_one
from libreyolo_core.errors import ConfigError, UsageError, nearest

VALUE, SWITCH, SWITCH_OR_VALUE = "value", "switch", "switch or value"
TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")


@dataclass(frozen=True)
class Option:
    """One option as a user sees it.

    Args:
        name: as in ``name=value``; ``--name value`` and ``--na-me value`` mean the same.
        help: one sentence or two.
        takes: ``value``, ``switch`` (true or false; ``--name`` and ``--no-name`` too) or ``switch or value``.
        type: the value's type in words.
        allowed: its range or choices in words, "" when anything of its type goes.
        default: in words, "" when the help says it or the option is required.
        section: heading under which the help lists it.
        required: listed as required; the error is the command's own, which knows the exceptions.
        example: a value that makes sense.
        repeatable: may be given several times.
    """

    name: str
    help: str
    takes: str = VALUE
    type: str = "text"
    allowed: str = ""
    default: str = ""
    section: str = "Options"
    required: bool = False
    example: str = ""
    repeatable: bool = False

    def facts(self) -> str:
        """Range and default in one phrase: ``1 or more; default: the family's``."""
        kind = "" if self.takes == SWITCH or self.type == "text" else self.type
        default = f"default: {self.default}" if self.default else ""
        return "; ".join(p for p in (self.allowed or kind, default) if p)


def options_of(kind: type) -> tuple[Option, ...]:
    """The options of an argument dataclass, in its order, without those that only Python can give."""
    hints = typing.get_type_hints(kind)
    return tuple(_option(f, hints[f.name]) for f in fields(kind) if not f.metadata["python_only"])


def check_values(kind: type, given: Mapping[str, str], *, verb: str, complete: bool = True) -> None:
    """Convert every given value once, so that a mistake is an error before anything heavy is imported.

    Args:
        complete: whether a required argument that is absent is an error too.

    Raises:
        ConfigError: as ``config`` words it.
    """
    hints = typing.get_type_hints(kind)
    for f in fields(kind):
        if f.name in given:
            convert(f, hints[f.name], given[f.name], where=f"{verb} argument {f.name}")
        elif complete and f.default is MISSING:
            example = f"{f.name}={f.metadata['example'] or '...'}"
            raise ConfigError(f"{f.name}= is missing", where=verb, mend=f"Give it, e.g. {example}.")


def read(tokens: Sequence[str], options: Mapping[str, Option], *, verb: str) -> tuple[dict[str, Any], list[str]]:
    """Options and plain words of a command line.

    Args:
        tokens: what stands after the command's name.
        options: the command's options by name.
        verb: the command, for messages.

    Returns:
        The given values by option name (text; a list of texts for a repeatable option), and the words that belong to
        no option, in order.

    Raises:
        UsageError: an unknown option, one without its value, one given twice.
    """
    values: dict[str, Any] = {}
    words: list[str] = []
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if token == "--":
            words += rest
            break
        option, value = _read_one(token, rest, options, verb)
        if option is None:
            words.append(token)
        elif option.repeatable:
            values.setdefault(option.name, []).append(value)
        elif option.name in values:
            raise UsageError(
                f"{option.name} is given twice: {values[option.name]} and {value}", where=verb, mend="Give it once."
            )
        else:
            values[option.name] = value
    return values, words


def asks(tokens: Sequence[str], switch: str) -> bool:
    """Whether a switch is on, in a command line that may be too wrong to be read."""
    on = ("true", "yes", "on", "1")
    forms = {f"--{switch}", *(f"{dashes}{switch}={word}" for dashes in ("", "--") for word in on)}
    return any(token.lower() in forms for token in tokens)


def _read_one(
    token: str, rest: list[str], options: Mapping[str, Option], verb: str
) -> tuple[Option, str] | tuple[None, str]:
    """The option that ``token`` starts and its value, which may be taken from ``rest``; (None, "") for a plain word."""
    if token in ("-h", "--help"):
        return options["help"], "true"
    dashed = token.startswith("--")
    if dashed:
        name, equals, value = token[2:].partition("=")
    elif re.match(r"[A-Za-z_][\w-]*=", token):
        name, equals, value = token.partition("=")
    elif token.startswith("-") and len(token) > 1 and not _is_number(token):
        raise _unknown(token, token[1:], options, verb)
    else:
        return None, ""
    key = name.replace("-", "_")
    option = options.get(key)
    if option is None:
        negated = options.get(key.removeprefix("no_")) if dashed and key.startswith("no_") and not equals else None
        if negated is None or negated.takes == VALUE:
            raise _unknown(token.partition("=")[0], key, options, verb)
        return negated, "false"
    if equals:
        return option, value
    following = rest[0] if rest else None
    if option.takes == SWITCH:
        return option, rest.pop(0) if following is not None and following.lower() in TRUTH else "true"
    if following is None or following.startswith("--") or (option.takes == SWITCH_OR_VALUE and _is_option(following)):
        if option.takes == SWITCH_OR_VALUE:
            return option, "true"
        example = option.example or "VALUE"
        raise UsageError(
            f"{token} has no value", where=verb, mend=f"Write {token} {example} or {option.name}={example}."
        )
    return option, rest.pop(0)


def _is_option(token: str) -> bool:
    return token.startswith("-") or re.match(r"[A-Za-z_][\w-]*=", token) is not None


def _is_number(token: str) -> bool:
    return re.fullmatch(r"-\d*\.?\d+(e[+-]?\d+)?", token) is not None


def _unknown(shown: str, key: str, options: Mapping[str, Option], verb: str) -> UsageError:
    close = nearest(key, options)
    mend = f"Did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    return UsageError(f"Unknown option {shown!r}", where=verb, mend=f"{mend}All options: {verb} --help.")


def _option(f: Field[Any], hint: Any) -> Option:
    meta = f.metadata
    kinds = _members(hint)
    takes = VALUE if bool not in kinds else SWITCH if len(kinds) == 1 else SWITCH_OR_VALUE
    says_default = "default:" in meta["help"]
    range_ = allowed(f)
    if meta["also"]:
        range_ += f", or {', '.join(str(a) for a in meta['also'])}"
    return Option(
        name=f.name,
        help=meta["help"],
        takes=takes,
        type="true or false" if takes == SWITCH else " or ".join(describe_one(k).removeprefix("a ") for k in kinds),
        allowed="" if takes == SWITCH else range_,
        default="" if says_default or f.default is MISSING else _default_in_words(f.default),
        section="Required" if f.default is MISSING else _section(meta["path"]),
        required=f.default is MISSING,
        example=meta["example"],
    )


def _members(hint: Any) -> list[Any]:
    """The types of a union but for ``None``; of any other hint, itself."""
    union = get_origin(hint) in (Union, types.UnionType)
    return [h for h in get_args(hint) if h is not type(None)] if union else [hint]


def _default_in_words(default: Any) -> str:
    if default is None:
        return "the family's"
    if default == "":
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(str(d) for d in default) if isinstance(default, tuple) else str(default)


def _section(path: str) -> str:
    root = path.partition(".")[0]
    return {"recipe": "Recipe", "augment": "Augmentation"}.get(root, "Options")
