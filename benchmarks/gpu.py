"""Every family eager, with CUDA graphs, with whole-step graphs and compiled, on one GPU in under 12 minutes.

    python benchmarks/gpu.py                          # writes gpu.md and gpu.json
    python benchmarks/gpu.py yolox --minutes 3 --out results/
    python benchmarks/gpu.py --smoke                  # on a CPU: small inputs, recorded operations for graphs

Of each mode: milliseconds per step (fastest and median of 24 on one batch that is already on the device), the losses
of 20 steps on 20 batches beside those of an eager run, peak memory, and how many steps were captured and replayed. What
may differ is what the family's sheet says: "exact" losses must equal the eager ones bit for bit, "spread" ones may
differ as two eager runs differ from each other. On hardware where two eager runs differ there is no bit-identity to
hold, and the spread is the measure for all. Compiled code computes in another order; its losses may differ by 1%.

Every family runs in a process of its own, within its share of the time; what was measured before a failure is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cases import alone, case, families, table

import libreyolo  # noqa: F401  (before torch: bounds the spin of its threads)

if TYPE_CHECKING:
    import torch
    from family_steps import Steps

MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "eager again": {},
    "graph": {"cuda_graph": True},
    "full": {"cuda_graph": "full"},
    "compile": {"compile": True},
}
COMPARED = 20
"""Steps whose losses are compared."""
TIMED = 24
SPREAD = 3.0
"""How many times the difference of two eager runs another run's may be."""
FLOOR = 1e-3
"""Relative difference that a family of the class "spread" may show in any case."""
COMPILED = 1e-2
SMOKE = {"batch": 2, "imgsz": 64, "compared": 5, "timed": 3}


def main() -> int:
    """Measure, print the table, write it with the JSON; exit code 1 for a failure or a difference beyond the class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="*", help="families by key (default: all installed)")
    parser.add_argument("--minutes", type=float, default=11.0, help="for everything (default 11)")
    parser.add_argument("--modes", default=",".join(MODES), help="which, by comma (default: all)")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for gpu.md and gpu.json (default: here)")
    parser.add_argument("--smoke", action="store_true", help="a rehearsal on a CPU")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=600.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        os.environ["LIBREYOLO_CAPTURE_BACKEND"] = "replay"
    if options.one:
        for row in measure(options.one, options):
            print(json.dumps(row), flush=True)
        return 0
    found = collect(options)
    text = report(found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.md").write_text(text + "\n", encoding="utf-8")
    (options.out / "gpu.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if found["failed"] or any(r["verdict"].startswith("differs") for r in found["rows"]) else 0


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of all families, each within an equal share of the time that is left."""
    began, keys = time.monotonic(), families(options.family)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for number, key in enumerate(keys):
        left = options.minutes * 60 - (time.monotonic() - began)
        share = max(5.0, left / (len(keys) - number))
        flags = ["--smoke"] if options.smoke else []
        arguments = ["--one", key, "--modes", options.modes, "--budget", str(share), *flags]
        lines, problem = alone([str(Path(__file__).resolve()), *arguments], timeout_s=share)
        rows += [json.loads(line) for line in lines]
        failed += [f"{key}: {problem}"] if problem else []
    judge(rows)
    return {
        "command": "benchmarks/gpu.py" + (" --smoke" if options.smoke else ""),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "device": rows[0]["device_name"] if rows else "",
        "torch": rows[0]["torch"] if rows else "",
        "rows": rows,
        "failed": failed,
    }


