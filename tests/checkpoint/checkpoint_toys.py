"""Tiny families for the checkpoint tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core.checkpoint import Found
from libreyolo_core.family import Checkpoint, Family, Loss, Size, Task, Weights
from libreyolo_core.network import Network


class Toy(Network):
    """A backbone of ``depth`` layers of ``width`` channels, a box head and a class head."""

    def __init__(self, nc: int = 80, width: int = 4, depth: int = 1, aux: bool = False) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*(nn.Conv2d(3 if i == 0 else width, width, 3) for i in range(depth)))
        self.norm = nn.BatchNorm2d(width)
        self.box = nn.Conv2d(width, 4, 1)
        self.cls = nn.Conv2d(width, nc, 1)
        self.embed = nn.Embedding(nc + 1, width)
        if aux:
            self.aux = nn.Conv2d(width, width, 1)

    def reset_classes(self, names: list[str] | None = None) -> None:
        nn.init.constant_(self.cls.bias, -4.6)
        nn.init.constant_(self.cls.weight, 0.01)
        nn.init.constant_(self.embed.weight, 0.5)


class Stubborn(Toy):
    """Its constructor reads its own tensors, which no meta tensor can answer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.total = self.box.weight.sum().item()


class Tied(Network):
    """Two heads that share one convolution, and a scalar counter."""

    def __init__(self, nc: int = 3) -> None:
        super().__init__()
        shared = nn.Conv2d(3, nc, 1)
        self.heads = nn.ModuleList([shared, shared])
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


class Adapter:
    """Knows the width from the file, keeps the rows of known class names, and reads a fused layout."""

    @staticmethod
    def convert(state: dict[str, Tensor]) -> dict[str, Tensor]:
        if "fused" not in state:
            return state
        weight = state.pop("fused")
        return {**state, "box.weight": weight[:4], "cls.weight": weight[4:]}

    @staticmethod
    def inspect(state: dict[str, Tensor]) -> Found | None:
        if "box.weight" not in state:
            return None
        return Found(
            size="s", nc=len(state["cls.weight"]), model={"width": state["box.weight"].shape[1]}, set={"post.iou": 0.7}
        )

    @staticmethod
    def fit(key: str, old: Tensor, new: Tensor, names: list[str] | None) -> Tensor | None:
        if key != "cls.bias" or not names:
            return None
        out = new.clone()
        for i, name in enumerate(names):
            if name.startswith("class_"):
                out[i] = old[int(name.removeprefix("class_"))]
        return out


SIGNATURE = ("backbone.0.weight", "box.weight", "cls.weight")
SIZES = {"s": Size(64, params=1, width=4, depth=1), "m": Size(96, params=1, width=8, depth=2)}


def family(key: str = "toy", *, network: str = "checkpoint_toys:Toy", pattern: str = "", **changes: Any) -> Family:
    """A toy family; ``changes`` go to its ``Checkpoint``."""
    rules = replace(Checkpoint(signature=SIGNATURE, classes="cls.weight"), **changes)
    return Family(
        key,
        key.title(),
        network=network,
        weights=Weights(pattern or f"Libre{key.upper()}{{size}}.pt", aliases=(f"{key}-{{size}}",)),
        checkpoint=rules,
        default_size="s",
        tasks={
            "detect": Task(
                sizes=SIZES, loss=Loss("checkpoint_toys:None"), variants={"aerial": {"post.max_det": 1500}}, classes=80
            )
        },
    )
