"""From fitted samples to one batch: pixels stacked as planes, annotation as the task's padded targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from libreyolo_core.data.batch import Batch, Sample
from libreyolo_core.data.fit import extend, fit_image, native_size
from libreyolo_core.data.mixing import mix_pairs
from libreyolo_core.data.planes import stack_planes
from libreyolo_core.family import Input
from libreyolo_core.targets import BoxTargets, ClassTargets, ImageTargets, MaskTargets, Targets


def collate_detect(samples: Sequence[Sample], rule: Input) -> Batch:
    """Stack samples of one size; boxes are padded, all of them."""
    boxes = [torch.from_numpy(np.ascontiguousarray(s.boxes, dtype=np.float32)) for s in samples]
    labels = [torch.from_numpy(s.labels) for s in samples]
    return _batch(samples, stack_planes([s.image for s in samples], rule.colour), BoxTargets.pad(boxes, labels))


def collate_classify(samples: Sequence[Sample], rule: Input) -> Batch:
    """Stack samples of one size; labels int64 [N], or float rows where batches are mixed (``augment.mix``)."""
    if any("mix" in s.extra for s in samples):
        images, rows = mix_pairs(list(samples), samples[0].extra["classes"])
        return _batch(samples, stack_planes(images, rule.colour), ClassTargets(torch.from_numpy(rows)))
    labels = torch.tensor([int(s.labels[0]) for s in samples], dtype=torch.int64)
    return _batch(samples, stack_planes([s.image for s in samples], rule.colour), ClassTargets(labels))


def collate_semantic(samples: Sequence[Sample], rule: Input) -> Batch:
    """Stack samples with their layer ``mask`` as uint8 [N, H, W]; sizes as ``to_one_size``."""
    samples = to_one_size(samples, rule)
    masks = torch.from_numpy(np.stack([s.layers["mask"] for s in samples]))
    return _batch(samples, stack_planes([s.image for s in samples], rule.colour), MaskTargets(masks))


def collate_restore(samples: Sequence[Sample], rule: Input) -> Batch:
    """Stack samples with their layer ``clean`` as uint8 [N, 3, H, W] in the network's channel order; sizes as
    ``to_one_size``, and what the border holds is not part of the photo."""
    samples = to_one_size(samples, rule)
    clean = stack_planes([s.layers["clean"] for s in samples], rule.colour)
    return _batch(samples, stack_planes([s.image for s in samples], rule.colour), ImageTargets(clean))


def to_one_size(samples: Sequence[Sample], rule: Input) -> Sequence[Sample]:
    """Photos of their own sizes (``fit="native"``, not augmented) extended at the bottom and the right to the batch's
    ``native_size``; their placements say which part is the photo. Other samples have one size already."""
    if rule.fit != "native" or any(s.placement is None for s in samples):
        return samples
    size = native_size(rule, [s.image.shape[:2] for s in samples])
    fitted = []
    for sample in samples:
        image, placement = fit_image(sample.image, rule, size)
        layers = {name: extend(pixels, size, rule) for name, pixels in sample.layers.items()}
        fitted.append(replace(sample, image=image, layers=layers, placement=placement))
    return fitted


def _batch(samples: Sequence[Sample], images: torch.Tensor, targets: Targets) -> Batch:
    placements = [s.placement for s in samples if s.placement is not None]
    return Batch(
        images,
        targets,
        torch.tensor([s.draw for s in samples], dtype=torch.int64),
        [s.index for s in samples],
        [s.path for s in samples],
        placements if len(placements) == len(samples) else [],
    )
