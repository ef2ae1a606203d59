"""Where the randomness of the data comes from: counter-based generators keyed by what is asked for, no global state."""

from __future__ import annotations

import numpy as np

from libreyolo_core.draw import key

_ORDER = 1 << 62  # far from any position in an augmentation list


def keyed(draw: int, stream: int) -> np.random.Generator:
    """Philox (Salmon et al., 2011) for a sample's key, ``draw.key(seed, epoch, index)``, and a stream number, e.g. an
    augmentation's position in the list. Different keys and streams are independent."""
    return np.random.Generator(np.random.Philox(key=np.array([draw, stream], dtype=np.uint64)))


def epoch_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order int64 [count] in which an epoch visits the samples."""
    return keyed(key(seed, epoch), _ORDER).permutation(count)
