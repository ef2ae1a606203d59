"""The YOLOX network: CSPDarknet, path aggregation, decoupled head (Ge et al., 2021, section 2.1 and figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_kit_yolo.blocks import (
    CSP,
    SPP,
    Bottleneck,
    Conv,
    ConvNormAct,
    DepthwiseSeparable,
    fuse_norms,
    offset_norms,
    prior_bias,
)
from libreyolo_kit_yolo.boxes import boxes_from_offsets
from libreyolo_kit_yolo.grids import cell_grid, flatten_levels, level_sizes
from libreyolo_kit_yolo.necks import path_aggregation

PRIOR = 0.01
"""The score every cell starts with."""
NORM_BIAS = 1.0
"""What norms of a new network start with."""

conv = partial(ConvNormAct, eps=1e-3, momentum=0.03)
depthwise_conv = partial(DepthwiseSeparable, conv=conv)


def csp(cin: int, cout: int, count: int, spatial: Conv, *, add: bool = False) -> CSP:
    """A CSP layer of ``count`` bottlenecks over half of its output channels."""
    hidden = cout // 2
    blocks: list[nn.Module] = [Bottleneck(hidden, add=add, conv=conv, spatial=spatial) for _ in range(count)]
    return CSP(cin, cout, hidden=hidden, blocks=blocks, conv=conv)


class Focus(nn.Module):
    """Space to depth by two, then a 3x3 convolution."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = conv(cin * 4, cout, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, cout, H / 2, W / 2]."""
        even, odd = x[:, :, ::2], x[:, :, 1::2]
        # Columns are the slow index of the four groups: the published weights expect top-left, bottom-left, then right.
        return self.conv(torch.cat((even[..., ::2], odd[..., ::2], even[..., 1::2], odd[..., 1::2]), 1))


