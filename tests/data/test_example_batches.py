"""Made-up batches of masks and image pairs depend on seed and position alone, and hold what their targets may hold."""

from __future__ import annotations

import pytest
import torch

from libreyolo_core.tasks.examples import image_batch, mask_batch


@pytest.mark.parametrize("nc", [1, 3, 150, 255])
def test_masks_hold_classes_and_a_little_that_is_ignored(nc):
    batch = mask_batch(nc, size=(96, 128), count=6, seed=1)
    masks = batch.targets.masks
    assert masks.shape == (6, 96, 128) and masks.dtype == torch.uint8 and batch.images.shape == (6, 3, 96, 128)
    assert 0 < (masks == 255).float().mean() < 0.2 and masks[masks != 255].max() < nc
    assert (masks[:, :16, :16] == masks[:, :1, :1]).all()  # blocks


def test_an_image_does_not_depend_on_the_others():
    for make in (lambda n: mask_batch(5, size=(48, 64), count=n), lambda n: image_batch(size=(48, 64), count=n)):
        few, many = make(2), make(4)
        assert torch.equal(few.images, many.images[:2]) and not torch.equal(many.images[0], many.images[1])
        targets = [
            getattr(b.targets, "masks", None) if hasattr(b.targets, "masks") else b.targets.images for b in (few, many)
        ]
        assert torch.equal(targets[0], targets[1][:2])


def test_a_degraded_image_differs_from_the_clean_one_as_a_restorer_could_mend():
    batch = image_batch(size=(50, 70), count=3, seed=2)
    clean, image = (x.float() / 255 for x in (batch.targets.images, batch.images))
    assert clean.shape == image.shape == (3, 3, 50, 70)
    assert 0.02 < (clean - image).std() < 0.15
