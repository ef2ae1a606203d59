"""Fixtures of the YOLOv9 tests."""

from pathlib import Path

import pytest
import torch

from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.reference import Reference
from libreyolo_family_yolo9.network import YOLO9
from libreyolo_family_yolo9.plugin import YOLO9 as FAMILY


@pytest.fixture(autouse=True)
def one_thread():
    """Inputs of 64 pixels leave a second thread nothing to do but wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.fixture
def random_targets():
    """``random_targets(counts, side, nc, seed=0)``: boxes inside a square image."""

    def make(counts: list[int], side: int, nc: int, *, seed: int = 0, smallest: float = 2.0) -> BoxTargets:
        draw = torch.Generator().manual_seed(seed)
        boxes, labels = [], []
        for count in counts:
            size = smallest + torch.rand(count, 2, generator=draw) ** 2 * side * 0.7
            first = torch.rand(count, 2, generator=draw) * (side - size).clamp(min=0.0)
            boxes.append(torch.cat((first, (first + size).clamp(max=side)), 1))
            labels.append(torch.randint(nc, (count,), generator=draw))
        return BoxTargets.pad(boxes, labels)

    return make
