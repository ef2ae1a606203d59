"""Reading a ``profile.json`` that may have been copied from anywhere. Imports neither torch nor numpy."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libreyolo_core.errors import ProfileError

SCHEMA = "libreyolo.profile/1"
"""What a profile calls its own layout: a name and a number that rises when older readers would misread it."""
FILE_NAME = "profile.json"
FIELDS: dict[str, type] = {
    "run": dict,
    "window": dict,
    "steps": list,
    "numbers": dict,
    "phases": list,
    "verdict": dict,
    "kernels": list,
    "ops": list,
}
"""Fields that every profile has, and their types. ``lanes`` and ``names`` are missing from a summary."""
ROWS: dict[str, tuple[str, ...]] = {
    "phases": ("name", "us_per_step", "share"),
    "kernels": ("name", "count", "total_us", "mean_us", "max_us"),
    "ops": ("name", "count", "total_us", "self_us", "mean_us"),
}
"""Fields of each row of a list."""
VALUES: dict[str, tuple[str, ...]] = {
    "run": ("model", "task", "imgsz", "batch", "precision", "device", "device_name", "workers", "cache"),
    "window": ("warmup", "plain", "bracketed"),
    "numbers": (
        "step_us",
        "wait_us",
        "wait_share",
        "images_per_s",
        "busy_us_per_step",
        "utilisation",
        "kernels_per_step",
        "kernel_mean_us",
        "peak_memory_bytes",
        "overhead_us_per_step",
    ),
    "verdict": ("name", "reason"),
}
"""What the report cannot do without. On a CPU it also names ``threads`` and ``cores`` of the run."""


def load_profile(path: str | Path) -> dict[str, Any]:
    """Read a profile, or the summary of one.

    Args:
        path: the file, also gzipped, or the folder of a run that holds ``profile.json``.

    Returns:
        The profile as it was written; times are in microseconds.

    Raises:
        ProfileError: no such file; not JSON, or cut off; a trace, a combination of trials or something else; written by
            a later version; a field missing or of the wrong type.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    document = _document(path)
    _check_kind(document, path)
    for name, kind in FIELDS.items():
        if not isinstance(document.get(name), kind):
            raise _damaged(path, f"its field {name} is missing or of the wrong type")
    _check_values(document, path)
    for name, needed in ROWS.items():
        for row in document[name]:
            _check_row(row, needed, name, path)
    return document


def _document(path: Path) -> Any:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError as error:
        raise ProfileError(
            f"{path} does not exist",
            where="profile",
            mend=f"Give the {FILE_NAME} of a run with profile=true, or make one: libreyolo profile run --help.",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProfileError(f"{path} cannot be read: {reason}", where="profile", mend="Check the file.") from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        place = f"character {error.pos}" if isinstance(error, json.JSONDecodeError) else "its encoding"
        why = "it is empty" if not data.strip() else f"it is not JSON ({place})"
        raise _damaged(path, why) from error


def _check_kind(document: Any, path: Path) -> None:
    """Say what a file is that is not a profile."""
    known = document if isinstance(document, Mapping) else {}
    if isinstance(document, list) or "traceEvents" in known:
        raise ProfileError(
            f"{path} is a trace, not a profile",
            where="profile",
            mend=f"Give the {FILE_NAME} beside it; a trace itself can be given to profile kernels and profile ops.",
        )
    schema = str(known.get("schema", ""))
    family, _, number = schema.partition("/")
    ours, _, highest = SCHEMA.partition("/")
    if family == ours and number.isdigit():
        if int(number) > int(highest):
            written = known.get("libreyolo", "a later version")
            raise ProfileError(
                f"{path} has layout {schema}, and this version reads up to {SCHEMA}",
                where="profile",
                mend=f"It was written by LibreYOLO {written}: pip install --upgrade libreyolo-core.",
            )
        return
    if "trials" in known:
        raise ProfileError(
            f"{path} combines several trials",
            where="profile",
            mend=f"Give the {FILE_NAME} of one of them, such as prof_1/{FILE_NAME}.",
        )
    raise ProfileError(
        f"{path} is not a profile: it has " + (f"schema {schema!r}" if schema else "no schema"),
        where="profile",
        mend=f"Give the {FILE_NAME} that a run with profile=true leaves in its folder.",
    )


def _check_values(document: dict[str, Any], path: Path) -> None:
    host = ("threads", "cores") if document["run"].get("device") == "cpu" else ()
    for name, needed in {**VALUES, "run": (*VALUES["run"], *host)}.items():
        for key in needed:
            if document[name].get(key) is None:
                raise _damaged(path, f"{name} has no {key}")
    numeric = [("window", k) for k in VALUES["window"]] + [("numbers", k) for k in document["numbers"]]
    for name, key in numeric:
        value = document[name][key]
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise _damaged(path, f"{key} of {name} is {value!r}, not a number")
    if not isinstance(document["verdict"].get("levers", []), list):
        raise _damaged(path, "the levers of its verdict are no list")


def _check_row(row: Any, needed: tuple[str, ...], name: str, path: Path) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise _damaged(path, f"a row of {name} has no name")
    for key in needed[1:]:
        if isinstance(row.get(key), bool) or not isinstance(row.get(key), (int, float)):
            raise _damaged(path, f"{key} of {row['name']!r} in {name} is {row.get(key)!r}, not a number")


def _damaged(path: Path, why: str) -> ProfileError:
    return ProfileError(f"{path} is damaged: {why}", where="profile", mend="Copy it again, or profile again.")
