"""What augmentation a recipe may name: torch-free, frozen descriptions, in the order they are applied.

Each entry points to the function that does it. To add one, subclass ``Augment`` in your own package and set
``code`` to ``"your.module:function"``; the signature is documented in ``libreyolo_core.data.transforms``.
Every entry is addressed by its ``name`` in dotted paths: ``augment.mosaic.p``.

Randomness never comes from global state: a function receives a generator keyed by (seed, epoch, sample index).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Augment:
    """The base; ``p`` is the probability with which an entry applies to a sample."""

    p: float = 1.0
    name: ClassVar[str] = ""
    code: ClassVar[str] = ""


@dataclass(frozen=True)
class Mosaic(Augment):
    """Four images around a random centre on a canvas of twice the size (YOLOv4, section 3.3), then one affine warp
    back to the size. ``rotate`` and ``shear`` are degrees either way, ``translate`` a share of the side, ``scale`` a
    range, ``centre`` the range of the mosaic centre as a share of the side. A box is kept while at least ``min_area``
    of its area is left and both of its sides are longer than ``min_side`` pixels. Without ``enlarge`` a photo smaller
    than the input keeps its size."""

    rotate: float = 10.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.1, 2.0)
    shear: float = 2.0
    centre: tuple[float, float] = (0.5, 1.5)
    min_area: float = 0.0
    min_side: float = 0.0
    enlarge: bool = True
    name: ClassVar[str] = "mosaic"
    code: ClassVar[str] = "libreyolo_core.data.mosaic:mosaic"


@dataclass(frozen=True)
class MixUp(Augment):
    """Blend with a second, jittered image half and half (Zhang et al., 2018, with the
    published detectors' fixed share), on mosaic samples that have labels."""

    p: float = 1.0
    scale: tuple[float, float] = (0.5, 1.5)
    flip: float = 0.5
    name: ClassVar[str] = "mixup"
    code: ClassVar[str] = "libreyolo_core.data.mosaic:mixup"


@dataclass(frozen=True)
class Affine(Augment):
    """Rotation, scale, shear and translation of a single image about its centre, same units as ``Mosaic``."""

    p: float = 1.0
    rotate: float = 0.0
    translate: float = 0.1
    scale: tuple[float, float] = (0.9, 1.1)
    shear: float = 0.0
    min_area: float = 0.0
    name: ClassVar[str] = "affine"
    code: ClassVar[str] = "libreyolo_core.data.transforms:affine"


@dataclass(frozen=True)
class Hsv(Augment):
    """Jitter of hue (OpenCV degrees, 0 to 180), saturation and value (0 to 255), each channel kept with ``each``."""

    hue: int = 5
    saturation: int = 30
    value: int = 30
    each: float = 0.5
    name: ClassVar[str] = "hsv"
    code: ClassVar[str] = "libreyolo_core.data.transforms:hsv"


@dataclass(frozen=True)
class Flip(Augment):
    """Mirror left and right."""

    p: float = 0.5
    name: ClassVar[str] = "flip"
    code: ClassVar[str] = "libreyolo_core.data.transforms:flip"


@dataclass(frozen=True)
class FlipVertical(Augment):
    """Mirror top and bottom."""

    p: float = 0.0
    name: ClassVar[str] = "flip_vertical"
    code: ClassVar[str] = "libreyolo_core.data.transforms:flip_vertical"


@dataclass(frozen=True)
class Rotate90(Augment):
    """Turn by a random multiple of 90 degrees; for photos from above, where no side is up."""

    p: float = 0.0
    name: ClassVar[str] = "rotate90"
    code: ClassVar[str] = "libreyolo_core.data.transforms:rotate90"


@dataclass(frozen=True)
class RandomResizedCrop(Augment):
    """A random crop of ``scale`` of the area and aspect ``ratio``, resized to the input (Inception crop)."""

    scale: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    name: ClassVar[str] = "crop"
    code: ClassVar[str] = "libreyolo_core.data.transforms:random_resized_crop"


@dataclass(frozen=True)
class AutoAugment(Augment):
    """One of torchvision's policies, ``randaugment``, ``autoaugment`` or ``augmix``; off unless ``policy`` is set."""

    policy: str = ""
    name: ClassVar[str] = "auto"
    code: ClassVar[str] = "libreyolo_core.data.transforms:auto_augment"


@dataclass(frozen=True)
class Erase(Augment):
    """Random erasing (Zhong et al., 2020) of ``area`` of the image."""

    p: float = 0.0
    area: tuple[float, float] = (0.02, 0.33)
    name: ClassVar[str] = "erase"
    code: ClassVar[str] = "libreyolo_core.data.transforms:erase"


@dataclass(frozen=True)
class MixLabels(Augment):
    """MixUp or CutMix, with these probabilities and alpha 1, of neighbours in classification batches."""

    mixup: float = 0.0
    cutmix: float = 0.0
    name: ClassVar[str] = "mix"
    code: ClassVar[str] = "libreyolo_core.data.transforms:mix_labels"


@dataclass(frozen=True)
class ScaleCrop(Augment):
    """For masks: resize so that the shorter side is the input's times a factor from ``scale``, then cut out a random
    part of the input's size, padded at the bottom and the right where the photo is too small. The part is drawn anew,
    up to ten times, while one class fills more than ``most`` of its labelled pixels."""

    scale: tuple[float, float] = (0.5, 2.0)
    most: float = 0.75
    name: ClassVar[str] = "scale_crop"
    code: ClassVar[str] = "libreyolo_core.data.crops:scale_crop"


@dataclass(frozen=True)
class RandomCrop(Augment):
    """For restoration: a random part of the input's size, in the photo's own scale. A photo that is too small is first
    mirrored at its bottom and right edge (its last pixel repeated where it is at most half as large)."""

    name: ClassVar[str] = "random_crop"
    code: ClassVar[str] = "libreyolo_core.data.crops:random_crop"


@dataclass(frozen=True)
class Photometric(Augment):
    """Photometric distortion: brightness, contrast and saturation by a factor from a range, hue turned by up to this
    share of the circle either way, channels in another order; each with probability ``each``."""

    brightness: tuple[float, float] = (0.875, 1.125)
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: float = 0.05
    each: float = 0.5
    name: ClassVar[str] = "photometric"
    code: ClassVar[str] = "libreyolo_core.data.photometric:photometric"


@dataclass(frozen=True)
class ZoomOut(Augment):
    """Put the photo at a random place of a canvas of ``fill`` whose sides are longer by a factor from ``scale``."""

    p: float = 0.5
    scale: tuple[float, float] = (1.0, 4.0)
    fill: int = 0
    name: ClassVar[str] = "zoom_out"
    code: ClassVar[str] = "libreyolo_core.data.zoom:zoom_out"


@dataclass(frozen=True)
class IoUCrop(Augment):
    """Cut out a part with ``scale`` of either side and an aspect within ``ratio`` that overlaps some box by one of the
    ``overlaps`` (1 stands for the whole photo). Boxes stay whose centre is inside, or of which ``min_area`` is left."""

    p: float = 0.8
    scale: tuple[float, float] = (0.3, 1.0)
    ratio: tuple[float, float] = (0.5, 2.0)
    overlaps: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    min_area: float = 0.25
    name: ClassVar[str] = "iou_crop"
    code: ClassVar[str] = "libreyolo_core.data.zoom:iou_crop"
