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
from libreyolo_core.engine.loggers import read_rows

EARLY = 0.2
"""Share of the kills that fall into the first two seconds of a start, while it still imports."""
SCRIPT = """
from libreyolo import LibreYOLO
if __name__ == "__main__":
    LibreYOLO("yolox-n", pretrained=False, device="cpu").train(
        data="treecrowns", imgsz=64, batch=8, epochs={epochs}, workers=0, plots=False, device="cpu",
        project={project!r},
        name="run", exist_ok=True, save_steps=2, eval_interval=5, sync_bn=False, {more})
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
    out = subprocess.run(["ps", "-eo", "pid,ppid,stat"], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in out.splitlines()[1:])
    return [int(pid) for pid, parent, stat in rows if int(parent) == agent and stat[0] != "Z"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two states hold the same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def openings(folder: Path) -> int:
    """How many starts of the run got as far as its first step."""
    text = (folder / "log.txt").read_text()
    return text.count("training in ") + text.count("resuming in ")


def opened(process: subprocess.Popen, folder: Path, before: int) -> bool:
    """Wait until one more start has come to its first step; ``False`` when the process ended instead."""
    while process.poll() is None:
        if openings(folder) > before:
            return True
        time.sleep(0.05)
    return False


def undisturbed(folder: Path, epochs: int, ranks: int) -> None:
    """Run to the end in peace."""
    if start(folder, epochs, ranks, 0, resume=False).wait() != 0:
        raise SystemExit((folder / "log.txt").read_text()[-2000:])


def epoch_s(folder: Path) -> float:
    """How long the newest epoch took; a machine may become slower or faster meanwhile."""
    rows = read_rows(folder / "run" / "results.csv")
    return float(rows[-1]["seconds"]) if rows else 1.0


def disturbed(folder: Path, epochs: int, ranks: int, kills: int, *, seed: int) -> tuple[int, int]:
    """Run to the end under fire; returns how often it was killed, and how often of these before its first step."""
    moments, done, early = random.Random(seed), 0, 0
    last = folder / "run" / "weights" / "last.pt"
    process = start(folder, epochs, ranks, kills, resume=False)
    while done < kills:
        before = openings(folder)
        if moments.random() < EARLY:
            time.sleep(moments.uniform(0.0, 2.0))
        elif opened(process, folder, before):
            # on average less than a kill's share of the epochs, so that some are left for all of them
            time.sleep(moments.uniform(0.0, 1.3 * epochs / kills) * epoch_s(folder))
        while ranks > 1 and process.poll() is None and len(ranks_of(process.pid)) < ranks:
            time.sleep(0.05)  # the launcher is between two starts
        if process.poll() is not None:
            break
        os.kill(moments.choice(ranks_of(process.pid)) if ranks > 1 else process.pid, signal.SIGKILL)
        early += openings(folder) == before
        done += 1
        if ranks == 1 and process.wait() != 0:
            if last.is_file() and checkpoint.read(last).training["finished"]:
                return done, early  # killed after its last epoch: there is nothing to resume
            process = start(folder, epochs, ranks, kills, resume=last.is_file())
    if process.wait() != 0:
        raise SystemExit(f"the run ended with {process.returncode}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    return done, early


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
        undisturbed(whole, args.epochs, args.ranks)
        kills, early = disturbed(fire, args.epochs, args.ranks, args.kills, seed=args.seed)
        equal = True
        for name in ("last", "best"):
            a, b = (checkpoint.read(f / f"run/weights/{name}.pt") for f in (whole, fire))
            equal &= same(a.state, b.state) and same(a.training.get("raw") or {}, b.training.get("raw") or {})
        b = checkpoint.read(fire / "run/weights/last.pt")
        finite = all(bool(v.isfinite().all()) for v in b.state.values())
        complete = b.training["epoch"] == args.epochs
        print(
            f"{args.ranks} rank(s), killed {kills} times, {early} of them before the first step: "
            f"{b.training['epoch']} of {args.epochs} epochs, weights {'equal bit for bit' if equal else 'not equal'}, "
            f"{'finite' if finite else 'NOT FINITE'}"
        )
        sys.exit(not (complete and finite and kills == args.kills and (equal or args.ranks > 1)))


if __name__ == "__main__":
    main()
