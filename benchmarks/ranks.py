"""Train the same with one process and with two: the losses of the first epoch, and the metric beside that of seeds.

    python benchmarks/ranks.py --model yolox                            # three seeds alone, one of them by torchrun
    python benchmarks/ranks.py --model rtdetr --epochs 2 --imgsz 96 --seeds 0      # a quick look
    python benchmarks/ranks.py --model yolox --folder runs --only two   # reuses what stands in the folder
    python benchmarks/ranks.py --model rtdetr --pairs                   # every seed also with two processes
    python benchmarks/ranks.py --model rtdetr --float64 --epochs 6      # hardly any rounding: equal metrics
    python benchmarks/ranks.py --model yolox --nudges 6                 # what rounding does to one process
    python benchmarks/ranks.py --model yolox --float64 --lr0 0.0005 --weights best.pt      # from trained weights

Settings are those of ``learning.py`` with what is below, ``sync_bn`` on, and the same seed, so that each step has the
same images with the same augmentation. Prints Markdown; the exit code says whether the two agree: losses within 1% on
every step of the first epoch, and the last epoch's mAP50-95 between the smallest and the largest of the seeds. Once
rounding has moved a first match between boxes and objects the two go ways of their own, and of four equal draws one
is the smallest or the largest half of the time; so ``--pairs`` judges the mean over the seeds. With ``--float64``
that takes longer (80 steps of a new RT-DETR); until then both go the same way, unless one computes something else.
From trained ``--weights`` a small difference hardly grows, and whole runs in float64 can be compared. ``--nudges``
trains the first seed again with one process, from weights that differ in their last digit: how far apart those end is
how far apart one and two processes may.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from double import double_precision
from learning import RUNS

METRIC = "metrics/mAP50-95"
TOLERANCE = 0.01
MORE: dict[str, dict[str, Any]] = {
    "yolox": {},
    # float32: in bfloat16 half a batch rounds otherwise than a whole one, which is not what is compared here
    "rtdetr": {"epochs": 15, "imgsz": 224, "amp": False, "amp_dtype": None},
}


def worker(file: Path) -> None:
    """One process of a run: train, and leave the loss of each step as this rank saw it."""
    import torch
    from step_losses import step_losses

    from libreyolo import LibreYOLO

    job = json.loads(file.read_text())
    torch.manual_seed(job["settings"]["seed"])  # the weights that the model starts from
    with double_precision(job["float64"]), step_losses() as steps:
        start = {"model": job["weights"]} if job["weights"] else {"model": job["model"], "pretrained": False}
        model = LibreYOLO(**start, device="cpu")
        model.train(**job["settings"], callbacks=nudges(job["nudge"]))
    (file.parent / f"losses-rank{os.environ.get('RANK', 0)}.json").write_text(json.dumps(steps))


def nudges(seed: int) -> list[Any]:
    """What moves every weight that training starts from by about its last digit; nothing for seed 0."""
    import torch

    from libreyolo_core.engine.callbacks import Callback

    class Nudge(Callback):
        @torch.no_grad()
        def on_start(self, run: Any) -> None:
            draw = torch.Generator().manual_seed(seed)
            for parameter in run.network.parameters():
                last_digit = torch.finfo(parameter.dtype).eps / 2
                parameter.mul_(1 + last_digit * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))

    return [Nudge()] if seed else []


def run(
    name: str,
    seed: int,
    ranks: int,
    folder: Path,
    changes: dict[str, Any],
    *,
    float64: bool = False,
    weights: Path | None = None,
    nudge: int = 0,
) -> dict[str, Any]:
    """Train with that many processes; what a folder already holds is not trained again."""
    kind = f"{'-float64' if float64 else ''}{f'-nudge{nudge}' if nudge else ''}"
    place = folder / f"{name}-seed{seed}-ranks{ranks}{kind}"
    answer, job = place / "answer.json", place / "job.json"
    settings = {
        **RUNS[name]["settings"], **MORE[name], **changes, "seed": seed, "sync_bn": True, "plots": False,
        "workers": 0, "device": "cpu", "project": str(place), "name": "run", "exist_ok": True,
    }  # fmt: skip
    settings = {k: v for k, v in settings.items() if v is not None}
    start = {"model": RUNS[name]["model"], "weights": weights and str(weights.resolve())}
    asked = json.dumps({**start, "float64": float64, "nudge": nudge, "settings": settings}, indent=1)
    if answer.is_file() and json.loads(job.read_text()) != json.loads(asked):
        raise SystemExit(f"{place} holds a run with other settings ({job.name} lists them): name another --folder")
    if not answer.is_file():
        place.mkdir(parents=True, exist_ok=True)
        job.write_text(asked)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
        command = [sys.executable, *launcher, str(Path(__file__).resolve()), "--worker", str(job)]
        with (place / "log.txt").open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise SystemExit((place / "log.txt").read_text()[-3000:])
        answer.write_text(json.dumps(read(place, ranks), indent=1))
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def read(place: Path, ranks: int) -> dict[str, Any]:
    """Losses of every step (the mean over ranks is the loss of the whole batch) and metrics by epoch."""
    with (place / "run" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shares = [json.loads((place / f"losses-rank{i}.json").read_text()) for i in range(ranks)]
    return {
        "settings": json.loads((place / "job.json").read_text())["settings"],
        "steps_per_epoch": int(rows[0]["step"]),
        "losses": [sum(step) / ranks for step in zip(*shares, strict=True)],
        "epoch_losses": [float(r["train/loss"]) for r in rows],
        "metrics": {r["epoch"]: float(r[METRIC]) for r in rows if r.get(METRIC)},
        "minutes": sum(float(r["seconds"]) for r in rows) / 60,
    }


def last(found: dict[str, Any]) -> float:
    """The metric after the last epoch."""
    return float(list(found["metrics"].values())[-1])


def first_epoch(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Print the losses of the first epoch; returns the largest relative difference."""
    count = one["steps_per_epoch"]
    pairs = list(zip(one["losses"][:count], two["losses"][:count], strict=True))
    apart = [abs(b - a) / abs(a) for a, b in pairs]
    print("| step |", " | ".join(map(str, range(1, count + 1))), "|")
    print("|---|" + "---|" * count)
    for title, values in (("one process", [a for a, _ in pairs]), ("two processes", [b for _, b in pairs])):
        print(f"| {title} |", " | ".join(f"{v:.4f}" for v in values), "|")
    print("| difference |", " | ".join(f"{v:.0e}" for v in apart), "|\n")
    whole = max(abs(b - a) / abs(a) for a, b in zip(one["losses"], two["losses"], strict=True))
    seed = one["settings"]["seed"]
    print(f"seed {seed}: losses of the first epoch at most {max(apart):.1e} apart, of all steps {whole:.1e}\n")
    return max(apart)


