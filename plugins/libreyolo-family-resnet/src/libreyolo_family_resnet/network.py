"""ResNet (He et al., 2015) on torchvision's residual blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from libreyolo_core.network import Network, fuse_conv_bn
from libreyolo_core.predictions import Predictions

BLOCKS: dict[str, type[BasicBlock | Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNetClassifier(Network, ResNet):
    """Stem, four layers of residual blocks, global average pool, linear classifier.

    Built from torchvision's ``ResNet``, so that its checkpoints and timm's fit key by key; ``Network`` comes first and
    its ``forward`` holds.

    Args:
        nc: number of classes.
        block: ``basic`` (two 3x3 convolutions) or ``bottleneck`` (1x1, 3x3 with the stride, 1x1).
        blocks: residual blocks in each of the four layers.
    """

    conv1: nn.Module
    bn1: nn.Module
    relu: nn.Module
    maxpool: nn.Module
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential
    avgpool: nn.Module
    fc: nn.Linear

    def __init__(self, nc: int = 1000, block: str = "bottleneck", blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        ResNet.__init__(self, BLOCKS[block], list(blocks), num_classes=nc)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        """Images [N, 3, H, W], normalised, to class logits [N, C]: the whole network."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))  # [N, 64, H/4, W/4]
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # [N, 512 * expansion, H/32, W/32]
        return self.fc(torch.flatten(self.avgpool(x), 1))

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        """Logits, float32 [N, C], before softmax."""
        return Predictions(logits=outputs.float())

    def reset_classes(self, names: list[str] | None = None) -> None:
        """A fresh classifier, initialised as ``nn.Linear`` is."""
        self.fc.reset_parameters()

    def deploy(self) -> ResNetClassifier:
        """Every BatchNorm folded into the convolution before it, in place."""
        self.eval()
        _fold(self, "conv1", "bn1")
        for module in self.modules():
            if isinstance(module, (BasicBlock, Bottleneck)):
                for i in (1, 2, 3) if isinstance(module, Bottleneck) else (1, 2):
                    _fold(module, f"conv{i}", f"bn{i}")
                if module.downsample is not None:
                    _fold(module.downsample, "0", "1")
        return self


def _fold(parent: nn.Module, conv: str, norm: str) -> None:
    bn = getattr(parent, norm)
    if not isinstance(bn, nn.Identity):
        setattr(parent, conv, fuse_conv_bn(getattr(parent, conv), bn))
        setattr(parent, norm, nn.Identity())
