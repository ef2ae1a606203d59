"""Map-style data sets that answer a ``SampleRequest`` purely: the same request gives the same sample in any process.

A photo is decoded, shrunk to the *canvas* (the largest input of the run) if it is larger, augmented and fitted. The
shrunk form is what a cache keeps, so nothing depends on whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import Dataset

from libreyolo_core.data.batch import Batch, Sample, SampleRequest
from libreyolo_core.data.cache import PhotoCache, make_cache
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.fit import boxes_to_input, place, resize, resized_size
from libreyolo_core.data.mixing import mix_pairs
from libreyolo_core.data.planes import stack_planes
from libreyolo_core.data.randomness import keyed
from libreyolo_core.data.scan_result import Scan
from libreyolo_core.data.transforms import Context, apply, fit_sample
from libreyolo_core.draw import key, site
from libreyolo_core.errors import DataError, ImageError
from libreyolo_core.family import Input
from libreyolo_core.targets import BoxTargets, ClassTargets

REPLACEMENTS = 20
"""Unreadable photos in a row after which something is wrong with the disk, not with a photo."""
CROP_RESERVE = 1.5
"""Photos for random crops keep this much more than the input, so that a crop of half the area is not enlarged."""
_REPLACE = site("replacement")
Canvas = tuple[int, int] | None
"""(height, width) that photos are shrunk to, ``None`` for not at all."""


class PhotoSet(Dataset):
    """The base of the data sets: photos with boxes or a class.

    Args:
        scan: the usable images.
        rule: the sheet's input rule.
        seed: part of every random key.
        cache: "" for none, ``ram`` or ``disk``.
    """

    def __init__(self, scan: Scan, rule: Input, *, seed: int = 0, cache: str = "") -> None:
        self.rule, self.seed, self.cache_kind = rule, seed, cache
        self.names, self.split = dict(scan.names), scan.split
        self.paths = np.array([r.path for r in scan.images])  # one block: worker processes share it
        self.sizes = np.array([r.size for r in scan.images], dtype=np.int64).reshape(-1, 2)
        boxes, labels = zip(*map(_trainable, scan.images)) if scan.images else ((), ())
        self._ends = np.cumsum([0, *map(len, labels)])
        self._boxes = np.concatenate([np.zeros((0, 4), np.float32), *boxes]).astype(np.float32)
        self._labels = np.concatenate([np.zeros(0, np.int64), *labels]).astype(np.int64)
        self.canvas: tuple[int, int] | None = None
        self.photos: PhotoCache | None = None

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

    def __getitem__(self, request: SampleRequest) -> Sample:
        """A sample fitted to ``request.size``; ``placement`` is set where nothing was augmented, and
        ``extra["unreadable"]`` lists (path, problem) of photos that others had to stand in for.

        Raises:
            DataError: many photos in a row became unreadable since the scan.
        """
        draw = key(self.seed, request.epoch, request.index)
        canvas = self.canvas or request.size
        # evaluation crops from the photo itself, not from what training keeps of it
        kept_canvas = None if self.rule.fit == "crop" and not request.augment else canvas
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
                return self._sample(index, self._kept(index, canvas))
            except (ImageError, OSError) as error:
                problems.append((str(self.paths[index]), getattr(error, "problem", str(error))))
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

    def _kept_shape(self, index: int, canvas: tuple[int, int]) -> tuple[int, int]:
        """(height, width) a photo is kept in: as the input rule resizes it to the canvas, if that makes it smaller.
        Fitting it to the canvas afterwards then takes no second interpolation."""
        photo = int(self.sizes[index, 0]), int(self.sizes[index, 1])
        if self.rule.fit == "crop":
            canvas = round(canvas[0] * CROP_RESERVE), round(canvas[1] * CROP_RESERVE)
        target = resized_size(self.rule, photo, canvas)
        return target if target[0] * target[1] < photo[0] * photo[1] else photo

    def _sample(self, index: int, image: np.ndarray) -> Sample:
        rows = slice(self._ends[index], self._ends[index + 1])
        boxes = self._boxes[rows].copy()
        height, width = self.sizes[index].tolist()
        if image.shape[:2] != (height, width):
            boxes *= np.array([image.shape[1] / width, image.shape[0] / height] * 2, dtype=np.float32)
        return Sample(image, boxes, self._labels[rows].copy(), index, str(self.paths[index]))

    def _plain(self, sample: Sample, size: tuple[int, int]) -> Sample:
        """The photo fitted to the input as it is, with its placement."""
        photo = int(self.sizes[sample.index, 0]), int(self.sizes[sample.index, 1])
        target = resized_size(self.rule, photo, size)
        image, placement = place(resize(sample.image, target, self.rule.resample), self.rule, photo, size)
        rows = slice(self._ends[sample.index], self._ends[sample.index + 1])
        boxes = boxes_to_input(self._boxes[rows], placement)
        return replace(sample, image=image, boxes=boxes, placement=placement)


class DetectSet(PhotoSet):
    """Photos with boxes."""


class ClassifySet(PhotoSet):
    """Photos with one class each."""

    def _lost(self, before: Sample, after: Sample) -> bool:
        return False

    def __getitem__(self, request: SampleRequest) -> Sample:
        sample = super().__getitem__(request)
        return replace(sample, extra={**sample.extra, "classes": len(self.names)})


def _trainable(record) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and labels of an image without crowd regions."""
    if record.crowd is None:
        return record.boxes, record.labels
    return record.boxes[~record.crowd], record.labels[~record.crowd]


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


def _batch(samples: Sequence[Sample], images: torch.Tensor, targets) -> Batch:
    placements = [s.placement for s in samples if s.placement is not None]
    return Batch(
        images,
        targets,
        torch.tensor([s.draw for s in samples], dtype=torch.int64),
        [s.index for s in samples],
        [s.path for s in samples],
        placements if len(placements) == len(samples) else [],
    )
