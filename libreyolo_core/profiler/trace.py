"""Chrome traces, the format that Perfetto and chrome://tracing open and torch.profiler exports: read one event at a
time, so that a file of any size takes the memory of a few megabytes, and written from lanes.

Source: "Trace Event Format" of the Chromium project (the JSON object format, and the JSON array format whose closing
bracket may be missing).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from libreyolo_core.errors import ProfileError
from libreyolo_core.profiler.activity import bounded

CHUNK = 1 << 20
"""Characters read at once: large enough that few events are cut at an end, small enough to stay in the cache."""
LONGEST_VALUE = 1 << 25
"""Characters of one event, or of one field before the events, beyond which the file counts as damaged."""
EVENT_LIMIT = 200_000
"""Events of hosts and devices that ``write_trace`` writes at most: about 20 MB."""
PROCESSES = {"steps": 0, "phases": 0, "host": 1, "device": 2}
"""Kind of lane -> process id in a trace, which viewers show as one group each, in this order."""
PROCESS_NAMES = ("training", "host", "device")

_DECODER = json.JSONDecoder(strict=False)
_BLANK = re.compile(r"\s*")
_GZIP = b"\x1f\x8b"


def events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a Chrome trace, in the order of the file, as they stand there (``ts`` and ``dur`` in us).

    Args:
        path: a JSON file, plain or gzipped.

    Raises:
        ProfileError: the file is missing, holds no trace, or is damaged; in the last case after the events before the
            damage.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            yield from _Reader(file, path).events()
    except (OSError, EOFError, zlib.error) as error:
        raise ProfileError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            where="trace file",
            mend="Check the path, or record the trace again.",
        ) from error


def is_trace(path: str | Path) -> bool:
    """Whether a file begins like a Chrome trace. A file that cannot be read does not."""
    try:
        return next(events(path), None) is not None
    except ProfileError:
        return False


def write_trace(
    path: str | Path,
    lanes: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    about: Mapping[str, Any] | None = None,
    limit: int = EVENT_LIMIT,
) -> int:
    """Write lanes as a Chrome trace for Perfetto, one thread per lane.

    Args:
        path: a ``.json`` file to write.
        lanes: ``{"name", "kind": "host"|"device"|"phases"|"steps", "events": [[begin_us, duration_us, index], ...]}``.
        names: what an event's index means.
        about: plain values kept in the file's ``otherData``.
        limit: events of hosts and devices to keep, the longest first.

    Returns:
        How many events were left out; also in the file, as ``otherData.events_dropped``.
    """
    kept, used, dropped = bounded([dict(lane) for lane in lanes], list(names), limit)
    with Path(path).open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        file.write(",\n".join(json.dumps(event) for event in _labels(kept)))
        for thread, lane in enumerate(kept):
            process = PROCESSES[lane["kind"]]
            for begin, duration, index in lane["events"]:
                file.write(
                    f',\n{{"ph": "X", "pid": {process}, "tid": {thread}, "ts": {begin:.3f}, "dur": {duration:.3f}, '
                    f'"name": {json.dumps(used[index])}, "cat": "{lane["kind"]}"}}'
                )
        file.write(f'],\n"otherData": {json.dumps({**(about or {}), "events_dropped": dropped})}}}\n')
    return dropped


def _labels(lanes: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The metadata events that give processes and threads their names and order."""
    used = sorted({PROCESSES[lane["kind"]] for lane in lanes})
    for process in used:
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": PROCESS_NAMES[process]}}
        yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for thread, lane in enumerate(lanes):
        place = {"ph": "M", "pid": PROCESSES[lane["kind"]], "tid": thread}
        yield {**place, "name": "thread_name", "args": {"name": lane["name"]}}
        yield {**place, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


class _Reader:
    """A window on the text that moves on as values are taken from it."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._at, self._before = "", 0, 0
        self._ended = False

    def events(self) -> Iterator[dict[str, Any]]:
        """Find the array of events and yield what is in it."""
        opening = self._peek()
        if opening == "[":
            yield from self._array(may_end_early=True)
        elif opening == "{":
            self._at += 1
            if not self._find("traceEvents"):
                raise self._no_trace("it has no traceEvents")
            yield from self._array(may_end_early=False)
        else:
            raise self._no_trace("it begins neither with { nor with [")

    def _array(self, *, may_end_early: bool) -> Iterator[dict[str, Any]]:
        if self._peek() != "[":
            raise self._no_trace("its traceEvents are no array")
        self._at += 1
        while (character := self._peek()) != "]":
            if character == "":
                if may_end_early:
                    return
                raise self._damaged("it ends among the events")
            value, self._at = self._value()
            if isinstance(value, dict):
                yield value
            if self._peek() == ",":
                self._at += 1
            elif self._peek() not in ("]", ""):
                raise self._damaged("a comma is missing")

    def _find(self, wanted: str) -> bool:
        """Move to the value of one key of the object around; whether there is such a key."""
        while self._peek() == '"':
            key, self._at = self._value()
            if self._peek() != ":":
                raise self._damaged("a colon is missing")
            self._at += 1
            if key == wanted:
                return True
            self._peek()
            _, self._at = self._value()
            if self._peek() == ",":
                self._at += 1
        return False

    def _value(self) -> tuple[Any, int]:
        """The value here and where it ends, reading on for as long as its end is not in the window."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._more():
                    raise self._damaged("this is not JSON") from error
            else:
                # a number may go on beyond the window; an object, array or string has its own end
                if end < len(self._text) or isinstance(value, (dict, list, str)) or not self._more():
                    return value, end
            if len(self._text) - self._at > LONGEST_VALUE:
                raise self._damaged(f"one value is longer than {LONGEST_VALUE >> 20} MB")

    def _peek(self) -> str:
        """The next character that is not blank, "" at the end."""
        while True:
            self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Move the window: forget what was taken, read on; False at the end of the file."""
        chunk = "" if self._ended else self._file.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not chunk
        self._before += self._at
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)

    def _no_trace(self, why: str) -> ProfileError:
        return ProfileError(
            f"{self._path} is not a Chrome trace: {why}",
            where="trace file",
            mend="Give the profile_trace.json of a profiled run, or what torch.profiler exported.",
        )

    def _damaged(self, why: str) -> ProfileError:
        return ProfileError(
            f"{self._path} is damaged near character {self._before + self._at}: {why}",
            where="trace file",
            mend="Copy it again, or record the trace again.",
        )
