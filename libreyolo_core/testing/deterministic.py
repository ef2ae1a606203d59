"""Weights, images and sample positions that are pure functions of a name.

They let two implementations of one network be compared without shipping a checkpoint: each fills its state dict with
``tensor_for(key, shape)``, and a reference file then needs only a few sampled outputs.
"""

from __future__ import annotations

import math
import zlib

import numpy as np


def generator(name: str) -> np.random.Generator:
    """A Philox generator keyed by the CRC-32 of ``name``; the same on every platform."""
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode("utf-8"))))


def tensor_for(name: str, shape: tuple[int, ...], gain: float = 1.0) -> np.ndarray:
    """The float32 value of the state-dict entry ``name``: variances in [0.8, 1.2], small means and biases, norm scales
    near 1, and weights with standard deviation ``gain / sqrt(fan_in)``."""
    rng = generator(name)
    leaf = name.rpartition(".")[2]
    if leaf == "running_var":
        out = rng.uniform(0.8, 1.2, size=shape)
    elif leaf == "running_mean":
        out = rng.standard_normal(size=shape) * 0.1
    elif len(shape) > 1:
        out = rng.standard_normal(size=shape) * (gain / math.sqrt(max(1, math.prod(shape[1:]))))
    elif len(shape) == 1 and leaf.endswith("weight"):
        out = 1.0 + 0.1 * rng.standard_normal(size=shape)
    else:
        out = 0.05 * rng.standard_normal(size=shape)
    return np.asarray(out, dtype=np.float32)


def image_for(seed: str, shape: tuple[int, int, int, int]) -> np.ndarray:
    """A smooth float32 image batch in [0, 1], shape (N, 3, H, W): six sine waves per channel, keyed by ``seed``."""
    n, channels, height, width = shape
    rng = generator("image:" + seed)
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    out = np.zeros(shape, dtype=np.float64)
    for plane in out.reshape(n * channels, height, width):
        for _ in range(6):
            fx, fy = rng.uniform(0.5, 9), rng.uniform(0.5, 9)
            phase, amplitude = rng.uniform(0, 6.283), rng.uniform(0.2, 1)
            plane += amplitude * np.sin(2 * np.pi * (fx * x + fy * y) + phase)
    out -= out.min()
    out /= max(out.max(), 1e-9)
    return out.astype(np.float32)


def sample_indices(name: str, size: int, count: int = 64) -> np.ndarray:
    """Which flat positions of an array of ``size`` elements a reference file records."""
    if size <= count:
        return np.arange(size)
    return np.sort(generator("sample:" + name).choice(size, size=count, replace=False))
