"""Networks and batches for the tests of D-FINE."""

from pathlib import Path

import torch

from libreyolo_core.draw import key
from libreyolo_core.losses import LossTerms, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.reference import Reference
from libreyolo_family_dfine.network import DFINE
from libreyolo_family_dfine.plugin import DFINE as FAMILY
from libreyolo_kit_detr import FDRCriterion

SHEET = FAMILY.tasks["detect"]
REFERENCE = Reference.read(Path(__file__).parent / "reference" / "dfine-n.json")


def network(size: str = "n", nc: int = 3, **options) -> DFINE:
    torch.manual_seed(0)
    net = DFINE(nc, **{**SHEET.for_size(size).model, **options})
    net.requires_grad_(True)
    net.decoder.up.requires_grad_(False)
    net.decoder.reg_scale.requires_grad_(False)
    return net


def reference_batch():
    """Images and boxes of the recorded loss."""
    images = REFERENCE.images(REFERENCE.content["loss"]["input"], SHEET.input)
    return images, REFERENCE.targets((256, 256))


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


def terms_of(net: DFINE, images, targets, draw) -> LossTerms:
    return FDRCriterion(net, **SHEET.loss.options)(net(images, targets, draw), targets, Step(draw=draw))


def freeze_statistics(net: DFINE) -> None:
    """Batch norms use their running statistics, as a fixed map."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()


def stir(net: DFINE) -> None:
    """Give the layers that start at zero something to say."""
    heads = (
        net.decoder.pre_bbox_head,
        *net.decoder.dec_bbox_head,
        *(q.reg_conf for q in net.decoder.decoder.lqe_layers),
    )
    for head in heads:
        torch.nn.init.normal_(head.layers[-1].weight, std=0.05)
