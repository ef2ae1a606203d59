"""Tiny networks and models for the export tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core.family import Input, Loss, Post, Size, Task
from libreyolo_core.network import Network, fuse_conv_bn
from libreyolo_core.predictions import Predictions


class ToyDetector(Network):
    """Two levels of one convolution each, a box and class scores per cell."""

    def __init__(self, nc: int = 3) -> None:
        super().__init__()
        self.nc = nc
        self.stem = nn.Conv2d(3, 8, 3, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 4 + nc, 1) for _ in range(2))
        self.norm.running_var.fill_(2.0)

    def region(self, images: Tensor, draw: Tensor | None = None) -> list[Tensor]:
        first = self.norm(self.stem(images)).relu()
        return [head(x) for head, x in zip(self.heads, (first, self.down(first)), strict=True)]

    def predictions(self, outputs: list[Tensor], image_size: tuple[int, int]) -> Predictions:
        boxes, scores, levels = [], [], []
        for stride, raw in zip((8, 16), outputs, strict=True):
            h, w = self.grid_shape(raw)
            y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = (torch.stack([x, y], -1).reshape(1, -1, 2).float() + 0.5) * stride
            flat = raw.flatten(2).transpose(1, 2)  # [N, A, 4 + C]
            half = (flat[..., 2:4].clamp(-1, 1).exp() + 0.5) * stride
            middle = centre + flat[..., :2] * stride
            boxes.append(torch.cat([middle - half, middle + half], -1))
            scores.append(flat[..., 4:].sigmoid())
            levels.append(int(h) * int(w))
        return Predictions(boxes=torch.cat(boxes, 1), scores=torch.cat(scores, 1), levels=tuple(levels))

    def grid_shape(self, raw: Tensor) -> Any:
        return raw.shape[-2:]

    def deploy(self) -> ToyDetector:
        self.stem, self.norm = fuse_conv_bn(self.stem, self.norm), nn.Identity()
        return self


class ToyQueries(ToyDetector):
    """The same without levels: its rows count as queries."""

    def predictions(self, outputs: list[Tensor], image_size: tuple[int, int]) -> Predictions:
        found = super().predictions(outputs, image_size)
        return Predictions(boxes=found.boxes, scores=found.scores)


class ToyFixedGrid(ToyDetector):
    """Makes its grid from Python integers, which a tracer keeps as constants: no other input size can be right."""

    def grid_shape(self, raw: Tensor) -> Any:
        return [int(n) for n in raw.shape[-2:]]


class ToyClassifier(Network):
    """One convolution, a norm that stays one, mean, linear."""

    def __init__(self, nc: int = 5) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Linear(8, nc)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        return self.fc(self.norm(self.conv(images)).relu().mean((2, 3)))

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        return Predictions(logits=outputs)


class ToySegmenter(Network):
    """Class scores at a quarter of the input, resized to it."""

    def __init__(self, nc: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, nc, 3, 4, 1)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        return self.conv(images)

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        size = (outputs.shape[-2] * 4, outputs.shape[-1] * 4)
        return Predictions(logits=nn.functional.interpolate(outputs, size=size, mode="bilinear", align_corners=False))


class ToyRestorer(Network):
    """The image and a correction."""

    def __init__(self, nc: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, 1, 1)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        return images + self.conv(images)

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        return Predictions(image=outputs)


class ToyPoints(Network):
    """Background and classes for every cell of eight pixels."""

    def __init__(self, nc: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1 + nc, 8, 8)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        return self.conv(images)

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        return Predictions(scores=outputs.softmax(1))


TASKS = {
    ToyClassifier: ("classify", 5),
    ToySegmenter: ("semantic", 5),
    ToyRestorer: ("restore", 1),
    ToyPoints: ("point", 2),
}
"""Task and classes of the networks that are no detectors."""


@dataclass
class ToyModel:
    """What an exporter needs of a loaded model."""

    network: Network
    sheet: Task
    nc: int
    task_name: str = "detect"
    key: str = "toy"
    size: str = "s"
    imgsz: int = 32
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.names or {i: f"thing {i} ä" for i in range(self.nc)}
        self.network.eval()


def toy_model(kind: type[Network] = ToyDetector, *, post: Post | None = None, **changes: Any) -> ToyModel:
    torch.manual_seed(0)
    task, nc = TASKS.get(kind, ("detect", 3))
    rule = changes.pop("input", Input(scale=1 / 255, mean=(0.4, 0.4, 0.4), std=(0.2, 0.3, 0.2), multiple=16))
    sheet = Task(
        sizes={"s": Size(32, params=1)},
        loss=Loss("export_toys:None"),
        input=rule,
        post=post or Post(conf=0.3, max_det=12),
    )
    return ToyModel(kind(nc), sheet, nc, task, **changes)


def photos(count: int, height: int = 32, width: int = 32) -> Tensor:
    """Seeded uint8 images [count, 3, height, width]."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)
