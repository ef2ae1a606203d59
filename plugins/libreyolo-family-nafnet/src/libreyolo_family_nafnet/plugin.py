"""The data sheet of NAFNet (arXiv 2204.04676)."""

from __future__ import annotations

from libreyolo_core.augment import Flip, FlipVertical, RandomCrop, Rotate90
from libreyolo_core.family import (
    AdamW,
    Capture,
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

NAFNET = Family(
    "nafnet",
    "NAFNet",
    network="libreyolo_family_nafnet.network:NAFNet",
    paper="https://arxiv.org/abs/2204.04676",
    weights=Weights("LibreNAFNet{size}-restore.pt"),
    checkpoint=Checkpoint(
        signature=("intro.weight", "ending.weight", "encoders.*.beta", "decoders.*.beta", "middle_blks.*.beta"),
        adapter="libreyolo_family_nafnet.checkpoint",
    ),
    default_size="s",
    tasks={
        "restore": Task(
            classes=1,
            model={"encoder": (1, 1, 1, 28), "middle": 1, "decoder": (1, 1, 1, 1), "window": 384, "local": True},
            sizes={
                "s": Size(256, params=17_111_907, width=32),
                "l": Size(256, params=67_888_835, width=64),
            },
            variants={"sidd": {"model.encoder": (2, 2, 4, 8), "model.middle": 12, "model.decoder": (2, 2, 2, 2)}},
            input=Input(fit="native", multiple=16, border="reflect", colour="rgb", scale=1 / 255),
            augment=(RandomCrop(p=1.0), Flip(p=0.5), FlipVertical(p=0.5), Rotate90(p=1.0)),
            recipe=Recipe(
                epochs=100,
                batch=16,
                imgsz=256,
                optimizer=AdamW(1e-3, decay=0.0, betas=(0.9, 0.999)),
                groups=(Group(of="norm|bias", decay=0.0), Group(r"\.(beta|gamma)$", decay=0.0)),
                schedule=Schedule("cosine", to=0.01),
                ema=Ema(0.9998, ramp=2000),
            ),
            loss=Loss("libreyolo_family_nafnet.loss:Charbonnier", static=True, eps=1e-3),
            post=Post(nms=False),
            capture=Capture("network", numerics="exact"),
            precision=Precision(
                amp=True, why="as published; variances, running sums of local pooling and the loss stay in float32"
            ),
            ranks=Ranks(sync_bn=False),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """The one family of this package."""
    return [NAFNET]
