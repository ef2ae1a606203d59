"""RT-DETR's data sheet."""

from __future__ import annotations

from libreyolo_core.augment import Flip, FlipVertical, Hsv, Rotate90
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

HOOK_VERSION = 1

RTDETR = Family(
    key="rtdetr",
    title="RT-DETR",
    paper="DETRs Beat YOLOs on Real-time Object Detection (Zhao et al., CVPR 2024)",
    network="libreyolo_family_rtdetr.network:RTDETR",
    weights=Weights("LibreRTDETR{size}.pt", licence="Apache-2.0", aliases=("LibreRTDETR-{size}.pt", "rtdetr-{size}")),
    default_size="r18",
    checkpoint=Checkpoint(
        signature=("backbone.*", "encoder.lateral_convs.*", "*.cross_attn.value_proj.*", "decoder.dec_score_head.*"),
        rename=(
            (r"(encoder\.input_proj\.\d|decoder\.enc_output)\.(conv|proj)\.", r"\1.0."),
            (r"(encoder\.input_proj\.\d|decoder\.enc_output)\.norm\.", r"\1.1."),
            (r"\.aggregation_squeeze_conv\.", ".aggregation.0."),
            (r"\.aggregation_excitation_conv\.", ".aggregation.1."),
            (r"(backbone\.stem\.stem2[ab]\.conv)\.1\.", r"\1."),
        ),
        drop=("decoder.anchors", "decoder.valid_mask", "num_points_scale"),
        optional=("*.num_batches_tracked",),
        classes="decoder.dec_score_head.0.bias",
        adapter="libreyolo_family_rtdetr.checkpoint",
    ),
    tasks={
        "detect": Task(
            sizes={
                "r18": Size(640, params=20_184_464, backbone="r18", expansion=0.5, layers=3),
                "r34": Size(640, params=31_441_668, backbone="r34", expansion=0.5, layers=4),
                "r50": Size(640, params=42_891_372, backbone="r50", freeze_norm=True),
                "r50m": Size(640, params=36_593_772, backbone="r50", expansion=0.5, eval_layer=2, freeze_norm=True),
                "r101": Size(640, params=76_556_268, backbone="r101", hidden=384, ffn=2048, freeze_norm=True),
                "l": Size(640, params=32_925_036, backbone="l", freeze_norm=True),
                "x": Size(640, params=67_374_188, backbone="x", hidden=384, ffn=2048, freeze_norm=True),
            },
            input=Input(fit="stretch", colour="rgb", scale=1 / 255),
            augment=(Hsv(p=0.5), Rotate90(p=0.0), Flip(p=0.5), FlipVertical(p=0.0)),
            recipe=Recipe(
                epochs=72,
                batch=4,
                optimizer=AdamW(1e-4, decay=1e-4),
                groups=(
                    Group("backbone.*(norm|bn)", lr=0.05, decay=0),
                    Group("backbone", lr=0.05),
                    Group("(encoder|decoder).*(norm|bias)", decay=0),
                ),
                schedule=Schedule("constant"),
                ema=Ema(0.9999, ramp=2000),
                clip=0.1,
                freeze=(r"backbone\.(conv1|stem)\.",),
            ),
            changes=(
                # Nothing to protect: all parts learn at one rate, five times that of a fine-tune.
                Change(
                    SCRATCH,
                    {
                        "recipe.freeze": (),
                        "model.freeze_norm": False,
                        "recipe.optimizer.lr": 5e-4,
                        "recipe.groups": (Group("(norm|bn)", decay=0), Group("(encoder|decoder).*bias", decay=0)),
                        "recipe.schedule": Schedule("cosine", to=0.05, warmup_steps=50),
                    },
                ),
            ),
            loss=Loss("libreyolo_kit_detr:SetCriterion", score="vfl"),
            post=Post("topk", nms=False, conf=0.25, max_det=300, clamp=False),
            capture=Capture("backbone + encoder", numerics="spread"),
            precision=Precision(amp=True, why="criterion in float32"),
            ranks=Ranks(sync_bn=False),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """RT-DETR."""
    return [RTDETR]
