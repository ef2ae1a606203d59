"""The YOLOv9 network: GELAN backbone, path aggregation, decoupled head with box distributions, and while training an
auxiliary branch (Wang et al., 2024, sections 4.1 and 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_kit_yolo.blocks import SPP, ConvNormAct, fuse_norms, offset_norms
from libreyolo_kit_yolo.dfl import boxes_from_distributions
from libreyolo_kit_yolo.elan import ELAN, AConv, ADown, rep_csp_conv
from libreyolo_kit_yolo.grids import cell_grid, flatten_levels, level_sizes
from libreyolo_kit_yolo.necks import path_aggregation

BINS = 16
"""Distances a box side is a distribution over: 0 to 15 strides."""
BOX_BIAS = 1.0
CLASS_BIAS = -10.0
"""What the prediction layers of a new head start with."""
NORM_BIAS = 0.5
"""What norms of a new network start with: most convolutions are pairs, whose sum is off centre twice as far."""

conv = partial(ConvNormAct, eps=1e-3, momentum=0.03)
conv3 = partial(conv, kernel=3)
spp = partial(SPP, conv=conv, names=("cv1", "cv5"))

Stage = tuple[int, int, int]
"""Channels of a strided layer, of the ELAN layer after it, and of that layer's first convolution."""


def elan(cin: int, cout: int, part: int) -> ELAN:
    """An ELAN layer of plain 3x3 convolutions."""
    return ELAN(cin, cout, part, block=lambda c: conv3(c, c), conv=conv)


def gelan(cin: int, cout: int, part: int, repeats: int) -> ELAN:
    """An ELAN layer of re-parameterised CSP blocks."""
    return ELAN(cin, cout, part, block=lambda c: rep_csp_conv(c, repeats, conv=conv), conv=conv)


def halve(cin: int, cout: int, split: bool) -> nn.Module:
    """A strided layer; ``split`` chooses the one with two paths."""
    return ADown(cin, cout, conv=conv) if split else AConv(cin, cout, conv=conv)


class Backbone(nn.Module):
    """Maps at strides 8, 16 and 32, and the last one pooled."""

    def __init__(
        self,
        stem: tuple[int, int],
        first: tuple[int, int],
        first_repeats: int,
        stages: Sequence[Stage],
        repeats: int,
        split: bool,
    ) -> None:
        super().__init__()
        self.conv0 = conv(3, stem[0], 3, 2)
        self.conv1 = conv(stem[0], stem[1], 3, 2)
        self.elan1 = gelan(stem[1], *first, first_repeats) if first_repeats else elan(stem[1], *first)
        (down2, c3, part3), (down3, c4, part4), (down4, c5, part5) = stages
        self.down2 = halve(first[0], down2, split)
        self.elan2 = gelan(down2, c3, part3, repeats)
        self.down3 = halve(c3, down3, split)
        self.elan3 = gelan(down3, c4, part4, repeats)
        self.down4 = halve(c4, down4, split)
        self.elan4 = gelan(down4, c5, part5, repeats)
        self.spp = spp(c5, c5)

    def forward(self, images: Tensor) -> list[Tensor]:
        """[N, 3, H, W] to maps at strides 8, 16, 32 and 32."""
        b3 = self.elan2(self.down2(self.elan1(self.conv1(self.conv0(images)))))
        b4 = self.elan3(self.down3(b3))
        b5 = self.elan4(self.down4(b4))
        return [b3, b4, b5, self.spp(b5)]


class Neck(nn.Module):
    """Path aggregation, under the names of the published weights."""

    def __init__(
        self,
        channels: Sequence[int],
        widths: tuple[int, int],
        down: tuple[int, int],
        repeats: int,
        split: bool,
    ) -> None:
        super().__init__()
        (c3, c4, c5), (n4, n3), (d1, d2) = channels, widths, down
        self.elan_up1 = gelan(c5 + c4, n4, n4, repeats)
        self.elan_up2 = gelan(n4 + c3, n3, n3, repeats)
        self.down1 = halve(n3, d1, split)
        self.elan_down1 = gelan(d1 + n4, n4, n4, repeats)
        self.down2 = halve(n4, d2, split)
        self.elan_down2 = gelan(d2 + c5, c5, c5, repeats)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Three maps, finest first, to as many."""
        return path_aggregation(
            features,
            top_down=(self.elan_up1, self.elan_up2),
            down=(self.down1, self.down2),
            bottom_up=(self.elan_down1, self.elan_down2),
        )


class Auxiliary(nn.Module):
    """The auxiliary branch: a way of its own from the backbone's maps to a second head, so that the backbone also gets
    gradients that did not pass through the neck (section 4.1.2)."""

    def __init__(self, channels: Sequence[int], widths: tuple[int, int], repeats: int) -> None:
        super().__init__()
        (c3, c4, c5), (n4, n3) = channels, widths
        self.spp = spp(c5, c5)
        self.elan_a4 = gelan(c5 + c4, n4, n4, repeats)
        self.elan_a3 = gelan(n4 + c3, n3, n3, repeats)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Three maps of the backbone, the last not pooled, finest first, to as many."""
        b3, b4, b5 = features
        a5 = self.spp(b5)
        a4 = self.elan_a4(torch.cat((_doubled(a5), b4), 1))
        return [self.elan_a3(torch.cat((_doubled(a4), b3), 1)), a4, a5]


