"""47 aerial photos with 918 tree crowns, and what can be made of them for other tasks."""

from __future__ import annotations

from pathlib import Path

DEMO = {
    "model": "yolo9-t",
    "settings": {
        "imgsz": 320,
        "epochs": 110,
        "batch": 8,
        "auxiliary": False,
        "optimizer": "adamw",
        "lr0": 0.005,
        "lrf": 0.3,
        "weight_decay": 0.01,
        "warmup_epochs": 4,
        "no_aug_epochs": 0,
        "ema_decay": 0.995,
        "ema_ramp": 100,
        "mosaic_prob": 0.5,
        "mosaic_scale": (0.75, 1.35),
        "rotate90_prob": 0.75,
        "hsv_h": 15,
        "hsv_s": 100,
        "hsv_v": 100,
        "amp_dtype": "bfloat16",
        "patience": 0,
        "eval_interval": 10,
        "val_iou": 0.45,
    },
    "use": {"imgsz": 352, "iou": 0.45},
}
"""What ``libreyolo demo`` trains, and how; ``use`` is how it measures and predicts afterwards. The published recipe is
made for 118,000 photos and 500 epochs; here are 40 photos and a few minutes. So: small steps in number (batch 8 instead
of 64), Adam with a high rate and a short warm-up, an average over two hundred steps instead of thousands, zoom
kept near the photos' own scale (all crowns are of one kind of size), and quarter turns, which are free for photos from
above.

The small model without its auxiliary branch takes more than twice as many steps in these minutes as the next larger one
with it, which counts for more. Colours are shifted three times as far as published: the val photos are of another place
and another light. Of crowns that touch, none hides another, so NMS takes the overlap that predictions have; photos are
looked at a little larger than in training, which measured better. bfloat16 makes a step faster on processors that have
it."""


def path() -> Path:
    """The data YAML of the photos, which lie beside it in this package."""
    return Path(__file__).resolve().parent / "treecrowns" / "treecrowns.yaml"


def classify_path() -> Path:
    """The folder of the crops with and without a tree; cut from the photos at the first call."""
    from libreyolo_data_treecrowns.crops import cut_crops

    return cut_crops(path().parent)


def semantic_path() -> Path:
    """The folder of tiles with masks of crowns (ellipses in the boxes); cut from the photos at the first call."""
    from libreyolo_data_treecrowns.tiles import cut_semantic

    return cut_semantic(path().parent)


def restore_path() -> Path:
    """The folder of blurred, noisy tiles and the clean ones; made from the photos at the first call."""
    from libreyolo_data_treecrowns.tiles import cut_restore

    return cut_restore(path().parent)
