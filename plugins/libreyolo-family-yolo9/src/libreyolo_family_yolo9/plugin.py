"""The data sheet of YOLOv9 (arXiv 2402.13616)."""

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

YOLO9 = Family(
    "yolo9",
    "YOLOv9",
    network="libreyolo_family_yolo9.network:YOLO9",
    paper="https://arxiv.org/abs/2402.13616",
    weights=Weights("LibreYOLO9{size}.pt", licence="MIT", aliases=("v9-{size}", "yolo9-{size}")),
    checkpoint=Checkpoint(
        signature=("backbone.elan1.*", "neck.elan_down2.*", "head.cv3.0.2.weight"),
        rename=(
            (r"^detect\.", "head."),
            # Files of the original project number the layers.
            (r"^([01])\.", r"backbone.conv\1."),
            (r"^2\.", "backbone.elan1."),
            (r"^3\.", "backbone.down2."),
            (r"^4\.", "backbone.elan2."),
            (r"^5\.", "backbone.down3."),
            (r"^6\.", "backbone.elan3."),
            (r"^7\.", "backbone.down4."),
            (r"^8\.", "backbone.elan4."),
            (r"^9\.", "backbone.spp."),
            (r"^12\.", "neck.elan_up1."),
            (r"^15\.", "neck.elan_up2."),
            (r"^16\.", "neck.down1."),
            (r"^18\.", "neck.elan_down1."),
            (r"^19\.", "neck.down2."),
            (r"^21\.", "neck.elan_down2."),
            (r"^22\.", "head."),
            (r"^23\.", "aux.spp."),
            (r"^26\.", "aux.elan_a4."),
            (r"^29\.", "aux.elan_a3."),
            (r"^30\.", "aux_head."),
            # Inside its layers other names; a re-parameterised pair has the same ones.
            (r"(\.down\d)\.conv\.", r"\1.cv."),
            (r"(\.down\d|\.spp|\.elan\w+)\.conv([1-5])\.", r"\1.cv\2."),
            (r"(\.elan\w+\.cv[23]\.0)\.conv([123])\.", r"\1.cv\2."),
            (r"(\.elan\w+\.cv[23]\.0)\.bottleneck\.(\d+)\.conv([12])\.", r"\1.m.\2.cv\3."),
            (r"(head)\.heads\.(\d)\.anchor_conv\.", r"\1.cv2.\2."),
            (r"(head)\.heads\.(\d)\.class_conv\.", r"\1.cv3.\2."),
        ),
        drop=("*.anc2vec.*", "head.dfl.conv.weight"),
        training_only=("aux.*", "aux_head.*"),
        classes="head.cv3.0.2.weight",
        adapter="libreyolo_family_yolo9.checkpoint",
    ),
    default_size="s",
    tasks={
        "detect": Task(
            sizes={
                "t": Size(
                    640,
                    params=2_036_544,
                    stem=(16, 32),
                    first=(32, 32),
                    stages=((64, 64, 64), (96, 96, 96), (128, 128, 128)),
                    neck=(96, 64),
                    neck_down=(48, 64),
                    repeats=3,
                    class_width=80,
                ),
                "s": Size(
                    640,
                    params=7_226_192,
                    stem=(32, 64),
                    first=(64, 64),
                    stages=((128, 128, 128), (192, 192, 192), (256, 256, 256)),
                    neck=(192, 128),
                    neck_down=(96, 128),
                    repeats=3,
                    class_width=128,
                ),
                "m": Size(
                    640,
                    params=20_123_984,
                    stem=(32, 64),
                    first=(128, 128),
                    first_repeats=1,
                    stages=((240, 240, 240), (360, 360, 360), (480, 480, 480)),
                    neck=(360, 240),
                    neck_down=(184, 240),
                    repeats=1,
                    class_width=240,
                ),
                "c": Size(
                    640,
                    params=25_498_736,
                    stem=(64, 128),
                    first=(256, 128),
                    first_repeats=1,
                    stages=((256, 512, 256), (512, 512, 512), (512, 512, 512)),
                    neck=(512, 256),
                    neck_down=(256, 512),
                    repeats=1,
                    class_width=256,
                    split=True,
                ),
            },
            training={"auxiliary": True},
            input=Input(fit="letterbox", side="top-left", pad=114, colour="rgb", scale=1 / 255, resample="linear"),
            augment=(
                Mosaic(p=1.0, rotate=0.0, translate=0.1, scale=(0.5, 1.5), shear=0.0, min_side=2.0, enlarge=False),
                MixUp(p=0.0, scale=(1.0, 1.0), flip=0.0),
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
                optimizer=SGD(0.01, decay=5e-4, momentum=0.937, nesterov=True),
                groups=(Group(of="norm|bias", decay=0.0),),
                schedule=Schedule("linear", to=0.01, warmup=3, start=0.01, momentum=0.8),
                ema=Ema(0.9999, ramp=2000),
            ),
            changes=(Change(TAIL, {"augment.mosaic.p": 0.0, "augment.mixup.p": 0.0}),),
            loss=Loss("libreyolo_family_yolo9.loss:YOLO9Loss", static=True, box=7.5, dfl=1.5, cls=0.5, aux=0.25),
            post=Post("topk", nms=True, conf=0.25, iou=0.45, max_det=300, val_conf=0.001, val_iou=0.6),
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
    return [YOLO9]
