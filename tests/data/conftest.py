"""Small data sets made on the spot; nothing is written outside the test's own folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from semantic_sets import NAMES, SIZE, blocks, scan


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LIBREYOLO_CACHE", str(folder))
    return folder


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A photo-like uint8 RGB array without sharp edges."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(30, 226, (3, 4, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def smooth_photo():
    return smooth


@pytest.fixture
def write_photo():
    def write(path: Path, height: int = 48, width: int = 64, seed: int = 0, **options) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth(height, width, seed)).save(path, **options)
        return path

    return write


@pytest.fixture
def detect_set(tmp_path, write_photo):
    """``make(train=[label text, ...], val=[...], names=[...])`` writes images, labels and a YAML; returns its path."""

    def make(train=("0 0.5 0.5 0.5 0.5\n",), val=("0 0.5 0.5 0.5 0.5\n",), names=("cat", "dog"), folder="set", **extra):
        root = tmp_path / folder
        for split, labels in (("train", train), ("val", val)):
            (root / "images" / split).mkdir(parents=True, exist_ok=True)
            (root / "labels" / split).mkdir(parents=True, exist_ok=True)
            for i, text in enumerate(labels):
                write_photo(root / "images" / split / f"{i:03d}.png", 40 + 8 * (i % 3), 64 - 8 * (i % 2), seed=i)
                if text is not None:
                    (root / "labels" / split / f"{i:03d}.txt").write_text(text)
        values = {"path": ".", "train": "images/train", "val": "images/val", "names": list(names), **extra}
        path = root / "data.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
        return path

    return make


@pytest.fixture
def class_set(tmp_path, write_photo):
    """A folder with ``train`` and ``val`` of two classes, ``count`` photos each."""

    def make(count=4, size=(60, 80)):
        for split in ("train", "val"):
            for c, name in enumerate(("cat", "dog")):
                for i in range(count):
                    write_photo(tmp_path / "classes" / split / name / f"{i}.jpg", *size, seed=10 * c + i)
        return tmp_path / "classes"

    return make


GOOD = (blocks(),)


@pytest.fixture
def mask_set(tmp_path, write_photo):
    """``make(train=[mask array, Image or None, ...])`` writes photos of 40 x 64, masks and a YAML; returns its path."""

    def make(train=GOOD, val=GOOD, names=NAMES, folder="set", masks="masks", **extra):
        root = tmp_path / folder
        for split, found in (("train", train), ("val", val)):
            (root / masks / split).mkdir(parents=True, exist_ok=True)
            for i, mask in enumerate(found):
                write_photo(root / "images" / split / f"{i:03d}.jpg", *SIZE, seed=i)
                if mask is not None:
                    image = Image.fromarray(mask) if isinstance(mask, np.ndarray) else mask
                    image.save(root / masks / split / f"{i:03d}.png")
        values = {"path": ".", "train": "images/train", "val": "images/val", "names": names, **extra}
        path = root / "data.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}, sort_keys=False))
        return path

    return make


@pytest.fixture
def painted(mask_set, smooth_photo):
    """Photos painted by their masks, some larger and some smaller than the input: value 60 c + 30, ignored 240."""
    path = mask_set(train=[blocks()] * 5)
    for i in range(5):
        height, width = ((40, 64), (160, 220), (90, 50), (33, 47), (300, 200))[i]
        rng = np.random.default_rng(i)
        coarse = rng.integers(0, 4, (3, 4))
        mask = coarse.repeat(height // 3 + 1, 0).repeat(width // 4 + 1, 1)[:height, :width].astype(np.uint8)
        mask[mask == 3] = 255
        photo = np.where(mask == 255, 240, mask * 60 + 30).astype(np.uint8)
        Image.fromarray(np.stack([photo] * 3, axis=2)).save(path.parent / f"images/train/{i:03d}.png")
        (path.parent / f"images/train/{i:03d}.jpg").unlink()
        Image.fromarray(mask).save(path.parent / f"masks/train/{i:03d}.png")
    return scan(path)
