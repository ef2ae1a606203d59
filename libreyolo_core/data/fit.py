"""How a photo becomes the network's input: letterbox, stretch or crop, as the sheet's ``Input`` says.

Sides are computed in integers, so no rounding error of a ratio costs a row of pixels.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from PIL import Image

from libreyolo_core.data.batch import Placement
from libreyolo_core.errors import ConfigError, suggestion
from libreyolo_core.family import Input

FITS = ("letterbox", "stretch", "crop")
RESAMPLES = ("linear", "pil-linear", "pil-bicubic")
_PIL = {"pil-linear": Image.Resampling.BILINEAR, "pil-bicubic": Image.Resampling.BICUBIC}


def fit_image(
    image: np.ndarray, rule: Input, size: tuple[int, int], *, predicting: bool = False
) -> tuple[np.ndarray, Placement]:
    """The network's input from a photo.

    Args:
        image: uint8 RGB [H, W, 3].
        rule: the sheet's input rule.
        size: (height, width) of the input in pixels.
        predicting: use ``rule.predict_resample`` where the sheet has one.

    Returns:
        uint8 RGB [*size, 3], and where the photo lies in it.
    """
    method = rule.predict_resample if predicting and rule.predict_resample else rule.resample
    photo = image.shape[:2]
    resized = resize(image, resized_size(rule, photo, size), method)
    return place(resized, rule, photo, size)


def resized_size(rule: Input, photo: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) that a photo is resized to before it is padded or cropped to ``size``."""
    (height, width), (to_height, to_width) = photo, size
    if rule.fit == "stretch":
        return size
    if rule.fit == "letterbox":
        wide = to_width * height <= to_height * width  # the width is what limits
        part, whole = (to_width, width) if wide else (to_height, height)
        rounded = _nearest if rule.round == "nearest" else _floor
        return rounded(height * part, whole), rounded(width * part, whole)
    if rule.fit == "crop":
        least = [int(side / rule.margin + 1e-9) for side in size]  # covered by the resized photo
        if least[0] * width >= least[1] * height:
            return least[0], least[0] * width // height
        return least[1] * height // width, least[1]
    raise ConfigError(f"input.fit is {rule.fit!r}", where="data sheet", mend=suggestion(rule.fit, FITS))


def place(
    resized: np.ndarray, rule: Input, photo: tuple[int, int], size: tuple[int, int]
) -> tuple[np.ndarray, Placement]:
    """Pad or crop what was resized to ``resized_size``."""
    height, width = resized.shape[:2]
    scale = width / photo[1], height / photo[0]
    if (height, width) == size:
        return resized, Placement(photo, size, scale)
    spare_y, spare_x = size[0] - height, size[1] - width
    if rule.fit == "crop":
        top, left = round(-spare_y / 2), round(-spare_x / 2)
        cut = np.ascontiguousarray(resized[top : top + size[0], left : left + size[1]])
        return cut, Placement(photo, size, scale, (-left, -top))
    centred = rule.side == "centre"
    top, left = (spare_y // 2, spare_x // 2) if centred else (0, 0)
    canvas = np.full((*size, 3), rule.pad, dtype=np.uint8)
    canvas[top : top + height, left : left + width] = resized
    return canvas, Placement(photo, size, scale, (left, top))


def resize(image: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """uint8 [H, W, 3] resized to (height, width); the image itself where it has that size already."""
    if image.shape[:2] == tuple(size):
        return image
    if method == "linear":
        return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
    if method not in _PIL:
        raise ConfigError(f"input.resample is {method!r}", where="data sheet", mend=suggestion(method, RESAMPLES))
    return np.array(Image.fromarray(image).resize((size[1], size[0]), _PIL[method]))


def boxes_to_input(boxes: Any, placement: Placement) -> Any:
    """Boxes [..., 4] (x1 y1 x2 y2; array or tensor) from photo pixels to input pixels."""
    out = _copy(boxes)
    for axis in (0, 1):
        out[..., axis::2] = boxes[..., axis::2] * placement.scale[axis] + placement.offset[axis]
    return out


def boxes_to_photo(boxes: Any, placement: Placement) -> Any:
    """Boxes [..., 4] (x1 y1 x2 y2; array or tensor) from input pixels to photo pixels; not clipped."""
    out = _copy(boxes)
    for axis in (0, 1):
        out[..., axis::2] = (boxes[..., axis::2] - placement.offset[axis]) / placement.scale[axis]
    return out


def _copy(boxes: Any) -> Any:
    return boxes.clone() if hasattr(boxes, "clone") else np.array(boxes)


def _floor(product: int, by: int) -> int:
    return max(1, product // by)


def _nearest(product: int, by: int) -> int:
    return max(1, (2 * product + by) // (2 * by))
