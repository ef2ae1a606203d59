"""Milliseconds, operations and memory of one training step of every family.

    python benchmarks/steps.py                        # all families, eager, at a small input
    python benchmarks/steps.py yolox rtdetr --compile # compiled steps as well (minutes per family on a CPU)
    python benchmarks/steps.py --contended            # also beside a process that keeps a core busy
    python benchmarks/steps.py --json steps.json

A step is forward, loss, backward, clipping, optimizer and average on seeded data, without the loader. Times are medians
of repetitions in which the modes take turns. On a GPU the modes ``graph`` and ``full`` are measured too; on a CPU there
is nothing to launch, and recordings serve tests alone. Processor time is that of all threads; neighbours on the machine
disturb it less. Shares are of an eager step: the captured region, what follows it with the loss, and the rest. Every
family runs in a process of its own; memory is what its peak grew by.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cases import alone, case, families, table

import libreyolo  # noqa: F401  (before torch: bounds the spin of its threads)

if TYPE_CHECKING:
    from family_steps import Steps

IMGSZ = {"cpu": 160, "cuda": 0}
"""Side in pixels by device; 0 is the size's own."""


def main() -> int:
    """Print the table; exit code 1 when a family could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*", help="families by key (default: all installed)")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    parser.add_argument("--contended", action="store_true", help="measure beside a busy process as well")
    parser.add_argument(
        "--batch", type=int, default=0, help="images per step (default: 2 on a CPU, the published else)"
    )
    parser.add_argument("--imgsz", type=int, default=-1, help="side in pixels, 0 for the size's own")
    parser.add_argument("--repeat", type=int, default=11, help="repetitions (default 11)")
    parser.add_argument("--device", default="", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds per family (default 900)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options)), flush=True)
        return 0
    rows, failed = [], []
    for key in families(options.family):
        lines, problem = alone(_command(key, options), timeout_s=options.timeout)
        rows += [json.loads(line) for line in lines]
        failed += [f"{key}: {problem}"] if problem else []
    print(as_table(rows))
    for line in failed:
        print(line)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "failed": failed}, indent=1), encoding="utf-8")
    return 1 if failed else 0


def _command(key: str, options: argparse.Namespace) -> list[str]:
    flags = [f"--{name}" for name in ("compile", "contended") if getattr(options, name)]
    values = [f"--{n}={getattr(options, n)}" for n in ("batch", "imgsz", "repeat", "device")]
    return [str(Path(__file__).resolve()), "--one", key, *flags, *values]


def measure(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """One family's row."""
    import torch
    from family_steps import Peak, Steps

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    what = case(key)
    batch = options.batch or (2 if device.type == "cpu" else what.batch)
    imgsz = IMGSZ[device.type] if options.imgsz < 0 else options.imgsz
    modes: dict[str, dict[str, Any]] = {"eager": {}}
    if device.type == "cuda":
        modes |= {"graph": {"cuda_graph": True}, "full": {"cuda_graph": "full"}}
    if options.compile:
        modes["compile"] = {"compile": True}
    steps, peaks = {}, {}
    for mode, given in modes.items():
        peak = Peak(device)
        steps[mode] = Steps(key, what.size, batch, device=device, imgsz=imgsz, **given)
        for _ in range(4):  # algorithms chosen, optimizer state made, recordings made
            steps[mode]()
        peaks[mode] = peak.mib()
    eager = steps["eager"]
    row = {
        "model": f"{key}-{what.size}",
        "batch": batch,
        "imgsz": eager.imgsz,
        "device": device.type,
        "precision": eager.mode.name,
        "threads": torch.get_num_threads(),
        **_times(steps, options.repeat),
        "operations": eager.operations(),
        "shares": _shares(eager, options.repeat),
        "peak_mib": peaks,
        "capture": {m: s.captured.close() for m, s in steps.items() if s.captured},
        "compile": {m: s.compiled.close() for m, s in steps.items() if s.compiled},
    }
    if options.contended:
        with _Busy():
            row["contended_ms"] = _times(steps, options.repeat)["ms"]
    return row


def _times(steps: dict[str, Steps], repeat: int) -> dict[str, dict[str, float]]:
    """Median milliseconds by mode, by the clock and of the processor; modes take turns."""
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in steps}
    for _ in range(repeat):
        for mode, run in steps.items():
            found[mode].append(run.timed())
    return {
        name: {mode: round(median(times[which] for times in all_), 2) for mode, all_ in found.items()}
        for which, name in enumerate(("ms", "processor_ms"))
    }


def _shares(eager: Steps, repeat: int) -> dict[str, float]:
    runs = [eager.shares() for _ in range(max(3, repeat // 2))]
    parts = {name: median(run[name] for run in runs) for name in runs[0]}
    return {name: round(value / sum(parts.values()), 3) for name, value in parts.items()}


class _Busy:
    """Keeps one core busy while it is entered, as a loader process does."""

    def __enter__(self) -> None:
        self.process = multiprocessing.get_context("spawn").Process(target=_spin, args=(os.getpid(),), daemon=True)
        self.process.start()

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def _spin(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))


def as_table(rows: list[dict[str, Any]]) -> str:
    """Markdown, a line per family."""
    modes = list(dict.fromkeys(mode for row in rows for mode in row["ms"]))
    contended = any("contended_ms" in row for row in rows)
    head = ("model", "px", "batch", "precision", *(f"{m}, ms" for m in modes))
    head += tuple(f"{m}, processor ms" for m in modes)
    head += ("contended, ms",) if contended else ()
    head += ("operations", "region", "loss", "rest", "peak, MiB")
    lines = []
    for row in rows:
        shares = [f"{row['shares'][name]:.0%}" for name in ("region", "loss", "rest")]
        cells = [row["model"], row["imgsz"], row["batch"], row["precision"], *(row["ms"].get(m) for m in modes)]
        cells += [row["processor_ms"].get(m) for m in modes]
        cells += [row.get("contended_ms", {}).get("eager")] if contended else []
        lines.append((*cells, row["operations"], *shares, row["peak_mib"]["eager"]))
    return table(head, lines)


if __name__ == "__main__":
    raise SystemExit(main())
