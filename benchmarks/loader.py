"""How much a source image costs in training, against the floor of decoding and resizing the same JPEG.

    python benchmarks/loader.py [--json]

One process, set up as a loader process is. The floor reads a photo with OpenCV and resizes it to the input. The YOLOX
recipe (mosaic of four photos, affine, HSV, flip) makes one input of up to four source images (photos that end up
outside the input are not read and do not count) and collates batches of eight. Time is that of the core (processor
time of the only thread), so that neighbours on the machine disturb little. Repetitions of both are interleaved; the
figures are medians. The time per source image may be at most twice the floor's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

BAR = 2.0
SIDE = 640
BATCH = 8


def main() -> int:
    """Print the table, or with ``--json`` one JSON document; exit code 1 when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--repeat", type=int, default=9, help="interleaved repetitions (default 9)")
    parser.add_argument("--batches", type=int, default=5, help="batches of 8 per repetition (default 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LIBREYOLO_CACHE", folder)
        found = measure(options.repeat, options.batches)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(table(found))
    return 0 if all(r["ratio"] <= BAR for r in found["recipes"].values()) else 1


def measure(repeat: int, batches: int) -> dict[str, Any]:
    """Milliseconds and images per second of the floor and of every recipe."""
    import cv2

    import libreyolo_data_treecrowns
    from libreyolo_core.augment import Flip, Hsv, MixUp, Mosaic
    from libreyolo_core.data.catalogue import load_data
    from libreyolo_core.data.loader import tune_process
    from libreyolo_core.data.scan import scan_detect

    tune_process()
    scan = scan_detect(load_data(libreyolo_data_treecrowns.path(), "detect"), "train")
    paths = [record.path for record in scan.images]
    jobs: dict[str, Callable[[int], tuple[float, int, int]]] = {
        "mosaic": _recipe(scan, (Mosaic(), Hsv(), Flip()), batches),
        "mosaic+mixup": _recipe(scan, (Mosaic(), MixUp(), Hsv(), Flip()), batches),
    }
    floor_ms: list[float] = []
    recipe_runs: dict[str, list[tuple[float, int, int]]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):  # the first warms up
        floor = _floor(paths)
        runs = {name: job(turn) for name, job in jobs.items()}
        if turn:
            floor_ms.append(floor)
            for name, run in runs.items():
                recipe_runs[name].append(run)
    base = median(floor_ms)
    recipes = {}
    for name, runs_of in recipe_runs.items():
        per_source = median(ms / sources for ms, _, sources in runs_of)
        per_input = median(ms / inputs for ms, inputs, _ in runs_of)
        recipes[name] = {
            "ms_per_source": per_source,
            "ms_per_input": per_input,
            "sources_per_input": sum(s for _, _, s in runs_of) / sum(i for _, i, _ in runs_of),
            "inputs_per_s": 1000 / per_input,
            "sources_per_s": 1000 / per_source,
            "ratio": per_source / base,
        }
    return {
        "floor_ms_per_source": base,
        "floor_sources_per_s": 1000 / base,
        "bar": BAR,
        "recipes": recipes,
        "photos": len(paths),
        "side_px": SIDE,
        "opencv": cv2.__version__,
    }


def _floor(paths: list[str]) -> float:
    """Milliseconds per photo for reading and resizing alone."""
    import cv2

    began = time.process_time()
    for path in paths:
        cv2.resize(cv2.imread(path), (SIDE, SIDE))
    return (time.process_time() - began) * 1000 / len(paths)


def _recipe(scan: Any, augment: tuple, batches: int) -> Callable[[int], tuple[float, int, int]]:
    """A function of the epoch: milliseconds, inputs made and source images read."""
    from libreyolo_core.data.batch import SampleRequest
    from libreyolo_core.data.dataset import DetectSet, collate_detect
    from libreyolo_core.family import Input

    rule = Input(colour="bgr", scale=1.0)
    photos = DetectSet(scan, rule)
    read = 0
    original = photos._decoded

    def counted(*given: Any) -> Any:
        nonlocal read
        read += 1
        return original(*given)

    photos._decoded = counted  # type: ignore[method-assign]

    def run(epoch: int) -> tuple[float, int, int]:
        nonlocal read
        read, made = 0, 0
        began = time.process_time()
        for b in range(batches):
            indices = [(b * BATCH + i) % len(photos) for i in range(BATCH)]
            batch = collate_detect([photos[SampleRequest(i, epoch, (SIDE, SIDE), augment)] for i in indices], rule)
            made += len(batch)
        return (time.process_time() - began) * 1000, made, read

    return run


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{'one core, 640 px':24}{'ms/source':>11}{'ms/input':>11}{'inputs/s':>11}{'sources/s':>11}{'x floor':>9}",
        f"{'floor: decode, resize':24}{found['floor_ms_per_source']:11.2f}{'':22}"
        f"{found['floor_sources_per_s']:11.0f}{1:9.2f}",
    ]
    for name, r in found["recipes"].items():
        lines.append(
            f"{name:24}{r['ms_per_source']:11.2f}{r['ms_per_input']:11.2f}{r['inputs_per_s']:11.0f}"
            f"{r['sources_per_s']:11.0f}{r['ratio']:9.2f}"
        )
    shares = ", ".join(f"{n}: {r['sources_per_input']:.1f}" for n, r in found["recipes"].items())
    lines.append(f"source images read per input: {shares}; bar: {found['bar']:.1f}x the floor per source image")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
