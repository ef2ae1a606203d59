"""SegFormer's data sheet."""

from __future__ import annotations

from libreyolo_core.augment import Flip, Hsv, ScaleCrop
from libreyolo_core.family import (
    SCRATCH,
    AdamW,
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

WIDE = (64, 128, 320, 512)

SEGFORMER = Family(
    key="segformer",
    title="SegFormer",
    paper="https://arxiv.org/abs/2105.15203",
    network="libreyolo_family_segformer.network:SegFormer",
    weights=Weights(
        "LibreSegformer{size}-sem.pt", licence="NVIDIA Source Code License, non-commercial (research or evaluation)"
    ),
    checkpoint=Checkpoint(
        signature=(
            "encoder.stages.0.patch_embeddings.proj.weight",
            "decode_head.linear_fuse.weight",
            "decode_head.classifier.weight",
        ),
        drop=("decode_head.conv_seg.*",),
        classes="decode_head.classifier.weight",
        adapter="libreyolo_family_segformer.checkpoint",
    ),
    default_size="b0",
    tasks={
        "semantic": Task(
            classes=150,
            sizes={
                "b0": Size(512, params=3_752_694, depths=(2, 2, 2, 2), widths=(32, 64, 160, 256), decoder=256),
                "b1": Size(512, params=13_715_798, depths=(2, 2, 2, 2), widths=WIDE, decoder=256),
                "b2": Size(512, params=27_461_974, depths=(3, 4, 6, 3), widths=WIDE, decoder=768),
                "b3": Size(512, params=47_337_814, depths=(3, 4, 18, 3), widths=WIDE, decoder=768),
                "b4": Size(512, params=64_108_374, depths=(3, 8, 27, 3), widths=WIDE, decoder=768),
                "b5": Size(640, params=84_708_694, depths=(3, 6, 40, 3), widths=WIDE, decoder=768),
            },
            input=Input(
                fit="letterbox",
                side="top-left",
                pad=114,
                scale=1 / 255,
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
                multiple=32,
                resample="pil-linear",
                predict_resample="linear",
            ),
            augment=(Flip(p=0.5), Hsv(p=0.0), ScaleCrop(scale=(0.5, 2.0), most=0.75)),
            recipe=Recipe(
                epochs=160,
                batch=8,
                optimizer=AdamW(6e-5, decay=0.01),
                groups=(
                    Group(r"^decode_head\..*(norm|bias)", lr=10, decay=0),
                    Group(r"^decode_head\.", lr=10),
                    Group("norm|bias|dwconv", decay=0),
                ),
                schedule=Schedule("linear", to=0.0, warmup=5, start=1 / 60),
                ema=Ema(0.999, ramp=2000),
                patience=50,
                drop_last=True,
            ),
            changes=(
                # Nothing to protect: encoder and head learn at one rate, warmed up by steps because runs are short.
                Change(
                    SCRATCH,
                    {
                        "recipe.optimizer.lr": 1e-3,
                        "recipe.groups": (Group("norm|bias|dwconv", decay=0),),
                        "recipe.schedule": Schedule("linear", to=0.0, warmup_steps=50),
                    },
                ),
            ),
            loss=Loss("libreyolo_family_segformer.loss:PixelCrossEntropy", static=True),
            post=Post(nms=False),
            # Replays draw what eager steps draw; on CUDA the gradients of bilinear resizing and of fused attention are
            # summed in no fixed order, captured or not.
            capture=Capture("network up to the logits at stride 4", numerics="spread"),
            precision=Precision(amp=True, dtype="float16", why="logits are resized and compared in float32"),
            ranks=Ranks(sync_bn=False),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """SegFormer."""
    return [SEGFORMER]
