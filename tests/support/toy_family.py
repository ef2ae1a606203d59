"""A tiny detection family for tests of the engine: trains in milliseconds, has every moving part of a real one."""

import torch
from torch import nn

from libreyolo_core.augment import Flip, Hsv, Mosaic
from libreyolo_core.draw import DropPath
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
    Recipe,
    Schedule,
    Size,
    Task,
    Weights,
)
from libreyolo_core.hookspecs import hookimpl
from libreyolo_core.losses import LossTerms, float32_island
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions


class ToyNetwork(Network):
    """One stride-16 grid; every cell predicts a box around itself and class scores."""

    strides = (16,)

    def __init__(self, nc: int, width: int = 8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, width, 4, 4), nn.BatchNorm2d(width), nn.ReLU())
        self.drop = DropPath(0.1, "toy.body")
        self.head = nn.Conv2d(width, 4 + nc, 1)
        self.sharp = False

    def region(self, images, draw=None):
        x = self.stem(images)
        x = self.drop(self.body(x), draw)
        out = self.head(x).flatten(2).transpose(1, 2)  # [N, A, 4 + C]
        h, w = images.shape[-2] // 16, images.shape[-1] // 16
        y, x = torch.meshgrid(
            torch.arange(h, device=images.device), torch.arange(w, device=images.device), indexing="ij"
        )
        centre = (torch.stack([x, y], -1).reshape(1, -1, 2) + 0.5) * 16
        half = out[..., 2:4].clamp(max=4).exp() * 8
        middle = centre + out[..., :2] * 16
        return {"boxes": torch.cat([middle - half, middle + half], -1), "logits": out[..., 4:]}

    def predictions(self, outputs, image_size):
        return Predictions(
            boxes=outputs["boxes"], scores=outputs["logits"].sigmoid(), levels=(outputs["boxes"].shape[1],)
        )

    def configure(self, sharp=None):
        if sharp is not None:
            self.sharp = sharp

    def reset_classes(self, names=None):
        nn.init.constant_(self.head.bias[4:], -4.6)


class ToyLoss:
    """Cells inside a box learn its class and corners."""

    def __init__(self, network, extra=0.0):
        self.extra = extra

    def __call__(self, outputs, targets, step):
        return self.compute(outputs["boxes"], outputs["logits"], targets, step)

    @float32_island
    def compute(self, boxes, logits, targets, step):
        centre = (boxes[..., :2] + boxes[..., 2:]).detach() / 2
        gt = targets.boxes[:, :, None]  # [N, M, 1, 4]
        inside = ((centre[:, None] > gt[..., :2]) & (centre[:, None] < gt[..., 2:])).all(-1) & targets.valid[..., None]
        inside = inside.float()
        count = step.ranks.normaliser(inside.sum())
        one_hot = (targets.labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)).float()
        wanted = torch.einsum("nma,nmc->nac", inside, one_hot).clamp(max=1)
        cls = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum() / count
        box = (inside[..., None] * (boxes[:, None] - gt).abs() / 16).sum() / count
        terms = {"cls": cls, "box": box}
        if self.extra:
            terms["extra"] = self.extra * boxes.square().mean() * 1e-4
        return LossTerms(terms)


FAMILY = Family(
    "toy",
    "Toy",
    network="toy_family:ToyNetwork",
    weights=Weights("LibreToy{size}.pt", licence="MIT"),
    checkpoint=Checkpoint(signature=("stem.0.weight", "body.0.weight", "head.weight")),
    tasks={
        "detect": Task(
            sizes={"s": Size(64, params=1528, width=8), "l": Size(64, params=5096, width=16)},
            classes=4,
            input=Input(multiple=16),
            augment=(Mosaic(p=1.0, scale=(0.5, 1.5)), Hsv(), Flip()),
            recipe=Recipe(
                epochs=4,
                batch=4,
                tail=1,
                optimizer=SGD(0.01, decay=5e-4, nesterov=True),
                groups=(Group(of="norm|bias", decay=0),),
                schedule=Schedule("cosine", to=0.05, warmup=1, power=2, hold="tail"),
                ema=Ema(0.99, ramp=10),
                clip=10.0,
            ),
            changes=(Change(TAIL, {"augment.mosaic.p": 0.0, "network.sharp": True, "loss.extra": 1.0}),),
            loss=Loss("toy_family:ToyLoss", static=True, extra=0.0),
            post=Post("best", nms=True),
            capture=Capture("network", numerics="exact"),
            precision=Precision(amp=False, why="too small to gain"),
        )
    },
    default_size="s",
)


@hookimpl
def libreyolo_families():
    return [FAMILY]
