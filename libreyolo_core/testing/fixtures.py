"""Pytest fixtures for the tests of a family; its ``conftest.py`` imports those it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from libreyolo_core.targets import BoxTargets


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small inputs leave a second thread nothing to do but wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def random_targets() -> Callable[..., BoxTargets]:
    """``random_targets(counts, side, nc, seed=0, smallest=2.0)``: that many boxes for each image, inside a square of
    ``side`` pixels, with sides of ``smallest`` pixels and more and labels below ``nc``."""

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
