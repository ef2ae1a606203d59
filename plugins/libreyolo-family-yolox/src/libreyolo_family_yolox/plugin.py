"""The data sheet of YOLOX (arXiv 2107.08430)."""

from __future__ import annotations

from libreyolo_core.augment import Flip, FlipVertical, Hsv, MixUp, Mosaic, Rotate90
from libreyolo_core.family import (
    SGD,
    TAIL,
    Capture,
    Change,
    Checkpoint,
    Ema,
    Family,
    Group,
    Input,
    Loss,
    Post,
    Precision,
    Ranks,
    Recipe,
    Schedule,
    Size,
    Task,
    Weights,
)
from libreyolo_core.hookspecs import hookimpl

YOLOX = Family(
    "yolox",
    "YOLOX",
    network="libreyolo_family_yolox.network:YOLOX",
    paper="https://arxiv.org/abs/2107.08430",
    weights=Weights("LibreYOLOX{size}.pt", licence="Apache-2.0", aliases=("yolox-{size}",)),
    checkpoint=Checkpoint(
        signature=("backbone.backbone.dark5.*", "head.obj_preds.*"),
        classes="head.cls_preds.0.weight",
    ),
    default_size="s",
    tasks={
        "detect": Task(
            sizes={
                "n": Size(416, params=912_159, depth=0.33, width=0.25, depthwise=True),
                "t": Size(416, params=5_055_855, depth=0.33, width=0.375),
                "s": Size(640, params=8_968_255, depth=0.33, width=0.50),
                "m": Size(640, params=25_326_495, depth=0.67, width=0.75),
                "l": Size(640, params=54_208_895, depth=1.0, width=1.0),
                "x": Size(640, params=99_071_455, depth=1.33, width=1.25),
            },
            input=Input(
                fit="letterbox",
                side="top-left",
                pad=114,
                colour="bgr",
                scale=1.0,
                resample="linear",
                predict_resample="pil-linear",
            ),
            augment=(
                Mosaic(p=1.0, rotate=10.0, translate=0.1, scale=(0.1, 2.0), shear=2.0),
                MixUp(p=1.0, scale=(0.5, 1.5)),
                Hsv(p=1.0, hue=5, saturation=30, value=30),
                Rotate90(p=0.0),
                Flip(p=0.5),
                FlipVertical(p=0.0),
            ),
            recipe=Recipe(
                epochs=300,
                batch=16,
                imgsz=640,
                tail=15,
                optimizer=SGD(0.01, decay=5e-4, momentum=0.9, nesterov=True),
                groups=(Group(of="norm|bias", decay=0.0),),
                schedule=Schedule("cosine", to=0.05, warmup=5, power=2, hold="tail"),
                ema=Ema(0.9998, ramp=2000),
                eval_every=10,
            ),
            changes=(
                Change(TAIL, {"augment.mosaic.p": 0.0, "augment.mixup.p": 0.0, "network.l1": True, "loss.l1": 1.0}),
            ),
            loss=Loss("libreyolo_family_yolox.loss:YOLOXLoss", static=True, iou=5.0, obj=1.0, cls=1.0, l1=0.0),
            post=Post("best", nms=True, conf=0.25, iou=0.45, max_det=300, val_conf=0.001, val_iou=0.65),
            capture=Capture("network", numerics="exact"),
            precision=Precision(
                amp=True, dtype="float16", why="trained in float16 as published; boxes and loss are computed in float32"
            ),
            ranks=Ranks(sync_bn=True),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """The one family of this package."""
    return [YOLOX]
