"""Networks and batches for the tests of RT-DETR."""

import json
from pathlib import Path

import numpy as np
import torch

from libreyolo_core.draw import key
from libreyolo_core.losses import LossTerms, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.deterministic import image_for, tensor_for
from libreyolo_family_rtdetr.network import RTDETR
from libreyolo_family_rtdetr.plugin import RTDETR as FAMILY
from libreyolo_kit_detr import SetCriterion

SHEET = FAMILY.tasks["detect"]
REFERENCE = json.loads((Path(__file__).parent / "reference" / "rtdetr-r18.json").read_text())


def shape_of(text: str) -> tuple[int, ...]:
    return () if text == "scalar" else tuple(int(side) for side in text.split("x"))


def reference_state() -> dict[str, torch.Tensor]:
    """The deterministic weights of the reference file."""
    state = {}
    for name, text in REFERENCE["keys"].items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(0)
        else:
            state[name] = torch.from_numpy(tensor_for(name, shape_of(text), REFERENCE["gain"]))
    return state


def reference_images() -> torch.Tensor:
    return torch.from_numpy(image_for("rtdetr", (2, 3, 128, 128)))


def reference_targets() -> BoxTargets:
    boxes, labels = [], []
    for rows in np.array(REFERENCE["loss"]["targets"]["tensor"], dtype=np.float32):
        real = torch.from_numpy(rows[rows[:, 0] >= 0])
        boxes.append(real[:, 1:] * 128)
        labels.append(real[:, 0].long())
    return BoxTargets.pad(boxes, labels)


def network(size: str = "r18", nc: int = 3, **options) -> RTDETR:
    torch.manual_seed(0)
    return RTDETR(nc, **{**SHEET.for_size(size).model, **options})


def batch(counts: list[int], height: int = 64, width: int = 64, nc: int = 3):
    """Images with one coloured rectangle per box on faint noise (no two cells alike), targets, keys."""
    g = torch.Generator().manual_seed(len(counts))
    images, boxes, labels = 0.1 * torch.rand(len(counts), 3, height, width, generator=g), [], []
    side = torch.tensor([width, height])
    for image, count in zip(images, counts):
        low = torch.rand(count, 2, generator=g) * 0.6
        box = torch.cat((low, low + 0.2 + 0.2 * torch.rand(count, 2, generator=g)), 1) * side.repeat(2)
        label = torch.randint(0, nc, (count,), generator=g)
        for (x1, y1, x2, y2), c in zip(box.round().int().tolist(), label.tolist()):
            image[c % 3, y1:y2, x1:x2] = 1
        boxes.append(box)
        labels.append(label)
    return images, BoxTargets.pad(boxes, labels), torch.tensor([key(0, 0, i) for i in range(len(counts))])


def terms_of(net: RTDETR, images, targets, draw) -> LossTerms:
    return SetCriterion(net, **SHEET.loss.options)(net(images, targets, draw), targets, Step(draw=draw))
