"""Tally: a few strided convolutions, and the logarithm of a count per class."""

from __future__ import annotations

from torch import Tensor, nn

from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions


class Tally(Network):
    """Adds up what small places see.

    Args:
        nc: number of classes.
        width: channels of the first convolution.
    """

    def __init__(self, nc: int, width: int) -> None:
        super().__init__()
        channels = (3, width, 2 * width, 4 * width)
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(cin, cout, 3, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU())
                for cin, cout in zip(channels, channels[1:])
            )
        )
        self.density = nn.Conv2d(4 * width, nc, 3, padding=1)

    def region(self, images: Tensor, draw: Tensor | None = None) -> Tensor:
        """Images [N, 3, H, W] to logarithms of counts [N, C]."""
        density = nn.functional.softplus(self.density(self.body(images)).float())  # [N, C, H / 8, W / 8]
        return density.mean((2, 3)).mul(16.0).add(1e-3).log()

    def predictions(self, outputs: Tensor, image_size: tuple[int, int]) -> Predictions:
        """Logarithms of the expected counts, float32 [N, C]."""
        return Predictions(logits=outputs.float())

    def reset_classes(self, names: list[str] | None = None) -> None:
        """A fresh last layer."""
        self.density.reset_parameters()
