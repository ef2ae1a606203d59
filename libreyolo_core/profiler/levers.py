"""What helps against each verdict, in the words of the arguments and with the values they have now.

Only what the run leaves open is named: a lever that is pulled already, or that the machine does not have, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Numbers = Mapping[str, Any]
Run = Mapping[str, Any]
HEAVY = ("mosaic", "mixup")
"""Augmentations that read further photos for every sample."""
SMALLER_INPUT = 0.8
"""The side of the input that is proposed, as a share of the present one."""


def levers(name: str, numbers: Numbers, run: Run) -> tuple[str, ...]:
    """Levers for the verdict ``name``, the most effective first.

    Args:
        numbers: of a profile.
        run: the run's settings; those that are missing bring no lever.
    """
    return tuple(LEVERS[name](numbers, run))


def _dataloader(numbers: Numbers, run: Run) -> Iterator[str]:
    workers, cores = run.get("workers"), run.get("cores", 1)
    # on a CPU run the model needs a core of its own, or workers slow down what they feed
    most = cores if _on_gpu(run) else max(1, cores - 1)
    if workers is not None and workers < most:
        yield f"workers: {workers} -> {min(most, max(1, 2 * workers))} (this machine has {_count(cores, 'core')})"
    if run.get("cache") != "ram":
        yield "cache=ram (decoded photos stay in memory)"
    for augment, p in run.get("augment", {}).items():
        if augment in HEAVY and p > 0:
            yield f"{augment}_prob: {p:g} -> {p / 2:g} (lighter augmentation)"
    if workers is not None and workers >= most and run.get("cache") == "ram":
        yield "smaller photos on the disk: workers and cache are used up"


def _launch(numbers: Numbers, run: Run) -> Iterator[str]:
    replayed = run.get("capture", {}).get("replayed", 0)
    if not run.get("cuda_graph"):
        off = run.get("capture_off")
        yield f"cuda_graph=true is no lever here: {off}" if off else "cuda_graph=true (one launch instead of many)"
    elif not replayed:
        yield "cuda_graph is on, but no step here was replayed: see capture"
    if "batch" in run:
        yield f"batch: {run['batch']} -> {2 * run['batch']} (more work for each kernel)"
    if not run.get("compile"):
        yield "compile=true (fewer, larger kernels)"


def _compute(numbers: Numbers, run: Run) -> Iterator[str]:
    if run.get("precision") == "float32":
        if _on_gpu(run):
            yield "amp=true amp_dtype=bfloat16 (mixed precision)"
            if not run.get("tf32"):
                yield "tf32=true"
        elif run.get("cpu_bfloat16"):
            yield "amp=true amp_dtype=bfloat16 (this processor computes it in hardware)"
    elif run.get("precision") == "float16":
        yield "amp_dtype=bfloat16 (needs no gradient scaler)"
    threads, cores = run.get("threads", 0), run.get("cores", 0)
    if not _on_gpu(run) and threads + run.get("workers", 0) < cores:
        yield f"OMP_NUM_THREADS: {threads} -> {cores - run.get('workers', 0)} (idle cores)"
    if run.get("smaller"):
        yield f"model: {run['model']} -> {run['smaller']}"
    side, multiple = run.get("imgsz", [0])[0], run.get("multiple", 32)
    unit = multiple * math.ceil(32 / multiple)
    smaller = int(side * SMALLER_INPUT) // unit * unit
    if smaller >= unit and not run.get("fixed_input"):
        yield f"imgsz: {side} -> {smaller}"


def _memory(numbers: Numbers, run: Run) -> Iterator[str]:
    batch = run.get("batch", 1)
    if batch > 1:
        yield f"batch: {batch} -> {batch // 2}"
    if run.get("precision") == "float32" and _on_gpu(run):
        yield "amp=true (half the memory for activations)"


def _on_gpu(run: Run) -> bool:
    return str(run.get("device", "")).startswith("cuda")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


LEVERS: dict[str, Callable[[Numbers, Run], Iterator[str]]] = {
    "dataloader-bound": _dataloader,
    "memory-pressure": _memory,
    "host/launch-bound": _launch,
    "compute-bound": _compute,
}
