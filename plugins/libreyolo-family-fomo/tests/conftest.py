"""Fixtures of the FOMO tests."""

from pathlib import Path

import pytest
import torch

from libreyolo_core.testing.fixtures import one_thread  # noqa: F401
from libreyolo_core.testing.reference import Reference
from libreyolo_family_fomo.network import FOMO
from libreyolo_family_fomo.plugin import FOMO as FAMILY


@pytest.fixture(scope="session")
def sheet():
    """The data sheet of point detection."""
    return FAMILY.tasks["point"]


@pytest.fixture(scope="session")
def reference():
    """The recorded numbers of size s."""
    return Reference.read(Path(__file__).parent / "reference" / "fomo-s.json")


@pytest.fixture
def build(sheet):
    """``build(size, nc)``: a network from scratch."""

    def make(size: str = "s", nc: int = 1) -> FOMO:
        torch.manual_seed(0)
        return FOMO(nc, **sheet.for_size(size).model)

    return make


@pytest.fixture
def recorded_step(build, reference, sheet):
    """Network, input and targets of the reference's training step."""
    network = build("s").train()
    network.load_state_dict(reference.state(network.state_dict()))
    images = reference.images(reference.content["loss"]["input"], sheet.input)
    return network, images, reference.targets((96, 96))
