"""The data sheet of ResNet (arXiv 1512.03385, stride on the 3x3 convolution of a bottleneck)."""

from __future__ import annotations

from libreyolo_core.augment import AutoAugment, Erase, Flip, FlipVertical, MixLabels, RandomResizedCrop
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

RESNET = Family(
    "resnet",
    "ResNet",
    network="libreyolo_family_resnet.network:ResNetClassifier",
    paper="https://arxiv.org/abs/1512.03385",
    weights=Weights("LibreResNet{size}-cls.pt", licence="Apache-2.0", aliases=("LibreResNet{size}",)),
    checkpoint=Checkpoint(
        signature=("conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.weight", "fc.weight"),
        classes="fc.weight",
    ),
    default_size="50",
    tasks={
        "classify": Task(
            classes=1000,
            sizes={
                "18": Size(224, params=11_689_512, block="basic", blocks=(2, 2, 2, 2)),
                "34": Size(224, params=21_797_672, block="basic", blocks=(3, 4, 6, 3)),
                "50": Size(224, params=25_557_032, block="bottleneck", blocks=(3, 4, 6, 3)),
                "101": Size(224, params=44_549_160, block="bottleneck", blocks=(3, 4, 23, 3)),
                "152": Size(224, params=60_192_808, block="bottleneck", blocks=(3, 8, 36, 3)),
            },
            input=Input(
                fit="crop",
                margin=0.95,
                resample="pil-bicubic",
                colour="rgb",
                scale=1 / 255,
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
                multiple=1,
            ),
            augment=(
                RandomResizedCrop(p=1.0, scale=(0.5, 1.0), ratio=(3 / 4, 4 / 3)),
                Flip(p=0.5),
                FlipVertical(p=0.0),
                AutoAugment(policy=""),
                Erase(p=0.0),
                MixLabels(mixup=0.0, cutmix=0.0),
            ),
            recipe=Recipe(
                epochs=100,
                batch=64,
                optimizer=AdamW(1e-3, decay=1e-4),
                groups=(Group(of="norm|bias", decay=0.0),),
                schedule=Schedule("cosine", to=0.01, warmup=1, power=2),
                ema=Ema(0.9998, ramp=2000),
                eval_every=1,
                patience=50,
            ),
            loss=Loss("libreyolo_family_resnet.loss:CrossEntropy", static=True),
            post=Post(nms=False),
            capture=Capture("network", numerics="exact"),
            precision=Precision(amp=True, dtype="float16", why="nothing in it needs more than autocast already keeps"),
            ranks=Ranks(sync_bn=False),
        )
    },
)


@hookimpl
def libreyolo_families() -> list[Family]:
    """The one family of this package."""
    return [RESNET]
