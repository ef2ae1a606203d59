"""Which image files a split consists of, and stamps that tell whether any file changed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from libreyolo_core.data.catalogue import Source
from libreyolo_core.data.decode import SUFFIXES
from libreyolo_core.errors import DataError

YOUNG_S = 2.0
"""A file changed more recently than this gets its content into its stamp: clocks of file systems are too coarse."""


def is_image(path: str | os.PathLike[str]) -> bool:
    """Whether a file's ending is that of an image format, in either case; hidden files are none."""
    name = os.path.basename(path)
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES


def list_images(source: Source, root: Path) -> list[str]:
    """Absolute paths of the images of a split, sorted within each folder, in order of the lists; each path once.

    Args:
        source: folders, image files and ``.txt`` lists.
        root: the data set's folder, for relative lines of lists.

    Raises:
        DataError: a folder or list that cannot be read.
    """
    found: dict[str, None] = {}
    for path in source.paths:
        if path.is_dir():
            found.update(dict.fromkeys(_in_folder(path)))
        elif path.suffix.lower() == ".txt":
            found.update(dict.fromkeys(_in_list(path, root, source.where)))
        elif is_image(path):
            found[str(path)] = None
        else:
            raise DataError(
                f"{path} is neither a folder nor a .txt list",
                where=source.where,
                mend="Give one of those, or an image.",
            )
    return list(found)


def _in_folder(folder: Path) -> list[str]:
    """Images anywhere below a folder; links to folders are followed once."""
    found: list[str] = []
    visited: set[str] = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [f for f in folders if not f.startswith(".")]
        found.extend(os.path.join(where, name) for name in files if is_image(name))
    return sorted(found)


def _in_list(path: Path, root: Path, where: str) -> list[str]:
    """The lines of a list; relative ones are beside the list if they are there, else under the data set's folder."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", where=where, mend="Check the path.") from None
    found = []
    for line in text.splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        entry = entry.replace("\\", "/") if os.sep == "/" else entry
        if os.path.isabs(entry):
            found.append(os.path.normpath(entry))
            continue
        beside = os.path.normpath(path.parent / entry)
        found.append(beside if os.path.exists(beside) else os.path.normpath(root / entry))
    return found


def fingerprint(paths: Iterable[str], *facts: object) -> str:
    """A hash of sizes and times of all files (a missing one counts as missing) and of ``facts``."""
    now = time.time()
    digest = hashlib.blake2b(digest_size=20)
    digest.update(repr(facts).encode())
    for path in paths:
        digest.update(_stamp(path, now))
    return digest.hexdigest()


def _stamp(path: str, now: float) -> bytes:
    try:
        state = os.stat(path)
        text = f"{path}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_ctime_ns}\n"
        if now - max(state.st_mtime, state.st_ctime) < YOUNG_S:
            text += hashlib.blake2b(Path(path).read_bytes()).hexdigest()
    except OSError:
        text = f"{path}\0absent\n"
    return text.encode(errors="surrogateescape")
