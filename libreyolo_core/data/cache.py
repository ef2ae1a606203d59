"""Decoded photos kept in memory or on the disk, already shrunk to the training canvas.

A cache is filled in the main process before any worker starts and only read afterwards. ``ram`` is one block of shared
memory, ``disk`` one memory-mapped file in the cache directory; worker processes share either. What they hold is exactly
what decoding gives, so results are the same with and without.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from libreyolo_core.checkpoint.atomic import replacing
from libreyolo_core.data.download import cache_dir
from libreyolo_core.data.files import fingerprint
from libreyolo_core.errors import ConfigError, ImageError, LibreYOLOError

log = logging.getLogger("libreyolo")

KINDS = ("ram", "disk")
SPARE = 0.1
"""Share of the free memory or disk that a cache leaves alone."""
Reader = Callable[[int], np.ndarray]


class PhotoCache:
    """Photos by index, as views of one block of bytes.

    Args:
        shapes: (height, width) of every photo as kept.
        channels: 3, or 1 for maps uint8 [h, w].
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], channels: int = 3) -> None:
        self.shapes, self.channels = np.array(shapes, dtype=np.int64).reshape(-1, 2), channels
        ends = np.cumsum(self.shapes.prod(axis=1) * channels)
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])
        self.there = np.zeros(len(self.shapes), dtype=bool)

    @property
    def size(self) -> int:
        """Bytes of all photos."""
        return int(self.starts[-1])

    def block(self) -> np.ndarray:
        """All bytes, uint8 [size]."""
        raise NotImplementedError

    def get(self, index: int) -> np.ndarray | None:
        """A read-only photo uint8 [h, w, 3] or map [h, w]; ``None`` if it was unreadable when the cache was filled."""
        if not self.there[index]:
            return None
        view = self._slot(self.block(), index)
        view.flags.writeable = False
        return view

    def _slot(self, block: np.ndarray, index: int) -> np.ndarray:
        start, end = self.starts[index], self.starts[index + 1]
        shape = self.shapes[index].tolist()
        return block[start:end].reshape(shape if self.channels == 1 else (*shape, self.channels))

    def _fill(self, block: np.ndarray, read: Reader) -> None:
        def put(index: int) -> bool:
            try:
                self._slot(block, index)[...] = read(index)
            except (ImageError, OSError):  # the data set meets it again, and names it
                return False
            return True

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            self.there[:] = list(pool.map(put, range(len(self.shapes))))


class RamCache(PhotoCache):
    """One block of shared memory, gone with the last process that uses it."""

    def __init__(self, shapes: Sequence[tuple[int, int]], read: Reader, channels: int = 3) -> None:
        super().__init__(shapes, channels)
        self._memory = torch.empty(max(1, self.size), dtype=torch.uint8).share_memory_()
        self._fill(self.block(), read)

    def block(self) -> np.ndarray:
        return self._memory.numpy()


class DiskCache(PhotoCache):
    """One file ``<data set>-<content>.bin`` under the cache directory; an older content's file is replaced."""

    def __init__(self, shapes: Sequence[tuple[int, int]], read: Reader, path: Path, channels: int = 3) -> None:
        super().__init__(shapes, channels)
        self.path = path
        self._map: np.ndarray | None = None
        index = path.with_suffix(".npy")
        if path.is_file() and index.is_file() and path.stat().st_size == max(1, self.size):
            self.there = np.load(index, allow_pickle=False)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            block = np.memmap(aside, np.uint8, "w+", shape=(max(1, self.size),))
            self._fill(block, read)
            block.flush()
            with replacing(index) as file:
                file.write(_npy(self.there))
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        for other in path.parent.glob(f"{path.name.split('-')[0]}-*"):
            if other.suffix in (".bin", ".npy") and other.stem != path.stem:
                other.unlink(missing_ok=True)

    def block(self) -> np.ndarray:
        if self._map is None:
            self._map = np.memmap(self.path, np.uint8, "r")
        return self._map

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_map": None}


def _npy(array: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()


def make_cache(
    kind: str,
    paths: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    read: Reader,
    *facts: object,
    channels: int = 3,
    what: str = "photos",
) -> PhotoCache | None:
    """A filled cache, or ``None`` with a log line where there is no room for it.

    Args:
        kind: ``ram`` or ``disk``.
        paths: the photos' files.
        shapes: (height, width) that ``read`` returns for each.
        read: decodes and shrinks the photo of an index.
        facts: whatever else decides what ``read`` returns.
        channels: of what ``read`` returns, 3 or 1 (then [h, w]).
        what: how log lines name the files.
    """
    if kind not in KINDS:
        raise ConfigError(f"cache={kind!r} is unknown", where="argument cache", mend="Use cache=ram or cache=disk.")
    need = sum(channels * h * w for h, w in shapes)
    free, where = _free_memory() if kind == "ram" else _free_disk()
    if need > free * (1 - SPARE):
        other = "cache=disk" if kind == "ram" else "a larger disk (LIBREYOLO_CACHE chooses the folder)"
        log.warning(
            "cache=%s is not used: %d %s take %.1f GB, %s has %.1f GB free. They are decoded every time; %s helps.",
            *(kind, len(paths), what, need / 1e9, where, free / 1e9, other),
        )
        return None
    log.info("caching %d %s in %.2f GB (cache=%s)", len(paths), what, need / 1e9, kind)
    if kind == "ram":
        return RamCache(shapes, read, channels)
    data_set = hashlib.blake2b(repr((sorted(paths), facts)).encode(), digest_size=8).hexdigest()
    name = f"{data_set}-{fingerprint(paths, list(shapes), facts)}.bin"
    try:
        return DiskCache(shapes, read, cache_dir() / "photos" / name, channels)
    except (OSError, LibreYOLOError) as error:
        log.warning("cache=disk is not used: %s. The %s are decoded every time.", error, what)
        return None


def _free_memory() -> tuple[float, str]:
    """Bytes that shared memory may take, and what limits it."""
    free, where = float("inf"), "memory"
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024.0 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        free = _physical_memory()
    if os.path.isdir("/dev/shm"):
        shared = float(shutil.disk_usage("/dev/shm").free)
        if shared < free:
            return shared, "/dev/shm (in a container, --shm-size sets it)"
    return free, where


def _physical_memory() -> float:
    """Half of what is installed, where the system does not say what is free."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _free_disk() -> tuple[float, str]:
    folder = cache_dir()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    return float(shutil.disk_usage(existing).free), str(folder)
