"""Prediction at the photo's own size (``Input.fit="native"``): batches of equal size, and tiles for large photos.

Photos of one batch share a forward pass only where their padded sizes are equal, so that what is found in a photo never
depends on its neighbours.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core.config import PredictArgs
from libreyolo_core.data.batch import Placement
from libreyolo_core.data.fit import fit_image, native_size
from libreyolo_core.data.planes import stack_planes
from libreyolo_core.errors import ConfigError
from libreyolo_core.predictions import Predictions
from libreyolo_core.timing import Stopwatch, device_of, synchronise

log = logging.getLogger("libreyolo")
TILED_ABOVE = 4_194_304
"""Photos of more pixels than this (2048 x 2048) are tiled unless the user decides."""
TILE = 1024
"""Side of those tiles in pixels."""
OVERLAP = 128
"""Pixels that neighbouring tiles share, at most a quarter of a tile."""


class Native:
    """Runs photos through a network at their own size.

    Args:
        model: ``sheet``, ``imgsz``, and ``exported`` for a graph of one size, which always works in tiles.
        args: ``tile``, ``tile_overlap``, ``batch``; ``imgsz`` must be open.
        infer: what images go through, as ``model.infer``.

    Raises:
        ConfigError: ``imgsz``, or tiles that contradict each other or the graph.
    """

    def __init__(self, model: Any, args: PredictArgs, infer: Callable[[Tensor], Predictions]) -> None:
        self.infer, self.rule, self.batch = infer, model.sheet.input, args.batch
        if args.imgsz is not None:
            raise ConfigError(
                f"imgsz={args.imgsz} has no meaning for a model that works at the photo's own size",
                where="predict argument imgsz",
                mend="Leave it out; tile= limits the size of a forward pass.",
            )
        exported = getattr(model, "exported", None)
        self.fixed = exported is not None and not exported.any_size
        if self.fixed and args.tile is not None:
            raise ConfigError(
                f"tile={args.tile}: this exported graph takes {model.imgsz} x {model.imgsz} pixels only",
                where="predict argument tile",
                mend="Leave tile= out, or export with dynamic_imgsz=True.",
            )
        wanted = model.imgsz if self.fixed else TILE if args.tile is None else args.tile
        self.side = -(-wanted // self.rule.multiple) * self.rule.multiple
        if self.side != wanted and args.tile:
            log.info("tile=%d is no multiple of %d; using %d.", wanted, self.rule.multiple, self.side)
        self.chosen = self.fixed or args.tile is not None
        self.overlap = min(OVERLAP, self.side // 4) if args.tile_overlap is None else args.tile_overlap
        if args.tile_overlap is not None and 2 * args.tile_overlap > self.side:
            raise ConfigError(
                f"tile_overlap={args.tile_overlap} is more than half of tile={self.side}",
                where="predict argument tile_overlap",
                mend="Use a smaller overlap or larger tiles." if self.side else "Leave it out: tile=0 means no tiles.",
            )
        self._told = False

    def __call__(
        self, photos: list[np.ndarray], clock: Stopwatch
    ) -> Iterator[tuple[list[int], Predictions, list[Placement]]]:
        """Predictions of RGB photos uint8 [H, W, 3], in groups: indices of the photos, predictions, placements."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, photo in enumerate(photos):
            groups[self._padded(photo)].append(i)
        for size, indices in groups.items():
            with clock("preprocess"):
                fitted, placements = zip(
                    *(fit_image(photos[i], self.rule, size, predicting=True) for i in indices), strict=True
                )
                images = stack_planes(fitted, self.rule.colour)
            with clock("inference"):
                predictions = self._in_tiles(images) if self._tiled(size) else self.infer(images)
                synchronise(device_of(predictions))
            yield indices, predictions, list(placements)

    def _in_tiles(self, images: Tensor) -> Predictions:
        step = self.rule.multiple
        parts = [tiled(self.infer, image, self.side, self.overlap, step, self.batch) for image in images]
        return Predictions(image=torch.stack(parts))

    def _padded(self, photo: np.ndarray) -> tuple[int, int]:
        h, w = native_size(self.rule, [(photo.shape[0], photo.shape[1])])
        return (max(h, self.side), max(w, self.side)) if self.fixed else (h, w)

    def _tiled(self, size: tuple[int, int]) -> bool:
        if self.chosen:
            return bool(self.side) and max(size) > self.side
        if size[0] * size[1] <= TILED_ABOVE:
            return False
        if not self._told:
            log.info(
                "A photo of %d x %d pixels goes through the network in blended tiles of %d with %d shared, to bound "
                "the memory; so does every one above %.1f megapixels. tile=0 takes photos whole, another tile= sets "
                "the side.",
                size[1],
                size[0],
                self.side,
                self.overlap,
                TILED_ABOVE / 1e6,
            )
            self._told = True
        return True


def tiled(
    infer: Callable[[Tensor], Predictions], image: Tensor, side: int, overlap: int, step: int, batch: int
) -> Tensor:
    """``Predictions.image`` of one large image, put together from tiles.

    Where tiles overlap, the outer quarter of the overlap is only context, and over the half between the quarters one
    tile fades linearly into the next: no seam shows, and a network that sees no farther than a quarter of the overlap
    gives exactly what it gives for the whole image.

    Args:
        infer: uint8 images [N, 3, h, w] to predictions with ``image`` [N, 3, h, w].
        image: uint8 [3, H, W].
        side: of a tile in pixels; shorter where the image is.
        overlap: pixels that neighbours share at least.
        step: tiles begin at multiples of this many pixels.
        batch: tiles per forward pass.

    Returns:
        float32 [3, H, W] on the CPU.
    """
    h, w = image.shape[-2:]
    rows, columns = (Axis(length, side, overlap, step) for length in (h, w))
    out = torch.zeros(3, h, w)
    places = [(i, j) for i in range(len(rows.starts)) for j in range(len(columns.starts))]
    for first in range(0, len(places), batch):
        part = places[first : first + batch]
        cuts = [(rows.cut(i), columns.cut(j)) for i, j in part]
        found = infer(torch.stack([image[:, y, x] for y, x in cuts])).image
        assert found is not None, "only images can be put together from tiles"
        for (i, j), (y, x), tile in zip(part, cuts, found.float().cpu(), strict=True):
            out[:, y, x] += tile * rows.weights[i][:, None] * columns.weights[j]
    return out


class Axis:
    """Where tiles begin along one axis, and the weight of each of their pixels; the weights of a pixel sum to 1."""

    def __init__(self, length: int, side: int, overlap: int, step: int) -> None:
        self.side = min(side, length)
        stride = max(step, (self.side - overlap) // step * step)
        overlap = min(overlap, max(0, self.side - stride))
        last = length - self.side
        self.starts = [*range(0, last, stride), last]
        inner = (torch.arange(self.side, dtype=torch.float64) + 0.5 - overlap / 4) / max(overlap / 2, 1e-9)
        rise = inner.clamp(0, 1)
        self.weights = []
        for start in self.starts:
            weight = torch.ones(self.side, dtype=torch.float64)
            if start > 0:
                weight *= rise
            if start < last:
                weight *= rise.flip(0)
            self.weights.append(weight)
        total = torch.zeros(length, dtype=torch.float64)
        for start, weight in zip(self.starts, self.weights, strict=True):
            total[start : start + self.side] += weight
        self.weights = [
            (weight / total[start : start + self.side]).float()
            for start, weight in zip(self.starts, self.weights, strict=True)
        ]

    def cut(self, i: int) -> slice:
        """The pixels of tile ``i``."""
        return slice(self.starts[i], self.starts[i] + self.side)
