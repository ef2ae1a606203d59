"""How fast a Chrome trace is read, and in how much memory.

    python benchmarks/traces.py               # a made-up trace of 200 MB
    python benchmarks/traces.py --mb 20 --json
    python benchmarks/traces.py --recorded    # also one recorded by torch.profiler, against its own event list

Each way of reading has a process of its own; reported are the processor time of the reading and the peak memory of the
process. Exit code 1 when ours takes more than 10 s or 1 GB.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS, MEGABYTES = 10.0, 1000.0
WAYS = {
    "our events": "all events, one at a time",
    "our activity": "kernels, operators, busy time and lanes",
    "json.load": "the whole document, nothing computed from it",
}


def main() -> int:
    """Measure, print, and say by the exit code whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=200, help="size of the trace (default 200)")
    parser.add_argument("--recorded", action="store_true", help="also compare with torch.profiler's own events")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(*options.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        count = write(file, options.mb)
        rows = [{"way": way, "gives": gives, **in_a_process(way, file)} for way, gives in WAYS.items()]
    met = all(r["seconds"] <= SECONDS and r["peak_mb"] <= MEGABYTES for r in rows if r["way"].startswith("our"))
    report = {"mb": options.mb, "events": count, "rows": rows, "met": met}
    if options.recorded:
        report["recorded"] = recorded()
    if options.json:
        print(json.dumps(report, indent=2))
        return 0 if met else 1
    print(f"{count:,} events, {options.mb:g} MB")
    for row in rows:
        print(f"{row['way']:<14}{row['seconds']:>7.2f} s{row['peak_mb']:>7.0f} MB   {row['gives']}")
    for row in report.get("recorded", ()):
        print(f"{row['way']:<38}{row['seconds']:>7.2f} s{row['grown_mb']:>7.0f} MB more   {row['events']:,} events")
    print(f"ours takes at most {SECONDS:g} s and {MEGABYTES:g} MB: {'met' if met else 'MISSED'}")
    return 0 if met else 1


def in_a_process(way: str, file: Path) -> dict[str, float]:
    """Read in a new process: processor seconds and peak memory in MB (10^6 bytes)."""
    command = [sys.executable, __file__, "--read", way, str(file)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def read(way: str, file: str) -> dict[str, float]:
    """Read ``file`` in one of ``WAYS``, in this process."""
    from libreyolo_core.profiler.activity import read_activity
    from libreyolo_core.profiler.trace import events

    start = time.process_time()
    if way == "json.load":
        with open(file, encoding="utf-8") as opened:
            found = len(json.load(opened)["traceEvents"])
    elif way == "our events":
        found = sum(1 for _ in events(file))
    else:
        activity = read_activity(events(file))
        activity.busy_us(), activity.covered_us(), activity.operators(), activity.lanes()
        found = sum(kernel.count for kernel in activity.kernels())
    return {"seconds": time.process_time() - start, "peak_mb": peak_mb(), "found": found}


def peak_mb() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def recorded(rounds: int = 4000) -> list[dict[str, float | str]]:
    """What torch.profiler recorded on this CPU, read through its trace and through its own event list."""
    import torch

    from libreyolo_core.profiler.activity import read_activity
    from libreyolo_core.profiler.trace import events

    image, kernel = torch.rand(1, 3, 8, 8), torch.rand(3, 3, 3, 3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(rounds):
            torch.relu(torch.nn.functional.conv2d(image, kernel))
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        start, before = time.process_time(), peak_mb()
        profiler.export_chrome_trace(str(file))
        count = sum(o.count for o in read_activity(events(file)).operators())
        row = {"seconds": time.process_time() - start, "grown_mb": peak_mb() - before, "events": count}
        rows.append({"way": "exported, then our activity", **row})
    start, before = time.process_time(), peak_mb()
    count = sum(e.count for e in profiler.key_averages())
    row = {"seconds": time.process_time() - start, "grown_mb": peak_mb() - before, "events": count}
    rows.append({"way": "torch.profiler's key_averages()", **row})
    return rows


def write(file: Path, megabytes: float) -> int:
    """A made-up trace of a run on a GPU, in the layout of torch.profiler; returns its number of events."""
    count, size = 0, 0
    with file.open("w", encoding="utf-8") as out:
        out.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "made up"}],\n  "traceEvents": [')
        for event in run_on_a_gpu():
            text = json.dumps(event).replace('"ts":', '\n    "ts":').replace('"args":', '\n    "args":')
            size += out.write((",\n  " if count else "\n  ") + text)
            count += 1
            if size > megabytes * 1e6:
                break
        out.write('\n  ],\n  "traceName": "trace.json"\n}\n')
    return count


def run_on_a_gpu() -> Iterator[dict[str, object]]:
    """Operators in operators, a launch and a kernel for each, and the arrows between them, without end."""
    draw = random.Random(0)
    kernels = [
        f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor{i}<float> >(int)" for i in range(30)
    ]
    operators = [f"aten::{name}" for name in ("conv2d", "add_", "mul", "batch_norm", "silu", "cat", "max_pool2d")]
    now, number = 1000.0, 0
    while True:
        number += 1
        name, length, launched = (
            draw.choice(operators),
            draw.uniform(5, 40),
            {"External id": number, "correlation": number},
        )
        host = {"ph": "X", "pid": 1, "tid": 1}
        yield {**host, "cat": "cpu_op", "name": name, "ts": now, "dur": length, "args": {"External id": number}}
        yield {**host, "cat": "cpu_op", "name": f"{name}_out", "ts": now + 1, "dur": length - 2, "args": launched}
        yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": now + 2, "dur": 2.5, "args": launched}
        shape = {**launched, "stream": 7, "grid": [330, 1, 1], "block": [128, 1, 1], "warps per SM": 10}
        device = {"ph": "X", "pid": 0, "tid": draw.choice((7, 7, 20)), "ts": now + 8, "dur": draw.uniform(2, 30)}
        yield {**device, "cat": "kernel", "name": draw.choice(kernels), "args": shape}
        yield {"ph": "s", "id": number, "pid": 1, "tid": 1, "ts": now + 2, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "f", "id": number, "pid": 0, "tid": 7, "ts": now + 8, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        now += length + 1


if __name__ == "__main__":
    sys.exit(main())
