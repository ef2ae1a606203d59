"""Seeded batches of made-up images, for tests, operation counts and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.draw import key
from libreyolo_core.targets import IGNORED, BoxTargets, ClassTargets, ImageTargets, MaskTargets, Targets

BLOCK_PX = 16
"""Side of the squares of one class in ``mask_batch``."""


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


def mask_batch(nc: int, *, size: tuple[int, int], count: int, seed: int = 0) -> Batch:
    """A semantic batch: squares of ``BLOCK_PX`` with random classes, one in sixteen ignored, on smooth noise tinted by
    the class, so that there is something to learn. Image ``i`` depends on (seed, i) alone."""
    h, w = size
    masks, images = [], []
    tints = torch.rand(nc + 1, 3, 1, generator=torch.Generator().manual_seed(key(nc, 5))) * 255
    for i in range(count):
        random = torch.Generator().manual_seed(key(seed, i, 3))
        rows, columns = -(-h // BLOCK_PX), -(-w // BLOCK_PX)
        blocks = torch.randint(0, nc, (rows, columns), generator=random)
        blocks[torch.rand(rows, columns, generator=random) < 1 / 16] = nc
        classes = blocks.repeat_interleave(BLOCK_PX, 0).repeat_interleave(BLOCK_PX, 1)[:h, :w]
        tint = tints[classes.flatten()].squeeze(-1).T.reshape(3, h, w)
        images.append((0.4 * _image(size, key(seed, i, 0)) + 0.6 * tint).round().to(torch.uint8))
        masks.append(torch.where(classes == nc, IGNORED, classes).to(torch.uint8))
    return _batch(MaskTargets(torch.stack(masks)), size, count, seed, images)


def image_batch(*, size: tuple[int, int], count: int, seed: int = 0) -> Batch:
    """A restoration batch: the target is smooth noise with a fine pattern, the image the same blurred over 3 pixels,
    with Gaussian noise of 10 grey values. Image ``i`` depends on (seed, i) alone."""
    clean, images = [], []
    for i in range(count):
        random = torch.Generator().manual_seed(key(seed, i, 4))
        fine = torch.randint(0, 2, (1, -(-size[0] // 4), -(-size[1] // 4)), generator=random)
        pattern = fine.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, : size[0], : size[1]]
        sharp = 0.8 * _image(size, key(seed, i, 0)) + 40.0 * pattern
        blurred = torch.nn.functional.avg_pool2d(
            torch.nn.functional.pad(sharp[None], (1, 1, 1, 1), mode="replicate"), 3, stride=1
        )[0]
        noisy = blurred + 10.0 * torch.randn(3, *size, generator=random)
        clean.append(sharp.round().to(torch.uint8))
        images.append(noisy.round().clamp(0, 255).to(torch.uint8))
    return _batch(ImageTargets(torch.stack(clean)), size, count, seed, images)


def _batch(targets: Targets, size: tuple[int, int], count: int, seed: int, images: list[Tensor] | None = None) -> Batch:
    return Batch(
        images=torch.stack(images or [_image(size, key(seed, i, 0)) for i in range(count)]),
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
