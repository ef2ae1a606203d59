"""What commands print: an answer in words or as one JSON document, tables, and the guard that keeps stdout clean."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import PurePath
from typing import Any, TextIO

from libreyolo_core.launcher import launched


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self) -> str:
        """Columns aligned with blanks, for files and pipes."""
        lines = [self.headings, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        return "\n".join("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Args:
        document: for ``--json``: plain values, paths, dataclasses, and whatever has ``tolist``.
        text: the same in words, part by part.
        exit_code: 0 fine, 1 failed.
    """

    document: Any
    text: tuple[str | Table, ...] = ()
    exit_code: int = 0

    def show(self, *, as_json: bool) -> None:
        """Print to standard output; of a job that torchrun started, rank 0 does."""
        if launched() and os.environ["RANK"] != "0":
            return
        if as_json:
            print_json(self.document)
            return
        for part in self.text:
            if isinstance(part, str):
                print(part)
            elif sys.stdout.isatty():
                _show_on_terminal(part)
            else:
                print(part.plain())


def print_json(document: Any) -> None:
    """One JSON document on standard output. Escaped to ASCII, so that any path and any terminal will do."""
    print(json.dumps(plain(document), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """``value`` in the types of JSON. Not-a-number and infinity become null, which JSON has no word for."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "tolist"):  # numpy and torch, which are not imported here
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@contextlib.contextmanager
def stdout_goes_to_stderr() -> Iterator[None]:
    """Meanwhile everything written to standard output goes to standard error: prints, C libraries, child processes."""
    sys.stdout.flush()
    descriptor = _descriptor(sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):
        if descriptor is None or _descriptor(sys.stderr) is None:
            yield
            return
        saved = os.dup(descriptor)
        os.dup2(2, descriptor)
        try:
            yield
        finally:
            _flush_c_buffers()
            os.dup2(saved, descriptor)
            os.close(saved)


def setup_logging() -> None:
    """Send the library's log lines to standard error, unless the program has its own handlers."""
    log = logging.getLogger("libreyolo")
    log.setLevel(logging.INFO)
    if not any(isinstance(h, _StderrHandler) for h in log.handlers):
        handler = _StderrHandler()
        handler.setFormatter(_Plain())
        log.addHandler(handler)
    log.propagate = True


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is at the time, as tests and redirections replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


class _Plain(logging.Formatter):
    """The bare message; warnings and worse say so."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


def _descriptor(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, io.UnsupportedOperation, ValueError):
        return None


def _flush_c_buffers() -> None:
    """What C code printed may still be in its buffer, and must not reach standard output after the guard is gone."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)


def _show_on_terminal(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in table.headings:
        shown.add_column(heading, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown, markup=False)
