"""Kill a short run at random moments and resume it each time: the weights at its end are those of an undisturbed one.

    python benchmarks/kills.py                  # one process, 30 times SIGKILL, resumed by hand
    python benchmarks/kills.py --ranks 2        # torchrun with two ranks; a random rank is killed, torchrun restarts

With one process the final weights must be equal bit for bit; with two the run must end with all epochs done and finite
weights. The exit code says whether that held.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from libreyolo_core import checkpoint

SCRIPT = """
from libreyolo import LibreYOLO
if __name__ == "__main__":
    LibreYOLO("yolox-n", pretrained=False, device="cpu").train(
        data="treecrowns", imgsz=64, batch=8, epochs={epochs}, workers=0, plots=False, device="cpu",
        project={project!r},
        name="run", exist_ok=True, save_steps=2, eval_interval=5, {more})
"""


def start(folder: Path, epochs: int, ranks: int, kills: int, *, resume: bool) -> subprocess.Popen:
    """The run as a process group of its own."""
    script = folder / "train.py"
    more = f"resume={str(folder / 'run')!r}" if resume else ""
    script.write_text(SCRIPT.format(epochs=epochs, project=str(folder), more=more))
    command = [sys.executable, str(script)]
    if ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command = [*launcher, f"--max-restarts={kills + 5}", str(script)]
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


def ranks_of(agent: int) -> list[int]:
    """Process ids of the ranks that an agent started."""
    out = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid, parent in (line.split() for line in out.splitlines()[1:]) if int(parent) == agent]


def disturbed(folder: Path, epochs: int, ranks: int, kills: int, seed: int) -> int:
    """Run to the end under fire; returns how often it was killed."""
    moments, done = random.Random(seed), 0
    process = start(folder, epochs, ranks, kills, resume=False)
    while True:
        try:
            # importing takes the first seconds; a kill may fall into that, into a step or into a save
            process.wait(moments.uniform(3.0, 12.0) if done < kills else None)
        except subprocess.TimeoutExpired:
            victims = ranks_of(process.pid) if ranks > 1 else [process.pid]
            if not victims:
                continue
            os.kill(moments.choice(victims), signal.SIGKILL)
            done += 1
            if ranks == 1:
                process.wait()
                process = start(folder, epochs, ranks, kills, resume=(folder / "run/weights/last.pt").is_file())
            continue
        if process.returncode == 0:
            return done
        raise SystemExit(f"the run ended with {process.returncode}:\n{(folder / 'log.txt').read_text()[-2000:]}")


def main() -> None:
    """Compare and say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        whole, fire = Path(root) / "whole", Path(root) / "fire"
        whole.mkdir()
        fire.mkdir()
        began = time.monotonic()
        if start(whole, args.epochs, args.ranks, 0, resume=False).wait() != 0:
            raise SystemExit((whole / "log.txt").read_text()[-2000:])
        alone_s = time.monotonic() - began
        kills = disturbed(fire, args.epochs, args.ranks, args.kills, args.seed)
        a, b = (checkpoint.read(f / "run/weights/last.pt") for f in (whole, fire))
        equal = all(
            torch.equal(a.state[k], b.state[k]) and torch.equal(a.training["raw"][k], b.training["raw"][k])
            for k in a.state
        )
        finite = all(bool(v.isfinite().all()) for v in b.state.values())
        complete = b.training["epoch"] == args.epochs
        print(
            f"{args.ranks} rank(s), killed {kills} times, undisturbed {alone_s:.0f} s: "
            f"{b.training['epoch']} of {args.epochs} epochs, weights {'equal bit for bit' if equal else 'not equal'}, "
            f"{'finite' if finite else 'NOT FINITE'}"
        )
        sys.exit(not (complete and finite and (equal or args.ranks > 1)))


if __name__ == "__main__":
    main()
