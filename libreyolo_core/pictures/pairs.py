"""Truth beside prediction: ``val_predictions.jpg`` of detection, classification and points."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libreyolo_core.data.decode import read_image
from libreyolo_core.errors import ImageError
from libreyolo_core.pictures.boxes import draw_boxes, draw_crosses, draw_points, draw_rings
from libreyolo_core.pictures.grid import inside, resize, sheet, write
from libreyolo_core.pictures.palette import INK, RIGHT, WRONG, Colour, class_colour

if TYPE_CHECKING:
    from libreyolo_core.tasks.matching import Truth
    from libreyolo_core.tasks.peaks import Peaks
    from libreyolo_core.tasks.point_matching import Centres, Score

log = logging.getLogger("libreyolo")

ROOM = (420, 480)
MARK_PX = 4
"""Radius of the mark of a point."""
LEGEND_CLASSES = 24


def box_pairs(
    shown: Sequence[tuple[str, Truth, np.ndarray]], names: dict[int, str], path: Path, *, conf: float
) -> Path | None:
    """Photos twice, annotation on the left and detections [n, 6] on the right; ``None`` when there is no photo."""
    tiles: list[np.ndarray] = []
    captions: list[str] = []
    classes: set[int] = set()
    for file, truth, rows in shown:
        photo = _read(file)
        if photo is None:
            continue
        h, w, factor = inside(photo.shape[0], photo.shape[1], ROOM)
        small = resize(photo, (h, w))
        labels, predicted = truth.labels.tolist(), rows[:, 5].astype(int).tolist()
        classes |= {*labels, *predicted}
        many = len(names) == 1  # one class: its name on every box says nothing
        left = ["crowd" if k else "" if many else names[c] for c, k in zip(labels, truth.crowd.tolist(), strict=True)]
        right = [
            f"{s:.2f}" if many else f"{names[c]} {s:.2f}" for c, s in zip(predicted, rows[:, 4].tolist(), strict=True)
        ]
        tiles.append(draw_boxes(small, truth.boxes * factor, left, [class_colour(c) for c in labels], line=2, size=11))
        tiles.append(
            draw_boxes(small, rows[:, :4] * factor, right, [class_colour(c) for c in predicted], line=2, size=11)
        )
        captions += [f"truth: {len(labels)} · {Path(file).name}", f"prediction: {len(predicted)}"]
    if not tiles:
        return None
    picture = sheet(
        tiles,
        min(len(tiles), 4),
        captions=captions,
        heading=f"Truth on the left, prediction on the right (confidence above {conf:.3f})",
        legend=class_legend(classes, names),
    )
    return write(picture, path)


def point_pairs(
    shown: Sequence[tuple[str, Centres, Peaks, Score]],
    names: dict[int, str],
    path: Path,
    *,
    conf: float,
    radius: int,
    cells: float,
) -> Path | None:
    """Photos twice, objects on the left and points on the right; ``None`` when there is no photo.

    Args:
        shown: path, annotation, points above ``conf``, and how they match.
        radius, cells: how the points were found and how far from an object they count, for the heading.
    """
    tiles: list[np.ndarray] = []
    captions: list[str] = []
    classes: set[int] = set()
    for file, truth, peaks, score in shown:
        photo = _read(file)
        if photo is None:
            continue
        h, w, factor = inside(photo.shape[0], photo.shape[1], ROOM)
        small = resize(photo, (h, w))
        classes |= {*truth.labels.tolist(), *peaks.labels.tolist()}
        colours = [class_colour(c) for c in truth.labels.tolist()]
        tiles.append(draw_points(small, truth.xy * factor, [""] * len(colours), colours, radius=MARK_PX))
        hit, at = score.matched >= 0, peaks.xy * factor
        wrong, missed = ~hit & ~score.ignored, truth.xy[score.missed] * factor
        colours = [class_colour(c) for c in peaks.labels[hit].tolist()]
        drawn = draw_rings(small, missed, [WRONG] * len(missed), radius=MARK_PX + 1)
        drawn = draw_points(drawn, at[hit], [""] * len(colours), colours, radius=MARK_PX)
        colours = [class_colour(c) for c in peaks.labels[wrong].tolist()]
        tiles.append(draw_crosses(drawn, at[wrong], colours, radius=MARK_PX + 1))
        captions += [
            f"truth: {len(truth.labels)} · {Path(file).name}",
            f"prediction: {int(hit.sum())} right, {int(wrong.sum())} wrong, {len(missed)} missed",
        ]
    if not tiles:
        return None
    picture = sheet(
        tiles,
        min(len(tiles), 4),
        captions=captions,
        heading=f"Truth on the left, prediction on the right (confidence above {conf:g}, radius {radius}): "
        f"disc = right, within {cells:g} cell{'' if cells == 1 else 's'}; cross = wrong; red ring = missed",
        legend=class_legend(classes, names),
    )
    return write(picture, path)


def class_pairs(shown: Sequence[tuple[str, str, str, float]], path: Path) -> Path | None:
    """Photos with true and predicted class, (path, true name, predicted name, confidence)."""
    tiles: list[np.ndarray] = []
    captions: list[tuple[str, Colour]] = []
    for file, truth, predicted, confidence in shown:
        photo = _read(file)
        if photo is None:
            continue
        h, w, _ = inside(photo.shape[0], photo.shape[1], (300, 360))
        tiles.append(framed(resize(photo, (h, w)), RIGHT if truth == predicted else WRONG))
        if truth == predicted:
            captions.append((f"{truth} {confidence:.2f}", RIGHT))
        else:
            captions.append((f"{predicted} {confidence:.2f}, truth: {truth}", WRONG))
    if not tiles:
        return None
    legend = [(RIGHT, "right"), (WRONG, "wrong: prediction and its confidence, then the truth")]
    return write(sheet(tiles, 4, captions=captions, heading="Truth and prediction", legend=legend), path)


def _read(file: str) -> np.ndarray | None:
    """A photo for the picture; one that has gone since the scan is left out and named in the log."""
    try:
        return read_image(file)
    except ImageError as error:
        log.warning("Left out of the picture: %s", error)
        return None


def framed(image: np.ndarray, colour: Colour, line: int = 4) -> np.ndarray:
    """A copy with a coloured frame on its outermost pixels."""
    out = image.copy()
    out[:line], out[-line:], out[:, :line], out[:, -line:] = colour, colour, colour, colour
    return out


def class_legend(classes: set[int], names: dict[int, str]) -> list[tuple[Colour, str]]:
    """Legend entries of the classes that occur, by index; the count of those left out comes last."""
    ordered = sorted(classes)
    legend = [(class_colour(c), names[c]) for c in ordered[:LEGEND_CLASSES]]
    left_out = len(ordered) - LEGEND_CLASSES
    return [*legend, (INK, f"and {left_out} more classes")] if left_out > 0 else legend
