"""How a photo becomes the network's input: letterbox, stretch, crop or its own size, as the sheet's ``Input`` says.

Sides are computed in integers, so no rounding error of a ratio costs a row of pixels. Maps of class ids, uint8 [H, W],
go the same way as photos, uint8 [H, W, 3]: resized to the nearest neighbour, and ignored where there is no photo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image

from libreyolo_core.data.batch import Placement
from libreyolo_core.errors import ConfigError, suggestion
from libreyolo_core.family import Input
from libreyolo_core.targets import IGNORED

FITS = ("letterbox", "stretch", "crop", "native")
RESAMPLES = ("linear", "pil-linear", "pil-bicubic")
_PIL = {"pil-linear": Image.Resampling.BILINEAR, "pil-bicubic": Image.Resampling.BICUBIC}


def fit_image(
    image: np.ndarray, rule: Input, size: tuple[int, int], *, predicting: bool = False
) -> tuple[np.ndarray, Placement]:
    """The network's input from a photo.

    Args:
        image: uint8 RGB [H, W, 3].
        rule: the sheet's input rule.
        size: (height, width) of the input in pixels; with ``fit="native"`` at least the photo's, see ``native_size``.
        predicting: use ``rule.predict_resample`` where the sheet has one.

    Returns:
        uint8 RGB [*size, 3], and where the photo lies in it.

    Raises:
        ConfigError: with ``fit="native"``, a photo larger than ``size``.
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
    if rule.fit == "native":
        return photo
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
    """Pad or crop what was resized to ``resized_size``: a photo [h, w, 3] or a map of class ids [h, w]."""
    height, width = resized.shape[:2]
    scale = width / photo[1], height / photo[0]
    if (height, width) == size:
        return resized, Placement(photo, size, scale)
    if rule.fit == "native":
        return extend(resized, size, rule), Placement(photo, size, scale)
    spare_y, spare_x = size[0] - height, size[1] - width
    if rule.fit == "crop":
        top, left = round(-spare_y / 2), round(-spare_x / 2)
        cut = np.ascontiguousarray(resized[top : top + size[0], left : left + size[1]])
        return cut, Placement(photo, size, scale, (-left, -top))
    centred = rule.side == "centre"
    top, left = (spare_y // 2, spare_x // 2) if centred else (0, 0)
    canvas = np.full((*size, *resized.shape[2:]), outside(resized, rule), dtype=np.uint8)
    canvas[top : top + height, left : left + width] = resized
    return canvas, Placement(photo, size, scale, (left, top))


def outside(pixels: np.ndarray, rule: Input) -> int:
    """What stands where there is no photo: the padding of a photo [h, w, 3], ignored in a map of class ids [h, w]."""
    return IGNORED if pixels.ndim == 2 else rule.pad


def native_size(rule: Input, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The (height, width) of a batch of photos of their own ``sizes``: the largest of each side, rounded up to
    ``rule.multiple``."""
    height, width = (max(sides) for sides in zip(*sizes, strict=True))
    return -(-height // rule.multiple) * rule.multiple, -(-width // rule.multiple) * rule.multiple


def extend(pixels: np.ndarray, size: tuple[int, int], rule: Input, *, border: str = "") -> np.ndarray:
    """Pixels [h, w, 3] or [h, w] with a border at the bottom and the right, so that they have ``size``.

    Args:
        border: ``constant`` or ``reflect``, default ``rule.border``. A side to be extended by as much as it has, or
            more, repeats its last pixel instead. Class ids are never mirrored: beyond the photo they are ignored.

    Raises:
        ConfigError: the pixels are larger than ``size``.
    """
    height, width = pixels.shape[:2]
    rows, columns = size[0] - height, size[1] - width
    if rows < 0 or columns < 0:
        raise ConfigError(
            f"A photo of {width} x {height} pixels does not fit into an input of {size[1]} x {size[0]}",
            where="input.fit='native'",
            mend="Such a sheet needs a crop in its augment, e.g. RandomCrop().",
        )
    border = border or rule.border
    if pixels.ndim == 2 or border == "constant":
        value = outside(pixels, rule)
        return cv2.copyMakeBorder(pixels, 0, rows, 0, columns, cv2.BORDER_CONSTANT, value=(value,) * 3)
    if border != "reflect":
        known = ("constant", "reflect")
        raise ConfigError(f"input.border is {border!r}", where="data sheet", mend=suggestion(border, known))
    for down, right, side in ((rows, 0, height), (0, columns, width)):
        if down or right:
            mirrored = down + right < side
            how = cv2.BORDER_REFLECT_101 if mirrored else cv2.BORDER_REPLICATE
            pixels = cv2.copyMakeBorder(pixels, 0, down, 0, right, how)
    return pixels


def resize(image: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """uint8 [H, W, 3] resized to (height, width); the image itself where it has that size already. A map of class ids
    [H, W] takes the nearest neighbour whatever the method."""
    if image.shape[:2] == tuple(size):
        return image
    if image.ndim == 2:
        return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_NEAREST_EXACT)
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
