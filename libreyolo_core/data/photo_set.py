"""Map-style data sets that answer a ``SampleRequest`` purely: the same request gives the same sample in any process.

A photo is decoded, shrunk to the *canvas* (the largest input of the run) if it is larger, augmented and fitted. The
shrunk form is what a cache keeps, so nothing depends on whether there is one. To add a task, subclass ``PhotoSet``; one
with further pixels beside the photo names them in ``channels`` and reads them in ``read_layer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from torch.utils.data import Dataset

from libreyolo_core.data.batch import Sample, SampleRequest
from libreyolo_core.data.cache import PhotoCache, make_cache
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.fit import boxes_to_input, place, resize, resized_size
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.scan_result import ImageRecord, Scan
from libreyolo_core.data.transforms import Context, apply, fit_sample
from libreyolo_core.draw import key, site
from libreyolo_core.errors import DataError, ImageError
from libreyolo_core.family import Input

REPLACEMENTS = 20
"""Unreadable photos in a row after which something is wrong with the disk, not with a photo."""
CROP_RESERVE = 1.5
"""Photos for random crops keep this much more than the input, so that a crop of half the area is not enlarged."""
_REPLACE = site("replacement")
Canvas = tuple[int, int] | None
"""(height, width) that photos are shrunk to, ``None`` for not at all."""


class PhotoSet(Dataset):
    """The base of the data sets: photos with boxes or a class, and perhaps further pixels.

    Args:
        scan: the usable images.
        rule: the sheet's input rule.
        seed: part of every random key.
        cache: "" for none, ``ram`` or ``disk``.
    """

    channels: ClassVar[Mapping[str, int]] = {}
    """Layers of a sample and their channels: 1 for uint8 [H, W], 3 for uint8 [H, W, 3]."""

    def __init__(self, scan: Scan, rule: Input, *, seed: int = 0, cache: str = "") -> None:
        self.rule, self.seed, self.cache_kind = rule, seed, cache
        self.names, self.split = dict(scan.names), scan.split
        self.paths = np.array([r.path for r in scan.images])  # one block: worker processes share it
        self.sizes = np.array([r.size for r in scan.images], dtype=np.int64).reshape(-1, 2)
        self.layer_paths = {name: np.array([r.layers[name] for r in scan.images]) for name in self.channels}
        boxes, labels = zip(*map(_trainable, scan.images)) if scan.images else ((), ())
        self._ends = np.cumsum([0, *map(len, labels)])
        self._boxes = np.concatenate([np.zeros((0, 4), np.float32), *boxes]).astype(np.float32)
        self._labels = np.concatenate([np.zeros(0, np.int64), *labels]).astype(np.int64)
        self.canvas: tuple[int, int] | None = None
        self.photos: PhotoCache | None = None
        self.kept_layers: dict[str, PhotoCache | None] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def prepare(self, canvas: tuple[int, int]) -> None:
        """Say how large inputs get, (height, width), and fill the cache. Called once, before workers start; without
        it every request's own size is its canvas and nothing is cached."""
        if canvas == self.canvas:
            return
        self.canvas = canvas
        if self.cache_kind:
            shapes = [self._kept_shape(i, canvas) for i in range(len(self))]
            facts = (canvas, self.rule.fit, self.rule.resample, self.rule.round, self.rule.margin, type(self).__name__)
            self.photos = make_cache(
                self.cache_kind, self.paths.tolist(), shapes, lambda i: self._decoded(i, canvas), *facts
            )
            for name, channels in self.channels.items():
                self.kept_layers[name] = make_cache(
                    self.cache_kind,
                    self.layer_paths[name].tolist(),
                    shapes,
                    partial(self._decoded_layer, name, canvas=canvas),
                    *(*facts, name, self.layer_facts()),
                    channels=channels,
                    what=f"images of the layer {name!r}",
                )

    def __getitem__(self, request: SampleRequest) -> Sample:
        """A sample fitted to ``request.size``; ``placement`` is set where nothing was augmented, and
        ``extra["unreadable"]`` lists (path, problem) of photos that others had to stand in for.

        Raises:
            DataError: many photos in a row became unreadable since the scan.
        """
        draw = key(self.seed, request.epoch, request.index)
        canvas = self.canvas or request.size
        kept_canvas = None if not request.augment and self._evaluates_whole() else canvas
        problems: list[tuple[str, str]] = []

        def load(index: int) -> Sample:
            return self._load(index, kept_canvas, draw, problems)

        sample = load(request.index)
        if request.augment:
            context = Context(
                request.size, self.rule, len(self), load, lambda i: self._kept_shape(i, canvas), self._count
            )
            fitted = fit_sample(apply(request.augment, sample, context, draw=draw), context)
            if self._lost(sample, fitted):
                fitted = fit_sample(self._plain(sample, request.size), context)
        else:
            fitted = self._plain(sample, request.size)
        extra = {**fitted.extra, "unreadable": problems} if problems else fitted.extra
        return replace(fitted, draw=draw, extra=extra)

    def read_layer(self, name: str, index: int) -> np.ndarray:
        """The pixels of a layer, as large as the photo; raises ``ImageError``."""
        raise NotImplementedError

    def layer_facts(self) -> object:
        """What decides how layers are read, beside their files; part of the cache's key."""
        return None

    def _evaluates_whole(self) -> bool:
        """Whether evaluation fits the photo itself, not what training keeps of it."""
        return self.rule.fit == "crop"

    def _lost(self, before: Sample, after: Sample) -> bool:
        """Whether augmentation left nothing of a photo that has boxes: then the photo itself is used."""
        return len(before.boxes) > 0 and not len(after.boxes)

    def _count(self, index: int) -> int:
        return int(self._ends[index + 1] - self._ends[index])

    def _load(self, index: int, canvas: Canvas, draw: int, problems: list[tuple[str, str]]) -> Sample:
        """A photo in its kept form with its annotation; an unreadable one gives way to one drawn from the key."""
        rng = None
        for _ in range(REPLACEMENTS):
            try:
                return self._sample(index, canvas)
            except (ImageError, OSError) as error:
                path = getattr(error, "where", "") or str(self.paths[index])
                problems.append((path, getattr(error, "problem", str(error))))
                rng = rng or keyed(key(draw, index), _REPLACE)
                index = int(rng.integers(len(self)))
        raise DataError(
            f"{REPLACEMENTS} photos in a row cannot be read, the first: {problems[0][1]}",
            where=problems[0][0],
            mend="Check that the disk with the data set is still there, then resume.",
        )

    def _kept(self, index: int, canvas: Canvas) -> np.ndarray:
        cached = self.photos.get(index) if self.photos is not None and canvas is not None else None
        return self._decoded(index, canvas) if cached is None else cached

    def _decoded(self, index: int, canvas: Canvas) -> np.ndarray:
        image = read_image(str(self.paths[index]))
        if image.shape[:2] != tuple(self.sizes[index]):
            raise ImageError(
                f"The photo is {image.shape[1]} x {image.shape[0]} pixels, not what the scan found",
                where=str(self.paths[index]),
                mend="Start again: the data set is then scanned anew.",
            )
        return image if canvas is None else resize(image, self._kept_shape(index, canvas), self.rule.resample)

    def _kept_layer(self, name: str, index: int, canvas: Canvas) -> np.ndarray:
        kept = self.kept_layers.get(name)
        cached = kept.get(index) if kept is not None and canvas is not None else None
        return self._decoded_layer(name, index, canvas) if cached is None else cached

    def _decoded_layer(self, name: str, index: int, canvas: Canvas) -> np.ndarray:
        pixels = self.read_layer(name, index)
        if pixels.shape[:2] != tuple(self.sizes[index]):
            raise ImageError(
                f"The {name} is {pixels.shape[1]} x {pixels.shape[0]} pixels, not what the scan found",
                where=str(self.layer_paths[name][index]),
                mend="Start again: the data set is then scanned anew.",
            )
        return pixels if canvas is None else resize(pixels, self._kept_shape(index, canvas), self.rule.resample)

    def _kept_shape(self, index: int, canvas: tuple[int, int]) -> tuple[int, int]:
        """(height, width) a photo is kept in: as the input rule resizes it to the canvas, if that makes it smaller.
        Fitting it to the canvas afterwards then takes no second interpolation."""
        photo = int(self.sizes[index, 0]), int(self.sizes[index, 1])
        if self.rule.fit == "crop":
            canvas = round(canvas[0] * CROP_RESERVE), round(canvas[1] * CROP_RESERVE)
        target = resized_size(self.rule, photo, canvas)
        return target if target[0] * target[1] < photo[0] * photo[1] else photo

    def _sample(self, index: int, canvas: Canvas) -> Sample:
        image = self._kept(index, canvas)
        rows = slice(self._ends[index], self._ends[index + 1])
        boxes = self._boxes[rows].copy()
        height, width = self.sizes[index].tolist()
        if image.shape[:2] != (height, width):
            boxes *= np.array([image.shape[1] / width, image.shape[0] / height] * 2, dtype=np.float32)
        layers = {name: self._kept_layer(name, index, canvas) for name in self.channels}
        return Sample(image, boxes, self._labels[rows].copy(), index, str(self.paths[index]), layers=layers)

    def _plain(self, sample: Sample, size: tuple[int, int]) -> Sample:
        """The photo fitted to the input as it is, with its placement; with ``fit="native"`` in its own size, to which
        collating adds the border that its batch needs."""
        photo = int(self.sizes[sample.index, 0]), int(self.sizes[sample.index, 1])
        size = photo if self.rule.fit == "native" else size
        target = resized_size(self.rule, photo, size)
        image, placement = place(resize(sample.image, target, self.rule.resample), self.rule, photo, size)
        layers = {
            name: place(resize(pixels, target, self.rule.resample), self.rule, photo, size)[0]
            for name, pixels in sample.layers.items()
        }
        rows = slice(self._ends[sample.index], self._ends[sample.index + 1])
        boxes = boxes_to_input(self._boxes[rows], placement)
        return replace(sample, image=image, boxes=boxes, layers=layers, placement=placement)


def _trainable(record: ImageRecord) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and labels of an image without crowd regions."""
    if record.crowd is None:
        return record.boxes, record.labels
    return record.boxes[~record.crowd], record.labels[~record.crowd]
