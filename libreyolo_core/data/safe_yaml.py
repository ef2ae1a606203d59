"""Reading YAML that a stranger wrote: bounded, without code, and with the line of every key for error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from libreyolo_core.errors import DataError

MAX_BYTES = 4 << 20
"""Larger than any list of class names; 21,000 classes take half a megabyte."""
MAX_NODES = 200_000
"""Values after aliases are expanded."""


def load_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """A YAML mapping and the line of each of its top-level keys.

    Raises:
        DataError: unreadable, too large, not YAML, not a mapping, a key twice, a tag that would run code, or aliases
            that expand to more than ``MAX_NODES`` values.
    """
    return parse_yaml(_read(path), str(path))


def parse_yaml(text: str, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """As ``load_yaml``, from text; ``where`` names it in errors."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise DataError("The file is no mapping of keys to values", where=where, mend="Begin with 'train: ...'.")
        if _expanded(root, {}, ()) > MAX_NODES:
            raise DataError(
                f"Its aliases expand to more than {MAX_NODES:,} values", where=where, mend="Write the values out."
            )
        lines = _key_lines(root, where)
        values = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DataError(
            f"The YAML cannot be read: {error.problem or error.context}",
            where=f"{where}, line {mark.line + 1}" if mark else where,
            mend="Correct that line; indent with blanks, not tabs, and quote text with special characters.",
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        raise DataError(
            f"The YAML cannot be read: {reason}", where=where, mend="Write it as plain keys and values."
        ) from None
    finally:
        loader.dispose()
    return values, lines


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}", where="data", mend="Check the path and its permissions."
        ) from None
    if len(data) > MAX_BYTES:
        raise DataError(
            f"{path} is larger than {MAX_BYTES >> 20} MiB, so it is no data YAML",
            where="data",
            mend="Put lists of images in .txt files and name those.",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            "The file is not UTF-8 text", where=f"{path}, line {line}", mend="Save it with UTF-8 encoding."
        ) from None


def _expanded(node: yaml.Node, known: dict[int, int], open_nodes: tuple[int, ...]) -> int:
    """How many values a node has once every alias is written out; one visit per distinct node."""
    if id(node) in known:
        return known[id(node)]
    if id(node) in open_nodes:
        return MAX_NODES + 1  # an alias to something it is part of
    inside = (*open_nodes, id(node))
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    else:
        children = []
    known[id(node)] = 1 + sum(_expanded(child, known, inside) for child in children)
    return known[id(node)]


def _key_lines(root: yaml.MappingNode, where: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    for key, value in root.value:
        _no_key_twice(value, where)
        line = key.start_mark.line + 1
        if key.value in lines:
            raise _twice(key.value, where, line, lines[key.value])
        lines[str(key.value)] = line
    return lines


def _no_key_twice(node: yaml.Node, where: str) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if (key.tag, key.value) in seen:
                raise _twice(key.value, where, line, seen[(key.tag, key.value)])
            seen[(key.tag, key.value)] = line


def _twice(key: str, where: str, line: int, first: int) -> DataError:
    return DataError(
        f"The key {key!r} stands there twice", where=f"{where}, lines {first} and {line}", mend="Keep one of them."
    )
