"""Memory of a loader process, used again and again.

A canvas that is allocated for every sample is new memory each time: the system maps and clears its pages, and the
processor's caches know none of it. Kept memory stays mapped and warm.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading

import numpy as np

_kept = threading.local()
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3) of glibc
LARGEST_KEPT = 64 << 20
MOST_KEPT = 256 << 20
"""Bytes: a freed block up to the first size, and together up to the second, stay with a loader process."""


def scratch(use: str, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 array of ``shape`` whose content is arbitrary. It belongs to the caller until this thread asks again for
    the same ``use``; what outlives that must be copied."""
    size = math.prod(shape)
    buffers: dict[str, np.ndarray] = _kept.__dict__
    if use not in buffers or buffers[use].size < size:
        buffers[use] = np.empty(size, dtype=np.uint8)
    return buffers[use][:size].reshape(shape)


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees instead of giving pages back and asking for new ones with every
    batch. Does something with glibc; elsewhere allocators have rules of their own."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, MOST_KEPT)
