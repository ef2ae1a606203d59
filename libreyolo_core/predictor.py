"""The one prediction loop: read, fit, infer, make results; save and show what was asked for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from libreyolo_core.config import PredictArgs, make_args
from libreyolo_core.data.batch import Placement
from libreyolo_core.data.fit import fit_image
from libreyolo_core.data.planes import stack_planes
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Input
from libreyolo_core.native import Native
from libreyolo_core.prediction_files import PredictionFiles
from libreyolo_core.predictions import Predictions
from libreyolo_core.results import Results, ResultsList
from libreyolo_core.sources import Photo, iterate
from libreyolo_core.timing import Stopwatch, device_of, synchronise
from libreyolo_core.window import Window

log = logging.getLogger("libreyolo")
THRESHOLDS = ("conf", "iou", "max_det", "classes", "agnostic", "radius")
"""The arguments that a task applies to predictions, or refuses."""
Infer = Callable[[Tensor], Predictions]


def predict(model: Any, source: Any, **options: Any) -> ResultsList | Iterator[Results]:
    """Run a model on a source.

    Args:
        model: what ``LibreYOLO(...)`` returns: ``infer``, ``task``, ``sheet``, ``names``, ``imgsz``, ``device``.
        source: see ``libreyolo_core.sources``.
        options: the fields of ``PredictArgs`` but ``device``, which is the caller's: the model sits on one.

    Returns:
        One ``Results`` per photo, in a list, or with ``stream=True`` in a generator that holds one batch at a time.

    Raises:
        ConfigError: an option with an unknown name, a wrong type, out of range, or without meaning for the task.
        DataError, ImageError, UsageError: as ``libreyolo_core.sources.iterate``.
    """
    args = make_args(PredictArgs, {"source": source, **options}, verb="predict")
    if args.save_conf and not args.save_txt:
        raise ConfigError("save_conf has no effect alone", where="predict", mend="Add save_txt=true.")
    unknown = [c for c in args.classes or () if c not in model.names]
    if unknown:
        known = ", ".join(f"{i} {n}" for i, n in list(model.names.items())[:5])
        raise ConfigError(
            f"classes={list(args.classes or ())}: the model has no class {unknown[0]}",
            where="predict argument classes",
            mend=f"It has {len(model.names)}: {known}{', ...' if len(model.names) > 5 else '.'}",
        )
    infer = model.infer_captured(args.cuda_graph) if args.cuda_graph else model.infer
    run = native_run(model, args, infer)
    run = run or FittedRun(infer, model.sheet.input, input_size(model.sheet.input, model.imgsz, args.imgsz))
    photos = iterate(source, vid_stride=args.vid_stride)
    results = _run(model, photos, args, run)
    return results if args.stream else ResultsList(results)


class Run(Protocol):
    """How photos go through a network: in parts of a batch, each with the indices of its photos."""

    def __call__(
        self, photos: list[np.ndarray], clock: Stopwatch
    ) -> Iterator[tuple[list[int], Predictions, list[Placement]]]: ...


def native_run(model: Any, args: PredictArgs, infer: Infer) -> Run | None:
    """The run of a model that works at the photo's own size, ``None`` for one that resizes photos to its input.

    Args:
        infer: what images go through, as ``model.infer``.

    Raises:
        ConfigError: arguments for the other kind.
    """
    if model.sheet.input.fit == "native":
        return Native(model, args, infer)
    for name in ("tile", "tile_overlap"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"{name}={getattr(args, name)} has no meaning for a model that resizes photos to its input",
                where=f"predict argument {name}",
                mend="Leave it out; imgsz= sets the size of the input.",
            )
    return None


class FittedRun:
    """All photos of a batch resized to one input size, in one pass."""

    def __init__(self, infer: Infer, rule: Input, size: tuple[int, int]) -> None:
        self.infer, self.rule, self.size = infer, rule, size

    def __call__(
        self, photos: list[np.ndarray], clock: Stopwatch
    ) -> Iterator[tuple[list[int], Predictions, list[Placement]]]:
        with clock("preprocess"):
            images, placements = to_input(photos, self.rule, self.size)
        with clock("inference"):
            predictions = self.infer(images)
            synchronise(device_of(predictions))
        yield list(range(len(photos))), predictions, placements


def input_size(rule: Input, default: int, imgsz: int | None) -> tuple[int, int]:
    """The (height, width) that ``imgsz`` means: rounded up to the network's multiple, with a log line.

    Raises:
        ConfigError: another size than the only one that a network with a fixed input takes.
    """
    side = default if imgsz is None else imgsz
    if rule.fixed and side != default:
        raise ConfigError(
            f"imgsz={imgsz} is not possible, this network takes {default} only",
            where="imgsz",
            mend=f"Leave imgsz out, or use {default}.",
        )
    rounded = -(-side // rule.multiple) * rule.multiple
    if rounded != side:
        log.info("imgsz=%d is no multiple of %d; using %d.", side, rule.multiple, rounded)
    return rounded, rounded


def _run(model: Any, photos: Iterator[Photo], args: PredictArgs, run: Run) -> Iterator[Results]:
    number = 0
    with PredictionFiles(args) as files, Window() as window:
        for batch in _batches(photos, args.batch):
            for photo, result in zip(batch, _one_batch(model, batch, args, run), strict=True):
                number += 1
                if args.verbose:
                    _report(number, photo, result)
                if files.wanted:
                    result.save_dir = str(files.add(photo, result))
                if args.show:
                    window.show(photo, result)
                yield result
    if args.cuda_graph is True and args.verbose and model.capture:
        log.info("cuda_graph: %s", model.recordings.summary())


def _batches(photos: Iterator[Photo], size: int) -> Iterator[list[Photo]]:
    while batch := list(itertools.islice(photos, size)):
        yield batch


def _one_batch(model: Any, batch: list[Photo], args: PredictArgs, run: Run) -> list[Results]:
    clock = Stopwatch()
    thresholds = {name: getattr(args, name) for name in THRESHOLDS}
    found: dict[int, Results] = {}
    for indices, predictions, placements in run([p.image for p in batch], clock):
        part = [batch[i] for i in indices]
        with clock("postprocess"):
            results = model.task.results(
                predictions,
                [p.image for p in part],
                placements,
                [p.path for p in part],
                model.sheet,
                model.names,
                **thresholds,
            )
        found |= dict(zip(indices, results, strict=True))
    speed = clock.per_image(len(batch))
    for i, photo in enumerate(batch):
        found[i].speed, found[i].frame = dict(speed), photo.frame
        found[i].category_ids = getattr(model, "category_ids", None)
    return [found[i] for i in range(len(batch))]


def to_input(photos: list[np.ndarray], rule: Input, size: tuple[int, int]) -> tuple[Tensor, list[Placement]]:
    """RGB photos as the network's uint8 images [N, 3, H, W] in its channel order, and where each lies in them."""
    fitted, placements = zip(*(fit_image(photo, rule, size, predicting=True) for photo in photos), strict=True)
    return stack_planes(fitted, rule.colour), list(placements)


def _report(number: int, photo: Photo, result: Results) -> None:
    of = f"/{photo.count}" if photo.count else ""
    frame = "" if photo.frame is None else f" frame {photo.frame}"
    h, w = result.orig_shape
    total = sum(result.speed.values())
    log.info("%d%s %s%s, %d x %d: %s, %.1f ms", number, of, photo.path, frame, w, h, result.verbose(), total)
