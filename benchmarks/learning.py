"""Learning from scratch on the embedded sets: one command remakes one row of the table in docs/benchmarks.md.

    python benchmarks/learning.py yolox --seeds 0 1 2
    python benchmarks/learning.py rtdetr --seeds 0            # also prints the curve over minutes

Each run is a public ``train`` call; the settings that differ from the family's recipe are the ones below.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from pathlib import Path

import libreyolo  # noqa: F401  (before torch: bounds the spin of its threads)
from libreyolo import LibreYOLO

FROM_ABOVE = {"rotate90_prob": 0.75}  # photos from above have no upright
COLOUR = {"hsv_h": 12, "hsv_s": 80, "hsv_v": 80}  # the val photos are of another place and another light
SHORT = {"ema_decay": 0.99, "ema_ramp": 100}  # an average over the last hundred steps, not over thousands
RUNS: dict[str, dict] = {
    "yolox": {
        "model": "yolox-n",
        "metric": "metrics/mAP50",
        "settings": {
            "data": "treecrowns", "imgsz": 224, "epochs": 80, "batch": 8, "optimizer": "adamw", "lr0": 0.004,
            "weight_decay": 0.01, "warmup_epochs": 4, "mosaic_scale": (0.7, 1.4), "mixup_prob": 0, "degrees": 0,
            "shear": 0, "eval_interval": 10, **FROM_ABOVE,
        },
    },
    "rtdetr": {
        "model": "rtdetr-r18",
        "metric": "metrics/mAP50",
        "curve": True,
        "settings": {
            "data": "treecrowns", "imgsz": 320, "epochs": 40, "batch": 4, "amp_dtype": "bfloat16", "eval_interval": 4,
            **FROM_ABOVE,
        },
    },
    "yolo9": {
        "model": "yolo9-t",
        "metric": "metrics/mAP50",
        "settings": {
            "data": "treecrowns", "imgsz": 320, "epochs": 80, "batch": 8, "optimizer": "adamw", "lr0": 0.003,
            "weight_decay": 0.01, "warmup_epochs": 4, "no_aug_epochs": 5, "mosaic_prob": 0.6,
            "mosaic_scale": (0.8, 1.25), "amp_dtype": "bfloat16", "eval_interval": 5, **SHORT, **FROM_ABOVE, **COLOUR,
        },
    },
    "dfine": {
        "model": "dfine-s",
        "metric": "metrics/mAP50",
        "curve": True,
        "settings": {
            "data": "treecrowns", "imgsz": 256, "epochs": 60, "batch": 4, "lr0": 4e-4, "zoom_out_prob": 0,
            "iou_crop_prob": 0, "multi_scale": 0.0, "flip_vertical_prob": 0.5, "workers": 0, "eval_interval": 5,
            **SHORT, **FROM_ABOVE,
        },
    },
    "fomo": {
        "model": "fomo-m",
        "metric": "metrics/F1",
        "settings": {
            "data": "treecrowns", "imgsz": 192, "epochs": 60, "batch": 8, "flip_prob": 0.5, "eval_interval": 5,
            **FROM_ABOVE,
        },
    },
    "segformer": {
        "model": "segformer-b0",
        "metric": "metrics/mIoU",
        "settings": {
            "data": "treecrowns-semantic", "imgsz": 128, "epochs": 12, "batch": 8, "crop_zoom": (0.75, 1.5),
            "amp_dtype": "bfloat16", "eval_interval": 2, **SHORT,
        },
    },
    "nafnet": {
        "model": "nafnet-s",
        "metric": "metrics/PSNR",
        "settings": {
            "data": "treecrowns-restore", "imgsz": 64, "epochs": 6, "batch": 8, "amp_dtype": "bfloat16",
            "eval_interval": 2, **SHORT,
        },
    },
    "resnet": {
        "model": "resnet-18",
        "metric": "metrics/accuracy_top1",
        "settings": {"data": "treecrowns-classify", "imgsz": 64, "epochs": 6, "batch": 32, "eval_interval": 1},
    },
}  # fmt: skip
"""What each run changes against its family's recipe; everything else is the recipe for a start without weights."""


def one_run(name: str, seed: int, folder: Path) -> dict:
    """Train once; returns metric, minutes, steps and the curve."""
    spec = RUNS[name]
    model = LibreYOLO(spec["model"], pretrained=False, device="cpu")
    given = {"plots": False, "device": "cpu", "project": str(folder), "name": f"{name}-{seed}", **spec["settings"]}
    result = model.train(seed=seed, **given)
    with (result.save_dir / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    minutes, curve = 0.0, []
    for row in rows:
        minutes += float(row["seconds"]) / 60
        if row.get(spec["metric"]):
            curve.append((round(minutes, 2), round(float(row[spec["metric"]]), 4)))
    return {
        "seed": seed,
        "metric": max(value for _, value in curve),
        "minutes": round(result.minutes, 1),
        "steps": result.updates,
        "curve": curve,
    }


def main() -> None:
    """Run and print a Markdown row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=sorted(RUNS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [one_run(args.run, seed, Path(folder)) for seed in args.seeds]
    if args.json:
        print(json.dumps({"run": args.run, "settings": RUNS[args.run], "runs": runs}, indent=1))
        return
    spec, found = RUNS[args.run], [r["metric"] for r in runs]
    print(
        f"| {spec['model']} | {spec['settings']['imgsz']} | {runs[0]['steps']} | "
        f"{statistics.median(r['minutes'] for r in runs):.1f} | {spec['metric'].removeprefix('metrics/')} | "
        f"{', '.join(f'{v:.3f}' for v in found)} |"
    )
    for run in runs if spec.get("curve") else ():
        print(f"seed {run['seed']}: " + ", ".join(f"{m:.1f} min {v:.3f}" for m, v in run["curve"]))


if __name__ == "__main__":
    main()