def inside(ones: list[dict[str, Any]], twos: list[dict[str, Any]]) -> bool:
    """Print and return whether the mean metric of two processes lies within the spread of the seeds of one."""
    low, high = min(map(last, ones)), max(map(last, ones))
    mean = sum(map(last, twos)) / len(twos)
    found = low <= mean <= high
    print(
        f"{METRIC.removeprefix('metrics/')} of the last epoch: {mean:.4f}{' on average' if len(twos) > 1 else ''}, "
        f"{'inside' if found else 'outside'} {low:.4f} to {high:.4f}"
    )
    return found


def curves(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Print the losses of ten epochs spread over the run."""
    a, b = one["epoch_losses"], two["epoch_losses"]
    epochs = sorted({round(1 + i * (len(a) - 1) / 9) for i in range(10)})
    print("| epoch |", " | ".join(map(str, epochs)), "|")
    print("|---|" + "---|" * len(epochs))
    for title, values in (("one process", a), ("two processes", b)):
        print(f"| {title} |", " | ".join(f"{values[e - 1]:.3f}" for e in epochs), "|")
    print()


def main() -> None:
    """Run, print, and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MORE), default="yolox")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--imgsz", type=int)
    parser.add_argument("--lr0", type=float)
    parser.add_argument(
        "--weights", type=Path, help="a checkpoint of that model to start from, in place of new weights"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of one process; two take the first")
    parser.add_argument("--pairs", action="store_true", help="two processes take every seed, not the first alone")
    parser.add_argument("--float64", action="store_true", help="compute in float64 what is float32 otherwise")
    parser.add_argument("--nudges", type=int, default=0, help="further runs of the first seed, weights hardly moved")
    parser.add_argument("--only", choices=["one", "two"])
    parser.add_argument("--folder", type=Path, help="keep runs here, and reuse those that are there")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    changes: dict[str, Any] = {k: getattr(args, k) for k in ("epochs", "imgsz", "lr0") if getattr(args, k)}
    if args.float64:
        changes |= {"amp": False, "amp_dtype": None}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        shared = args.seeds if args.pairs else args.seeds[:1]
        train = partial(run, args.model, folder=folder, changes=changes, float64=args.float64, weights=args.weights)
        twos = [train(seed=s, ranks=2) for s in shared] if args.only != "one" else []
        ones = [train(seed=s, ranks=1) for s in args.seeds] if args.only != "two" else []
        nudged = [train(seed=args.seeds[0], ranks=1, nudge=n + 1) for n in range(args.nudges)]
    if args.json:
        found = {"one": dict(zip(args.seeds, ones, strict=False)), "two": dict(zip(shared, twos, strict=False))}
        found["nudged"] = dict(enumerate(nudged, 1))
        args.json.write_text(json.dumps(found, indent=1))
    print(f"| {RUNS[args.model]['model']} | seed | {METRIC.removeprefix('metrics/')} | minutes |\n|---|---|---|---|")
    for title, runs in (("one process", ones), ("two processes", twos)):
        for seed, one in zip(args.seeds, runs, strict=False):
            print(f"| {title} | {seed} | {last(one):.4f} | {one['minutes']:.1f} |")
    for one in nudged:
        print(f"| one process, nudged | {args.seeds[0]} | {last(one):.4f} | {one['minutes']:.1f} |")
    print()
    if twos and ones:
        curves(ones[0], twos[0])
        apart = max(first_epoch(one, two) for one, two in zip(ones, twos, strict=False))
        sys.exit(not (apart <= TOLERANCE and inside(ones, twos)))


if __name__ == "__main__":
    main()
