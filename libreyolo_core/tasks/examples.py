"""Seeded batches of made-up images, for tests, operation counts and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.draw import key
from libreyolo_core.targets import BoxTargets, ClassTargets, Targets


def box_batch(nc: int, *, size: tuple[int, int], counts: list[int], seed: int = 0) -> Batch:
    """A detection batch; image ``i`` has ``counts[i]`` boxes of 8 to 50% of the side and depends on (seed, i) alone."""
    h, w = size
    boxes, labels = [], []
    for i, count in enumerate(counts):
        random = torch.Generator().manual_seed(key(seed, i, 1))
        extent = 0.08 + 0.42 * torch.rand(count, 2, generator=random)
        corner = torch.rand(count, 2, generator=random) * (1 - extent)
        boxes.append(torch.cat([corner, corner + extent], 1) * torch.tensor([w, h, w, h]))
        labels.append(torch.randint(0, nc, (count,), generator=random))
    return _batch(BoxTargets.pad(boxes, labels), size, len(counts), seed)


def class_batch(nc: int, *, size: tuple[int, int], count: int, seed: int = 0) -> Batch:
    """A classification batch of ``count`` images with random hard labels."""
    random = torch.Generator().manual_seed(key(seed, 2))
    return _batch(ClassTargets(torch.randint(0, nc, (count,), generator=random)), size, count, seed)


def _batch(targets: Targets, size: tuple[int, int], count: int, seed: int) -> Batch:
    return Batch(
        images=torch.stack([_image(size, key(seed, i, 0)) for i in range(count)]),
        targets=targets,
        draw=torch.tensor([key(seed, 0, i) for i in range(count)]),
        indices=list(range(count)),
        paths=[f"example {i}" for i in range(count)],
    )


def _image(size: tuple[int, int], seed: int) -> Tensor:
    """Smooth coloured noise, uint8 [3, H, W]."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, max(2, size[0] // 16), max(2, size[1] // 16), generator=random) * 255
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[0].round().to(torch.uint8)
