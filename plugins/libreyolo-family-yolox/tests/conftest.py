"""Fixtures of the YOLOX tests."""

from pathlib import Path

import pytest
import torch

from libreyolo_core.testing.fixtures import one_thread, random_targets  # noqa: F401
from libreyolo_core.testing.reference import Reference
from libreyolo_family_yolox.network import YOLOX
from libreyolo_family_yolox.plugin import YOLOX as FAMILY


@pytest.fixture(scope="session")
def sheet():
    """The data sheet of detection."""
    return FAMILY.tasks["detect"]


@pytest.fixture(scope="session")
def reference():
    """The recorded numbers of size n."""
    return Reference.read(Path(__file__).parent / "reference" / "yolox-n.json")


@pytest.fixture
def build(sheet):
    """``build(size, nc)``: a network from scratch."""

    def make(size: str = "n", nc: int = 80) -> YOLOX:
        torch.manual_seed(0)
        return YOLOX(nc, **sheet.sizes[size].options)

    return make
