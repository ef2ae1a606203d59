"""Networks, batches and the reference for the tests of SegFormer."""

from pathlib import Path

import torch

from libreyolo_core.draw import key
from libreyolo_core.losses import LossTerms, Ranks, Step
from libreyolo_core.targets import MaskTargets
from libreyolo_core.testing.reference import Reference
from libreyolo_family_segformer.loss import PixelCrossEntropy
from libreyolo_family_segformer.network import SegFormer
from libreyolo_family_segformer.plugin import SEGFORMER as FAMILY

SHEET = FAMILY.tasks["semantic"]
REFERENCE = Reference.read(Path(__file__).parent / "reference" / "segformer-b0.json")


def network(size: str = "b0", nc: int = 3, seed: int = 0) -> SegFormer:
    """From scratch under a seed."""
    torch.manual_seed(seed)
    return SegFormer(nc, **SHEET.for_size(size).model)


def on_meta(size: str, nc: int = 150) -> SegFormer:
    """Shapes without memory."""
    with torch.device("meta"):
        return SegFormer(nc, **SHEET.for_size(size).model)


def reference_network() -> SegFormer:
    """Size b0 with the weights of the reference file."""
    net = network(nc=150)
    net.load_state_dict(REFERENCE.state(net.state_dict()))
    return net


def reference_images() -> torch.Tensor:
    return REFERENCE.images(REFERENCE.content["input"], SHEET.input)


def reference_targets(height: int = 128, width: int = 128) -> MaskTargets:
    """The layout that the reference file describes in words."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    masks = [((3 * y // height) * 4 + 4 * x // width + 5 * i) % 150 for i in range(2)]
    targets = torch.stack(masks).to(torch.uint8)
    targets[:, :2] = 255
    return MaskTargets(targets)


def keys(count: int, first: int = 0) -> torch.Tensor:
    return torch.tensor([key(0, 0, first + i) for i in range(count)])


def batch(count: int, side: int = 64, nc: int = 3, seed: int = 0):
    """Noisy images of 16-pixel squares whose colour tells their class; one square in eight is unknown."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, nc, (count, side // 16, side // 16), generator=g)
    images = torch.nn.functional.one_hot(classes, nc)[..., :3].permute(0, 3, 1, 2).float() - 0.4
    images = images.repeat_interleave(16, 2).repeat_interleave(16, 3)
    images = images + 0.3 * torch.randn(images.shape, generator=g)
    classes[torch.rand(classes.shape, generator=g) < 1 / 8] = 255
    masks = classes.repeat_interleave(16, 1).repeat_interleave(16, 2).to(torch.uint8)
    return images, MaskTargets(masks), keys(count)


def terms_of(net: SegFormer, images, targets, draw=None, ranks: Ranks | None = None) -> LossTerms:
    step = Step(ranks or Ranks(), draw)
    return PixelCrossEntropy(net)(net(images, targets, draw), targets, step)
