"""From images with interleaved channels to one batch tensor of planes."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor


def stack_planes(images: Sequence[np.ndarray], colour: str) -> Tensor:
    """uint8 RGB [H, W, 3] images of one size as uint8 [N, 3, H, W], in the channel order ``rgb`` or ``bgr``."""
    height, width = images[0].shape[:2]
    batch = np.empty((len(images), 3, height, width), dtype=np.uint8)
    for planes, image in zip(batch, images, strict=True):
        wanted = list(planes) if colour == "rgb" else list(planes[::-1])
        for plane, written in zip(wanted, cv2.split(image, wanted), strict=True):
            if not np.may_share_memory(plane, written):  # OpenCV writes into arrays that fit, but does not promise it
                plane[...] = written
    return torch.from_numpy(batch)
