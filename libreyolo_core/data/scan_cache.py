"""Keeps a finished scan in the cache directory, as arrays and JSON (nothing in it can run code)."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.checkpoint.atomic import replacing
from libreyolo_core.data.download import cache_dir
from libreyolo_core.data.labels import Fault
from libreyolo_core.data.scan_result import ImageRecord, Scan
from libreyolo_core.errors import LibreYOLOError

if TYPE_CHECKING:
    from libreyolo_core.data.catalogue import DataSpec

log = logging.getLogger("libreyolo")
VERSION = 2
"""Raised when rules or layout change, so that older results are not used."""


def place(spec: DataSpec, split: str) -> Path:
    """The cache file of a split of a data set."""
    parts = [spec.task, split, str(spec.path), *map(str, spec.split(split).paths)]
    return cache_dir() / "scans" / (hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest() + ".npz")


def load(path: Path, stamp: str) -> Scan | None:
    """The scan kept there, if nothing changed since; ``stamp`` is ``files.fingerprint`` of everything involved."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            facts = json.loads(bytes(kept["facts"]).decode())
            if facts["stamp"] != stamp:
                return None
            boxes, labels, crowd, areas, pixels = (kept[k] for k in ("boxes", "labels", "crowd", "areas", "pixels"))
            sizes, ends = kept["sizes"].tolist(), kept["ends"].tolist()
        rows = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)] if ends else []
        images = [
            ImageRecord(p, tuple(s), boxes[r], labels[r], crowd[r] if crowd[r].any() else None, areas[r] if a else None)
            for p, s, r, a in zip(facts["paths"], sizes, rows, facts["has_areas"], strict=True)
        ]
        for record, layers in zip(images, facts["layers"], strict=True):
            record.layers = layers
        for record, row in zip(images, pixels):  # no rows where there are no masks
            record.pixels = row
        if facts["task"] == "classify":
            for i, record in enumerate(images):
                record.boxes, record.labels = np.zeros((0, 4), np.float32), labels[i : i + 1]
        categories = facts["category_ids"]
        return Scan(
            facts["split"],
            images,
            {int(i): n for i, n in facts["names"].items()},
            [Fault(*f) for f in facts["faults"]],
            facts["task"],
            facts["where"],
            None if categories is None else {int(i): n for i, n in categories.items()},
            facts["image_ids"],
            facts["looked_for"],
            facts["label_paths"],
        )
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with a cache file, scanning again mends it
        log.warning("the kept scan %s cannot be used (%s); scanning again", path, error)
        return None


def save(path: Path, stamp: str, found: Scan) -> None:
    """Keep a scan; a cache directory that cannot be written costs only time, and is named."""
    images = found.images
    labels = [r.labels for r in images]
    facts = {
        "stamp": stamp,
        "split": found.split,
        "task": found.task,
        "where": found.where,
        "names": found.names,
        "category_ids": found.category_ids,
        "image_ids": found.image_ids,
        "looked_for": found.looked_for,
        "label_paths": found.label_paths,
        "paths": [r.path for r in images],
        "layers": [r.layers for r in images],
        "has_areas": [r.areas is not None for r in images],
        "faults": [(f.kind, f.path, f.line, f.detail) for f in found.faults],
    }
    arrays = {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        "sizes": np.array([r.size for r in images], dtype=np.int64).reshape(-1, 2),
        "ends": np.cumsum([len(x) for x in labels], dtype=np.int64),
        "labels": _joined(labels, (0,), np.int64),
        "boxes": _joined([r.boxes for r in images], (0, 4), np.float32),
        "crowd": _joined([_or(r.crowd, r.labels, bool) for r in images], (0,), bool),
        "pixels": np.array([r.pixels for r in images if r.pixels is not None], dtype=np.int64),
        "areas": _joined([_or(r.areas, r.labels, np.float32) for r in images], (0,), np.float32),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        with replacing(path) as file:
            file.write(packed.getvalue())
    except (OSError, LibreYOLOError) as error:
        log.warning("the scan of the %s split is not kept and will run again: %s", found.split, error)


def _or(values: np.ndarray | None, labels: np.ndarray, kind: Any) -> np.ndarray:
    return np.zeros(len(labels), kind) if values is None else values


def _joined(parts: Sequence[np.ndarray], empty: tuple[int, ...], kind: Any) -> np.ndarray:
    return np.concatenate([np.zeros(empty, kind), *parts]).astype(kind)