def measure(key: str, options: argparse.Namespace) -> Any:
    """Yields a row per mode of one family, compiling last: it may take whatever time is left."""
    import torch
    from family_steps import Peak, Steps

    from libreyolo_core.engine import compiling

    began = time.monotonic()
    if options.smoke:
        compiling.COMPILER = "eager"  # traces as any other, and takes seconds
    device = torch.device("cpu" if options.smoke or not torch.cuda.is_available() else "cuda")
    what, smoke = case(key), SMOKE if options.smoke else {}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    for mode in options.modes.split(","):
        spent = time.monotonic() - began
        row: dict[str, Any] = {"key": key, "mode": mode, "device_name": name, "torch": torch.__version__}
        if mode == "compile" and spent > 0.6 * options.budget:
            yield {**row, "error": f"left out: {spent:.0f} of {options.budget:.0f} s were spent"}
            continue
        peak = Peak(device)
        try:
            torch.manual_seed(0)
            steps = Steps(
                key,
                what.size,
                smoke.get("batch", what.batch),
                device=device,
                imgsz=smoke.get("imgsz", 0),
                batches=smoke.get("compared", COMPARED),
                **MODES[mode],
            )
            row |= _measured(steps, smoke.get("compared", COMPARED), smoke.get("timed", TIMED), mode)
            row |= {"peak_mib": peak.mib(), "model": f"{key}-{what.size}", "published": what.published}
        except Exception as error:  # one mode that fails must not cost the others
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        yield row
        steps = None  # type: ignore[assignment]
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(steps: Steps, compared: int, timed: int, mode: str) -> dict[str, Any]:
    losses: list[torch.Tensor] = [steps() for _ in range(compared)]
    values = [float(x) for x in losses]
    row: dict[str, Any] = {
        "batch": len(steps.data[0]),
        "imgsz": steps.imgsz,
        "precision": steps.mode.name,
        "numerics": steps.sheet.capture.numerics,
        "losses": values,
    }
    if mode != "eager again":
        del steps.data[1:]
        for _ in range(4):
            steps()
        times = [steps.milliseconds() for _ in range(timed)]
        row |= {"ms_fastest": round(min(times), 3), "ms_median": round(median(times), 3)}
    if steps.captured:
        row["capture"] = steps.captured.close()
    if steps.compiled:
        row["compile"] = steps.compiled.close()
    return row


def judge(rows: list[dict[str, Any]]) -> None:
    """Add to every row the largest relative difference of its losses to the eager ones, what the class says of it, and
    how many times faster than eager its steps are."""
    eager = {row["key"]: row for row in rows if row["mode"] == "eager" and "losses" in row}
    again = {row["key"]: row for row in rows if row["mode"] == "eager again" and "losses" in row}
    for row in rows:
        base = eager.get(row["key"])
        row["verdict"] = row.get("error", "")
        if row["verdict"] or not base:
            row["verdict"] = row["verdict"] or "no eager run to compare with"
            continue
        row["difference"] = difference(base["losses"], row["losses"])
        spread = difference(base["losses"], again[row["key"]]["losses"]) if row["key"] in again else 0.0
        row["verdict"] = verdict(row["mode"], row["numerics"], row["difference"], spread)
        if "ms_fastest" in row:
            row["faster"] = round(base["ms_fastest"] / row["ms_fastest"], 2)


def difference(a: list[float], b: list[float]) -> float:
    """The largest relative difference of two trajectories; infinite where one holds no number."""
    if not all(map(math.isfinite, [*a, *b])):
        return math.inf
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b, strict=True))


def verdict(mode: str, numerics: str, found: float, spread: float) -> str:
    """What a difference means for a mode and a class; ``spread`` is that of two eager runs."""
    if found == 0:
        return "equal"
    if mode == "eager again":
        return f"eager runs differ by {found:.1e}"
    if mode == "compile":
        limit = max(COMPILED, SPREAD * spread)
    else:
        limit = max(SPREAD * spread, FLOOR if numerics != "exact" else 0.0)
    return f"{'within' if found <= limit else 'differs beyond'} {limit:.1e}"


def report(found: dict[str, Any]) -> str:
    """The table, and a line for whatever failed."""
    head = ("model", "batch", "px", "precision", "mode", "ms", "faster", "published", "losses", "peak, MiB", "steps")
    lines = []
    for row in found["rows"]:
        if row["mode"] == "eager again" and "error" not in row:
            continue
        counts = row.get("capture") or row.get("compile") or {}
        told = [f"{counts[n]} {n}" for n in ("captured", "shapes", "replayed", "compiled", "eager") if counts.get(n)]
        shown = f"{row['difference']:.1e}, {row['verdict']}" if row.get("difference") else row["verdict"]
        cells = (row.get("model", row["key"]), row.get("batch"), row.get("imgsz"), row.get("precision"), row["mode"])
        cells += (row.get("ms_fastest"), row.get("faster"), row.get("published") if row["mode"] == "graph" else None)
        lines.append((*cells, shown, row.get("peak_mib"), ", ".join(told) or None))
    made = f"`{found['command']}` on {found['device']}, torch {found['torch']}, {found['minutes']} minutes."
    return "\n".join([made, "", table(head, lines), *(f"\n{line}" for line in found["failed"])])


if __name__ == "__main__":
    raise SystemExit(main())
