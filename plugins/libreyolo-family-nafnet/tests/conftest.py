"""Fixtures of the NAFNet tests."""

from pathlib import Path

import pytest
import torch

from libreyolo_core.testing.fixtures import one_thread  # noqa: F401
from libreyolo_core.testing.reference import Reference
from libreyolo_family_nafnet.network import NAFNet
from libreyolo_family_nafnet.plugin import NAFNET as FAMILY


@pytest.fixture(scope="session")
def sheet():
    """The data sheet of restoration."""
    return FAMILY.tasks["restore"]


@pytest.fixture(scope="session")
def reference():
    """The recorded numbers of size s."""
    return Reference.read(Path(__file__).parent / "reference" / "nafnet-s.json")


@pytest.fixture(scope="session")
def filled(reference, sheet):
    """Size s with the weights of the reference."""
    network = NAFNet(**sheet.for_size("s").model)
    network.load_state_dict(reference.state(network.state_dict()))
    return network


@pytest.fixture
def tiny():
    """``tiny(**options)``: a network of two levels and eight channels whose scales are not zero."""

    def make(**options) -> NAFNet:
        torch.manual_seed(0)
        network = NAFNet(width=8, encoder=(1, 1), middle=1, decoder=(1, 1), **options)
        for name, parameter in network.named_parameters():
            if name.endswith(("beta", "gamma")):
                torch.nn.init.normal_(parameter)
        return network

    return make
