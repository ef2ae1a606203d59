"""How long the command line takes to answer, as a multiple of an empty Python process.

    python benchmarks/startup.py            # the installed `libreyolo`, else `python -m libreyolo_core.cli`
    python benchmarks/startup.py --json

The commands take turns, so that a machine that slows down slows all of them, and medians are compared. Exit code 1 when
``--help`` takes more than 5 times the empty process. ``--help, first`` is the same without the cache of command names,
as the first call after an installation finds it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 5.0
EMPTY = "python -c pass"


def main() -> int:
    """Measure, print, and say by the exit code whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=21, help="times each command is run (default 21)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        seconds = measure(options.repeat, cache)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = [
        {"what": name, "median_ms": 1e3 * median, "ratio": median / medians[EMPTY]} for name, median in medians.items()
    ]
    ratio = medians["libreyolo --help"] / medians[EMPTY]
    met = ratio <= LIMIT
    if options.json:
        command = " ".join(console_script())
        print(json.dumps({"command": command, "limit": LIMIT, "ratio": ratio, "met": met, "rows": rows}, indent=2))
    else:
        print(f"{'what':<28}{'median':>10}{'ratio':>8}")
        for row in rows:
            print(f"{row['what']:<28}{row['median_ms']:>7.1f} ms{row['ratio']:>8.2f}")
        print(f"--help takes {ratio:.2f} times an empty process; the limit is {LIMIT:g}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


def measure(repeat: int, cache: str) -> dict[str, list[float]]:
    """Seconds of every run by command, the commands taking turns."""
    python, script = [sys.executable], console_script()
    commands = {
        EMPTY: [*python, "-c", "pass"],
        "libreyolo --help": [*script, "--help"],
        "libreyolo --help, first": [*script, "--help"],
        "libreyolo --version": [*script, "--version"],
        "libreyolo families": [*script, "families"],
        "libreyolo plugins": [*script, "plugins"],
        "import libreyolo_core": [*python, "-c", "import libreyolo_core"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(repeat + 1):
        for name, command in commands.items():
            folder = os.path.join(cache, "none" if name.endswith("first") else "warm")
            shutil.rmtree(os.path.join(cache, "none"), ignore_errors=True)
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, env={**os.environ, "LIBREYOLO_CACHE": folder})
            took = time.perf_counter() - began
            if done.returncode != 0:
                raise SystemExit(f"{name} failed: {done.stderr.decode(errors='replace')}")
            if round_:  # the first round only warms the disk and the cache
                seconds[name].append(took)
    return seconds


def console_script() -> list[str]:
    """The installed ``libreyolo`` next to this Python, else the module."""
    script = Path(sys.executable).with_name("libreyolo")
    return [str(script)] if script.exists() else [sys.executable, "-m", "libreyolo_core.cli"]


if __name__ == "__main__":
    sys.exit(main())