class Head(nn.Module):
    """Per level a tower for boxes (``cv2``) and one for classes (``cv3``); levels share nothing."""

    def __init__(self, nc: int, channels: Sequence[int], class_width: int) -> None:
        super().__init__()
        width = max(-(-channels[0] // 16) * 4, 64)
        self.cv2 = nn.ModuleList(
            nn.Sequential(conv3(c, width), conv3(width, width, groups=4), nn.Conv2d(width, 4 * BINS, 1, groups=4))
            for c in channels
        )
        self.cv3 = nn.ModuleList(
            nn.Sequential(conv3(c, class_width), conv3(class_width, class_width), nn.Conv2d(class_width, nc, 1))
            for c in channels
        )
        for tower in self.cv2:
            nn.init.constant_(tower.get_parameter("2.bias"), BOX_BIAS)
        self.reset_classes()

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Box distributions [N, 64, H, W] and classes [N, nc, H, W] of every level, logits."""
        boxes = [tower(x) for tower, x in zip(self.cv2, features, strict=True)]
        return boxes, [tower(x) for tower, x in zip(self.cv3, features, strict=True)]

    def reset_classes(self) -> None:
        """Give the class layers the bias they start with."""
        for tower in self.cv3:
            nn.init.constant_(tower.get_parameter("2.bias"), CLASS_BIAS)


class YOLO9(Network):
    """YOLOv9.

    Args:
        nc: number of classes.
        stem: channels of the first two convolutions.
        first: channels of the ELAN layer at stride 4, and of its first convolution.
        first_repeats: its ``repeats``; 0 for plain 3x3 convolutions.
        stages: the backbone's stages at strides 8, 16 and 32.
        neck: channels of the neck at strides 16 and 8; at stride 32 they are the backbone's.
        neck_down: channels of the neck's strided layers, finest first.
        repeats: bottlenecks of a re-parameterised CSP block.
        split: strided layers with two paths.
        class_width: channels of the class towers. It belongs to the published file, not to ``nc``.
        auxiliary: with the auxiliary branch, for training.
    """

    strides = (8, 16, 32)

    def __init__(
        self,
        nc: int = 80,
        *,
        stem: tuple[int, int],
        first: tuple[int, int],
        stages: Sequence[Stage],
        neck: tuple[int, int],
        neck_down: tuple[int, int],
        repeats: int,
        class_width: int,
        first_repeats: int = 0,
        split: bool = False,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        channels = [stage[1] for stage in stages]
        head: Callable[[], Head] = partial(Head, nc, (neck[1], neck[0], channels[2]), class_width)
        self.backbone = Backbone(stem, first, first_repeats, stages, repeats, split)
        self.neck = Neck(channels, neck, neck_down, repeats, split)
        self.head = head()
        self.aux = Auxiliary(channels, neck, repeats) if auxiliary else None
        self.aux_head = head() if auxiliary else None
        offset_norms(self, NORM_BIAS)

    def region(self, images: Tensor, draw: Tensor | None = None) -> dict[str, Tensor]:
        """The whole network. Evaluation never computes the auxiliary branch.

        Returns:
            ``distributions`` [N, A, 64] and ``classes`` [N, A, nc], logits, ``cells`` float32 [A, 3] as in
            ``libreyolo_kit_yolo.grids.Cells``; in training with the auxiliary branch also ``aux_distributions`` and
            ``aux_classes``. Rows run over the levels, finest first.
        """
        *features, pooled = self.backbone(images)
        boxes, classes = self.head(self.neck([*features[:2], pooled]))
        outputs = {
            "distributions": flatten_levels(boxes),
            "classes": flatten_levels(classes),
            "cells": cell_grid(boxes, self.strides).table,
        }
        if self.training and self.aux is not None and self.aux_head is not None:
            boxes, classes = self.aux_head(self.aux(features))
            outputs["aux_distributions"], outputs["aux_classes"] = flatten_levels(boxes), flatten_levels(classes)
        return outputs

    def predictions(self, outputs: dict[str, Tensor], image_size: tuple[int, int]) -> Predictions:
        """Boxes in input pixels and class scores, float32."""
        corner, stride = outputs["cells"].split((2, 1), -1)
        return Predictions(
            boxes=boxes_from_distributions(outputs["distributions"], (corner + 0.5) * stride, stride),
            scores=outputs["classes"].float().sigmoid(),
            levels=level_sizes(image_size, self.strides),
        )

    def reset_classes(self, names: list[str] | None = None) -> None:
        """Give the class layers of both heads the bias they start with; box layers stay as they are."""
        for head in (self.head, self.aux_head):
            if head is not None:
                head.reset_classes()

    def deploy(self) -> YOLO9:
        """Drop the auxiliary branch, make one convolution of every re-parameterised pair and fold every norm."""
        self.aux = self.aux_head = None
        fuse_norms(self.eval())
        return self


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
