"""D-FINE's data sheet."""

from __future__ import annotations

from libreyolo_core.augment import Flip, FlipVertical, IoUCrop, Photometric, Rotate90, ZoomOut
from libreyolo_core.family import (
    SCRATCH,
    TAIL,
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

HOOK_VERSION = 1

NO_DECAY = r"(norm|\.bn\.|bias|lab\.scale)"
WEAK = {"augment.photometric.p": 0.0, "augment.zoom_out.p": 0.0, "augment.iou_crop.p": 0.0, "recipe.multi_scale": 0.0}

DFINE = Family(
    key="dfine",
    title="D-FINE",
    paper="D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution Refinement (Peng et al., 2024)",
    network="libreyolo_family_dfine.network:DFINE",
    weights=Weights("LibreDFINE{size}.pt", licence="Apache-2.0", aliases=("LibreDFINE-{size}.pt", "dfine-{size}")),
    default_size="n",
    checkpoint=Checkpoint(
        signature=(
            "backbone.stages.*",
            "encoder.lateral_convs.*",
            "decoder.pre_bbox_head.*",
            "decoder.decoder.layers.*.linear1.weight",
        ),
        drop=("decoder.anchors", "decoder.valid_mask", "num_points_scale"),
        optional=("*.num_batches_tracked",),
        tied=(("decoder.decoder.up", "decoder.up"), ("decoder.decoder.reg_scale", "decoder.reg_scale")),
        classes="decoder.dec_score_head.0.bias",
        adapter="libreyolo_family_dfine.checkpoint",
    ),
    tasks={
        "detect": Task(
            sizes={
                "n": Size(
                    640,
                    params=3_782_693,
                    backbone="b0",
                    lab=True,
                    hidden=128,
                    encoder_ffn=512,
                    elan=21,
                    depth=2,
                    dim=128,
                    ffn=512,
                    layers=3,
                    points=(6, 6),
                    set={"recipe.multi_scale": 0.0},
                ),
                "s": Size(
                    640,
                    params=10_321_877,
                    backbone="b0",
                    lab=True,
                    elan=64,
                    depth=1,
                    layers=3,
                    set={"recipe.multi_scale_base": 20},
                ),
                "m": Size(
                    640,
                    params=19_590_064,
                    backbone="b2",
                    lab=True,
                    depth=2,
                    layers=4,
                    set={"recipe.multi_scale_base": 6},
                ),
                "l": Size(640, params=31_244_152, backbone="b4", freeze_norm=True, set={"recipe.multi_scale_base": 4}),
                "x": Size(
                    640,
                    params=62_621_560,
                    backbone="b5",
                    freeze_norm=True,
                    hidden=384,
                    encoder_ffn=2048,
                    elan=192,
                    reg_scale=8.0,
                    set={"recipe.multi_scale_base": 3},
                ),
            },
            input=Input(fit="stretch", colour="rgb", scale=1 / 255, resample="pil-linear"),
            augment=(
                Photometric(p=0.5),
                ZoomOut(p=0.5, scale=(1, 4), fill=0),
                IoUCrop(p=0.8),
                Rotate90(p=0.0),
                Flip(p=0.5),
                FlipVertical(p=0.0),
            ),
            recipe=Recipe(
                epochs=132,
                batch=16,
                tail=4,
                optimizer=AdamW(2e-4, decay=1e-4),
                groups=(
                    Group("backbone.*" + NO_DECAY, lr=0.5, decay=0),
                    Group("backbone", lr=0.5),
                    Group(NO_DECAY, decay=0),
                ),
                schedule=Schedule("cosine", to=0.05, warmup=2, start=0.005, flat="tail"),
                ema=Ema(0.9999, ramp=2000),
                clip=0.1,
                multi_scale=0.25,
                freeze=(r"backbone\.stem\.",),
            ),
            changes=(
                Change(0.85, WEAK),
                Change(TAIL, WEAK),
                # Nothing to protect: all parts learn at one rate, and a short run anneals from its first step on.
                Change(
                    SCRATCH,
                    {
                        "recipe.freeze": (),
                        "model.freeze_norm": False,
                        "recipe.optimizer.lr": 8e-4,
                        "recipe.groups": (Group(NO_DECAY, decay=0),),
                        "recipe.schedule": Schedule("cosine", to=0.05, warmup_steps=50),
                    },
                ),
            ),
            loss=Loss("libreyolo_kit_detr:FDRCriterion", score="vfl"),
            post=Post("topk", nms=False, conf=0.25, max_det=300, clamp=False),
            capture=Capture("backbone + encoder", numerics="spread"),
            precision=Precision(amp=False, why="activations reach the limit of float16, box edges are sums of logits"),
            ranks=Ranks(sync_bn=False),
            unused=(r"decoder\.(up|reg_scale)$",),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """D-FINE."""
    return [DFINE]
