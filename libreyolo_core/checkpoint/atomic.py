"""Files that are either complete or not there: written aside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from libreyolo_core.errors import CheckpointError, LibreYOLOError, TrainingError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Sink:
    """The temporary file while it is written. Keeps the operating system's own error, which writers in other
    languages replace by one of theirs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Append bytes."""
        return self._keep(self._file.write, data)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._keep(self._file.flush)

    def sync(self) -> None:
        """Wait until the bytes are on the disk, and close."""
        self.flush()
        self._keep(os.fsync, self._file.fileno())
        self._keep(self._file.close)

    def abandon(self) -> None:
        """Close whatever the state; what could not be written does not matter any more."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _keep(self, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Sink]:
    """A binary file that takes the place of ``path`` once the block ends without an exception.

    It is written next to ``path``, synced and renamed; after any failure (also a full disk, also Ctrl-C) what was at
    ``path`` before is intact and no temporary file is left. The mode follows the umask.

    Raises:
        TrainingError: the disk is full.
        CheckpointError: the folder is missing or cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        _remove_abandoned(target)
        aside = target.with_name(f"{_prefix(target)}{os.getpid()}.{secrets.token_hex(3)}.tmp")
        # not tempfile: it creates files with mode 0600, which nobody else could read after the rename
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise _failed(path, error) from error
    sink = Sink(os.fdopen(descriptor, "wb"))
    try:
        yield sink
        sink.sync()
        os.replace(aside, target)
    except BaseException as error:
        sink.abandon()
        aside.unlink(missing_ok=True)
        cause = sink.failure or (error if isinstance(error, OSError) else None)
        if cause is not None:
            raise _failed(path, cause) from error
        raise
    _sync_folder(target.parent)


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}.{platform.node()[:60]}."


def _remove_abandoned(target: Path) -> None:
    """Delete what writers of the same file on this machine left when they were killed."""
    if os.name != "posix":
        return
    for file in target.parent.glob(f"{_escape(_prefix(target))}*.tmp"):
        pid = file.name[len(_prefix(target)) :].partition(".")[0]
        if pid.isdigit() and not _alive(int(pid)):
            file.unlink(missing_ok=True)


def _escape(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _failed(path: str | Path, error: OSError) -> LibreYOLOError:
    if error.errno in _FULL:
        return TrainingError(
            f"{path} cannot be written: {error.strerror or 'the disk is full'}",
            where=f"folder {Path(path).parent}",
            mend="Free some space; what was at that path before is unharmed.",
        )
    return CheckpointError(
        f"{path} cannot be written: {error.strerror or error}",
        where=f"folder {Path(path).parent}",
        mend="Choose a folder that exists and may be written.",
    )
