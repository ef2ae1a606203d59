"""The one scan of a data set: every image and label is checked once, what is wrong is dropped and reported.

``scan_detect`` (for points, too), ``scan_classify``, ``scan_semantic`` and ``scan_restore`` give a ``Scan``; ``check``
gives its findings as plain values. Results are cached in the cache directory until any file involved changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from libreyolo_core.data import scan_cache
from libreyolo_core.data.catalogue import DataSpec, load_data
from libreyolo_core.data.files import fingerprint
from libreyolo_core.data.labels import FAULTS, HARMLESS, Fault
from libreyolo_core.data.scan_jobs import JOBS, Look
from libreyolo_core.data.scan_result import SHOWN, ImageRecord, Scan
from libreyolo_core.errors import DataError, LibreYOLOError, UnknownNameError, suggestion
from libreyolo_core.registry import registry

Progress = Callable[[int, int], None]
__all__ = [
    "Fault",
    "ImageRecord",
    "Progress",
    "Scan",
    "check",
    "scan_classify",
    "scan_detect",
    "scan_restore",
    "scan_semantic",
]


def scan_detect(spec: DataSpec, split: str, *, strict: bool = False, progress: Progress | None = None) -> Scan:
    """Check the images and boxes of a split.

    Args:
        spec: what ``load_data`` found.
        split: ``train``, ``val`` or ``test``.
        strict: make every fault an error.
        progress: called with (images done, images in all).

    Raises:
        DataError: no such split, nothing usable in it, no box in it, or with ``strict`` any fault.
    """
    return _judged(_scan(spec, split, progress), strict)


def scan_classify(spec: DataSpec, split: str, *, strict: bool = False, progress: Progress | None = None) -> Scan:
    """Check the images of a split that has a folder per class; arguments and errors as ``scan_detect``."""
    return _judged(_scan(spec, split, progress), strict)


def scan_semantic(spec: DataSpec, split: str, *, strict: bool = False, progress: Progress | None = None) -> Scan:
    """Check the images and masks of a split; ``ImageRecord.layers["mask"]`` is the mask's file, or the label file it is
    drawn from, which ``masks.read_mask(path, size, scan.reading)`` reads. Arguments and errors as ``scan_detect``."""
    return _judged(_scan(spec, split, progress), strict)


def scan_restore(spec: DataSpec, split: str, *, strict: bool = False, progress: Progress | None = None) -> Scan:
    """Check the pairs of degraded and clean images of a split; ``ImageRecord.layers["clean"]`` is the clean one.
    Arguments and errors as ``scan_detect``."""
    return _judged(_scan(spec, split, progress), strict)


def check(data: str | os.PathLike[str], task: str = "detect", *, progress: Progress | None = None) -> dict[str, Any]:
    """Scan every split of a data set and say what is wrong, as plain values for JSON.

    Args:
        data: as for ``load_data``.
        task: ``detect``, ``classify``, ``semantic``, ``restore`` or ``point``.

    Returns:
        ``usable`` (every split can be used), ``names``, ``report`` (text), and ``splits``: for each its ``counts``,
        ``per_class`` (by name), ``faults`` (by kind: ``count``, ``meaning``, ``harmless``, the ``first`` ten) and
        ``error`` (``None``, or why it cannot be used).

    Raises:
        DataError: the data set itself cannot be found or its YAML is wrong.
        UnknownNameError: no plugin knows the task.
    """
    known = registry().help_of("tasks")
    if task not in known:
        mend = suggestion(task, known, what="tasks")
        raise UnknownNameError(f"{task!r} is no task", where="argument task", mend=mend)
    spec = load_data(data, task)
    splits: dict[str, Any] = {}
    reports = []
    for split in spec.splits:
        try:
            found = _scan(spec, split, progress)
        except LibreYOLOError as error:
            splits[split] = {"counts": {}, "per_class": {}, "faults": {}, "error": str(error)}
            reports.append(f"{split}: {error}")
            continue
        splits[split] = _plain(found)
        reports.append(found.report())
        if splits[split]["error"]:
            reports.append(f"  error: {splits[split]['error']}")
    return {
        "data": spec.source,
        "path": str(spec.path),
        "task": task,
        "names": {str(i): n for i, n in spec.names.items()},
        "usable": all(s["error"] is None for s in splits.values()),
        "splits": splits,
        "report": "\n".join(reports),
    }


def _plain(found: Scan) -> dict[str, Any]:
    error = None
    try:
        found.raise_if_unusable()
    except DataError as reason:
        error = str(reason)
    faults: dict[str, Any] = {}
    for kind, meaning in FAULTS.items():
        of_kind = [f for f in found.faults if f.kind == kind]
        if of_kind:
            first = [{"path": f.path, "line": f.line, "detail": f.detail} for f in of_kind[:SHOWN]]
            faults[kind] = {
                "count": len(of_kind),
                "meaning": meaning,
                "harmless": kind in HARMLESS,
                "first": first,
            }
    per_class = {found.names[i]: n for i, n in found.per_class.items()}
    return {"counts": found.counts, "per_class": per_class, "faults": faults, "error": error}


def _judged(found: Scan, strict: bool) -> Scan:
    if strict:
        found.raise_if_faulty()
    found.raise_if_unusable()
    return found


def _scan(spec: DataSpec, split: str, progress: Progress | None) -> Scan:
    job = JOBS[spec.split(split).kind](spec, split)
    stamp = fingerprint(job.involved, job.found.names, job.found.category_ids, spec.reading, scan_cache.VERSION)
    place = scan_cache.place(spec, split)
    cached = scan_cache.load(place, stamp)
    if cached is not None:
        cached.reading = spec.reading
        return cached
    records = _in_parallel(job.look, job.paths, progress)
    ids = []
    for path, (record, faults) in zip(job.paths, records, strict=True):
        job.found.faults += faults
        if record is not None:
            job.found.images.append(record)
            ids.append(job.ids.get(path))
    if job.ids:
        job.found.image_ids = ids
    job.done()
    scan_cache.save(place, stamp, job.found)
    return job.found


def _in_parallel(look: Look, paths: list[str], progress: Progress | None) -> list[Any]:
    results = []
    with ThreadPoolExecutor(max_workers=min(16, 2 * (os.cpu_count() or 1))) as pool:
        for done, result in enumerate(pool.map(look, paths), start=1):
            results.append(result)
            if progress is not None:
                progress(done, len(paths))
    return results
