"""How much of a gradient rounding leaves."""

import pytest
import torch
from torch import nn

from libreyolo_core.testing.rounding import gradient_agreement


def test_a_shallow_network_keeps_its_gradient_and_itself():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.rand(2, 3, 16, 16)
    assert gradient_agreement(network, images) > 0.99
    assert not network.training
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_difference_that_rounding_removes_leaves_no_gradient():
    class Lost(nn.Module):
        """What is left of the input after a thousand was added and taken away."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Conv2d(3, 4, 1)

        def forward(self, images):
            large = (self.scale(images) + 1000.0) - 1000.0
            return {"maps": [large * large]}

    torch.manual_seed(0)
    assert gradient_agreement(Lost(), torch.rand(2, 3, 8, 8)) < 0.9


def test_a_network_without_parameters_in_its_outputs_is_refused():
    with pytest.raises(ValueError, match="Identity has no output that depends on a parameter"):
        gradient_agreement(nn.Identity(), torch.rand(1, 3, 4, 4))