class CSPDarknet(nn.Module):
    """Maps at strides 8, 16 and 32."""

    def __init__(self, depth: float, width: float, spatial: Conv) -> None:
        super().__init__()
        base, count = int(64 * width), max(round(3 * depth), 1)
        self.stem = Focus(3, base)
        self.dark2 = nn.Sequential(spatial(base, base * 2, 3, 2), csp(base * 2, base * 2, count, spatial, add=True))
        self.dark3 = nn.Sequential(
            spatial(base * 2, base * 4, 3, 2), csp(base * 4, base * 4, count * 3, spatial, add=True)
        )
        self.dark4 = nn.Sequential(
            spatial(base * 4, base * 8, 3, 2), csp(base * 8, base * 8, count * 3, spatial, add=True)
        )
        self.dark5 = nn.Sequential(
            spatial(base * 8, base * 16, 3, 2),
            SPP(base * 16, base * 16, conv=conv),
            csp(base * 16, base * 16, count, spatial),
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """[N, 3, H, W] to three maps, finest first."""
        c3 = self.dark3(self.dark2(self.stem(images)))
        c4 = self.dark4(c3)
        return [c3, c4, self.dark5(c4)]


class PAFPN(nn.Module):
    """Backbone and path aggregation, under the names of the published weights."""

    def __init__(self, depth: float, width: float, spatial: Conv) -> None:
        super().__init__()
        c3, c4, c5 = int(256 * width), int(512 * width), int(1024 * width)
        count = round(3 * depth)
        self.backbone = CSPDarknet(depth, width, spatial)
        self.lateral_conv0 = conv(c5, c4, 1, 1)
        self.C3_p4 = csp(2 * c4, c4, count, spatial)
        self.reduce_conv1 = conv(c4, c3, 1, 1)
        self.C3_p3 = csp(2 * c3, c3, count, spatial)
        self.bu_conv2 = spatial(c3, c3, 3, 2)
        self.C3_n3 = csp(2 * c3, c4, count, spatial)
        self.bu_conv1 = spatial(c4, c4, 3, 2)
        self.C3_n4 = csp(2 * c4, c5, count, spatial)

    def forward(self, images: Tensor) -> list[Tensor]:
        """[N, 3, H, W] to three maps, finest first."""
        return path_aggregation(
            self.backbone(images),
            reduce=(self.lateral_conv0, self.reduce_conv1),
            top_down=(self.C3_p4, self.C3_p3),
            down=(self.bu_conv2, self.bu_conv1),
            bottom_up=(self.C3_n3, self.C3_n4),
        )


class Head(nn.Module):
    """Per level a stem, then one branch for classes and one for box and objectness; levels share nothing."""

    def __init__(self, nc: int, channels: Sequence[int], width: int, spatial: Conv) -> None:
        super().__init__()
        levels = range(len(channels))

        def tower() -> nn.Sequential:
            return nn.Sequential(spatial(width, width, 3, 1), spatial(width, width, 3, 1))

        self.cls_convs = nn.ModuleList(tower() for _ in levels)
        self.reg_convs = nn.ModuleList(tower() for _ in levels)
        self.cls_preds = nn.ModuleList(nn.Conv2d(width, nc, 1) for _ in levels)
        self.reg_preds = nn.ModuleList(nn.Conv2d(width, 4, 1) for _ in levels)
        self.obj_preds = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in levels)
        self.stems = nn.ModuleList(conv(c, width, 1, 1) for c in channels)

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Raw boxes [N, 4, H, W], objectness [N, 1, H, W] and classes [N, nc, H, W] of every level."""
        boxes, objectness, classes = [], [], []
        for i, feature in enumerate(features):
            x = self.stems[i](feature)
            region = self.reg_convs[i](x)
            classes.append(self.cls_preds[i](self.cls_convs[i](x)))
            boxes.append(self.reg_preds[i](region))
            objectness.append(self.obj_preds[i](region))
        return boxes, objectness, classes


class YOLOX(Network):
    """YOLOX.

    Args:
        nc: number of classes.
        depth, width: factors on the layers of a stage and on channels.
        depthwise: depthwise-separable 3x3 convolutions outside the stem.
    """

    strides = (8, 16, 32)

    def __init__(self, nc: int = 80, *, depth: float, width: float, depthwise: bool = False) -> None:
        super().__init__()
        spatial: Conv = depthwise_conv if depthwise else conv
        self.backbone = PAFPN(depth, width, spatial)
        self.head = Head(nc, [int(c * width) for c in (256, 512, 1024)], int(256 * width), spatial)
        self.l1 = False
        offset_norms(self, NORM_BIAS)
        self._set_prior(self.head.cls_preds)
        self._set_prior(self.head.obj_preds)

    def region(self, images: Tensor, draw: Tensor | None = None) -> dict[str, Tensor]:
        """The whole network, the same in training and evaluation.

        Returns:
            ``boxes`` float32 [N, A, 4] xyxy in pixels, ``objectness`` [N, A] and ``classes`` [N, A, nc] logits,
            ``cells`` float32 [A, 3] and ``levels`` float32 [L, 4] as in ``libreyolo_kit_yolo.grids.Cells``; with the
            option ``l1`` also ``raw`` float32 [N, A, 4], the undecoded boxes. Rows run over the levels, finest first.
        """
        boxes, objectness, classes = self.head(self.backbone(images))
        cells = cell_grid(boxes, self.strides)
        raw = flatten_levels(boxes).float()  # [N, A, 4]
        outputs = {
            "boxes": boxes_from_offsets(raw, cells.table),
            "objectness": flatten_levels(objectness).squeeze(-1),
            "classes": flatten_levels(classes),
            "cells": cells.table,
            "levels": cells.levels,
        }
        if self.l1:
            outputs["raw"] = raw
        return outputs

    def predictions(self, outputs: dict[str, Tensor], image_size: tuple[int, int]) -> Predictions:
        """Boxes in input pixels and scores objectness times class, float32."""
        scores = outputs["classes"].float().sigmoid() * outputs["objectness"].float().sigmoid()[..., None]
        return Predictions(boxes=outputs["boxes"], scores=scores, levels=level_sizes(image_size, self.strides))

    def configure(self, *, l1: bool | None = None, **unknown: Any) -> None:
        """``l1``: whether the undecoded boxes are among the outputs, for the L1 term of the last epochs."""
        super().configure(**unknown)
        if l1 is not None:
            self.l1 = bool(l1)

    def reset_classes(self, names: list[str] | None = None) -> None:
        """Give the class head its prior; objectness is class-agnostic and stays as it is."""
        self._set_prior(self.head.cls_preds)

    def deploy(self) -> YOLOX:
        """Fold every norm into its convolution, in place."""
        fuse_norms(self.eval())
        return self

    @staticmethod
    def _set_prior(layers: nn.ModuleList) -> None:
        for layer in layers:
            nn.init.constant_(layer.get_parameter("bias"), prior_bias(PRIOR))
