"""Which families ``steps.py`` and ``gpu.py`` measure and how: each in a process of its own. Imports no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from libreyolo_core.registry import registry


@dataclass(frozen=True)
class Case:
    """What is measured of a family: a size, a batch, and the speed-up published for the original's graphs."""

    size: str
    batch: int
    published: float | None = None


CASES = {
    "fomo": Case("s", 16, 3.63),
    "yolo9": Case("t", 8, 1.99),
    "nafnet": Case("s", 8, 1.26),
    "resnet": Case("18", 16, 1.25),
    "dfine": Case("n", 4, 1.16),
    "yolox": Case("t", 8, 1.13),
    "segformer": Case("b0", 8, 1.12),
    "rtdetr": Case("r18", 4, 1.12),
}


def case(key: str) -> Case:
    """The case of a family; one that is not listed takes its first size."""
    if key in CASES:
        return CASES[key]
    family = registry().family(key)
    return Case(next(iter(family.tasks[family.default_task].sizes)), 8)


def families(named: list[str]) -> list[str]:
    """The families named, or all that are installed."""
    return named or list(registry().families())


def alone(arguments: list[str], *, timeout_s: float) -> tuple[list[str], str]:
    """Run this benchmark's script in a process of its own; the lines it printed, and what went wrong, "" if nothing.
    What was printed before a failure or the end of the time is kept."""
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        out, problem = done.stdout, ""
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            problem = f"exit code {done.returncode}: {last[0][:200]}"
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else (late.stdout or "")
        problem = f"not done in {timeout_s:.0f} s"
    return [line for line in out.splitlines() if line.startswith("{")], problem


def table(head: tuple[str, ...], rows: list[tuple]) -> str:
    """Markdown; ``None`` is a dash."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join("–" if c is None else str(c) for c in line) + " |" for line in lines)
