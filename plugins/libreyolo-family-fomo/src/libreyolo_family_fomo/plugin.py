"""The data sheet of FOMO (Edge Impulse, 2022) on MobileNetV2 (arXiv 1801.04381)."""

from __future__ import annotations

from libreyolo_core.augment import Flip, FlipVertical, Hsv, Rotate90
from libreyolo_core.family import (
    SCRATCH,
    Capture,
    Change,
    Checkpoint,
    Ema,
    Family,
    Input,
    Loss,
    Optimizer,
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

FOMO = Family(
    "fomo",
    "FOMO",
    network="libreyolo_family_fomo.network:FOMO",
    paper="https://www.edgeimpulse.com/blog/announcing-fomo-faster-objects-more-objects/",
    weights=Weights("LibreFOMO{size}-point.pt", organisation=""),
    checkpoint=Checkpoint(
        signature=("head.weight", "backbone.block_6_expand.*", "backbone.block_2.conv.0.0.conv.weight"),
        adapter="libreyolo_family_fomo.checkpoint",
    ),
    default_size="m",
    tasks={
        "point": Task(
            classes=1,
            sizes={
                "s": Size(96, params=16_034, alpha=0.35),
                "m": Size(192, params=21_922, alpha=0.5),
                "l": Size(224, params=62_402, alpha=1.0),
            },
            input=Input(
                fit="stretch",
                resample="pil-linear",
                colour="rgb",
                scale=1 / 255,
                mean=(0.5, 0.5, 0.5),
                std=(0.5, 0.5, 0.5),
                multiple=8,
                fixed=True,
            ),
            augment=(Hsv(p=0.0), Rotate90(p=0.0), Flip(p=0.0), FlipVertical(p=0.0)),
            recipe=Recipe(
                epochs=40,
                batch=32,
                optimizer=Optimizer("adam", lr=3e-4, decay=0.0),
                schedule=Schedule("cosine", to=0.05),
                ema=Ema(on=False),
            ),
            changes=(Change(SCRATCH, {"recipe.optimizer.lr": 2e-3}),),
            loss=Loss("libreyolo_family_fomo.loss:GridCrossEntropy", static=True, fg_weight=100.0),
            post=Post(nms=False, conf=0.25, max_det=300, val_conf=0.001, radius=1),
            capture=Capture("network", numerics="spread"),
            precision=Precision(
                amp=False,
                why="as published, without a reason given; so small a network gains no time from half precision",
            ),
            ranks=Ranks(sync_bn=True),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """The one family of this package."""
    return [FOMO]
