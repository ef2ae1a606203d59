"""Fixtures of the YOLOv9 tests."""

from pathlib import Path

import pytest
import torch

from libreyolo_core.testing.fixtures import one_thread, random_targets  # noqa: F401
from libreyolo_core.testing.reference import Reference
from libreyolo_family_yolo9.network import YOLO9
from libreyolo_family_yolo9.plugin import YOLO9 as FAMILY


@pytest.fixture(scope="session")
def sheet():
    """The data sheet of detection."""
    return FAMILY.tasks["detect"]


@pytest.fixture(scope="session")
def reference():
    """The recorded numbers of size t."""
    return Reference.read(Path(__file__).parent / "reference" / "yolo9-t.json")


@pytest.fixture
def build(sheet):
    """``build(size, nc, **options)``: a network from scratch, without the auxiliary branch unless asked for."""

    def make(size: str = "t", nc: int = 80, **options) -> YOLO9:
        torch.manual_seed(0)
        return YOLO9(nc, **{**sheet.sizes[size].options, **options})

    return make
