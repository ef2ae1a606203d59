"""``labels.png``: what the annotation of a data set looks like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libreyolo_core.pictures.charts import AXIS, colour_of, figure, grid_off, save, short, whole_numbers
from libreyolo_core.pictures.confusion import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from libreyolo_core.data.scan import Scan

LISTED = 40
"""The most classes that get a bar each."""


def box_labels(scan: Scan, names: dict[int, str], path: Path) -> Path:
    """Objects per class, objects per photo, box centres and box sides (both as shares of the photo)."""
    counts = np.zeros(max(names) + 1, dtype=np.int64)
    per_photo, centres, sides = [], [], []
    for record in scan.images:
        objects = slice(None) if record.crowd is None else ~np.asarray(record.crowd, dtype=bool)
        boxes = np.asarray(record.boxes, dtype=np.float64).reshape(-1, 4)[objects]
        labels = np.asarray(record.labels, dtype=np.int64)[objects]
        np.add.at(counts, labels, 1)
        per_photo.append(len(boxes))
        extent = np.array([record.size[1], record.size[0]], dtype=np.float64)
        centres.append((boxes[:, :2] + boxes[:, 2:]) / 2 / extent)
        sides.append((boxes[:, 2:] - boxes[:, :2]) / extent)
    centre, side = np.concatenate(centres or [np.zeros((0, 2))]), np.concatenate(sides or [np.zeros((0, 2))])
    with figure(12, max(9.0, _bar_height(names) + 4.5)) as fig:
        axes = fig.subplots(2, 2, height_ratios=[max(4.5, _bar_height(names)), 4.5])
        _class_bars(axes[0, 0], counts, names, f"{counts.sum():,} objects in {len(scan.images):,} photos")
        _per_photo(axes[0, 1], np.array(per_photo))
        _centres(axes[1, 0], centre)
        _sides(axes[1, 1], side)
        fig.suptitle(f"Annotation of the split {scan.split!r}", x=0.01, ha="left", fontsize=14)
        return save(fig, path)


def class_labels(scan: Scan, names: dict[int, str], path: Path) -> Path:
    """Photos per class."""
    counts = np.zeros(max(names) + 1, dtype=np.int64)
    for record in scan.images:
        np.add.at(counts, np.asarray(record.labels, dtype=np.int64), 1)
    with figure(8, max(4.5, _bar_height(names))) as fig:
        title = f"{len(scan.images):,} photos of the split {scan.split!r}"
        _class_bars(fig.subplots(), counts, names, title, unit="photos")
        return save(fig, path)


def mask_labels(scan: Scan, names: dict[int, str], path: Path) -> Path:
    """Share of the labelled pixels that each class has, and photos in which it occurs."""
    nc = max(names) + 1
    pixels, photos = np.zeros(nc, dtype=np.int64), np.zeros(nc, dtype=np.int64)
    for record in scan.images:
        counts = np.zeros(nc, dtype=np.int64) if record.pixels is None else np.asarray(record.pixels)[:nc]
        pixels[: len(counts)] += counts
        photos[: len(counts)] += counts > 0
    order = sorted(names) if len(names) <= LISTED else sorted(names, key=lambda c: -pixels[c])[:LISTED]
    with figure(14, max(4.5, _bar_height(names))) as fig:
        left, right = fig.subplots(1, 2)
        total = max(1, int(pixels.sum()))
        title = f"{compact(int(pixels.sum()))} labelled pixels in {len(scan.images):,} photos"
        _class_bars(left, pixels, names, title, unit="share of the labelled pixels", order=order, share_of=total)
        _class_bars(right, photos, names, "Photos in which a class occurs", unit="photos", order=order)
        fig.suptitle(f"Annotation of the split {scan.split!r}", x=0.01, ha="left", fontsize=14)
        return save(fig, path)


def _bar_height(names: dict[int, str]) -> float:
    return 1.2 + 0.24 * min(len(names), LISTED)


def _class_bars(
    axes: Axes,
    counts: np.ndarray,
    names: dict[int, str],
    title: str,
    *,
    unit: str = "objects",
    order: Sequence[int] = (),
    share_of: int = 0,
) -> None:
    """A bar per class.

    Args:
        order: the classes that are shown; by default all, or the most frequent where they are many.
        share_of: write shares of this number instead of counts.
    """
    if not order:
        order = sorted(names) if len(names) <= LISTED else sorted(names, key=lambda c: -counts[c])[:LISTED]
    lengths = [counts[c] / (share_of or 1) for c in order]
    texts = [f"{v:.1%}" for v in lengths] if share_of else [f"{counts[c]:,}" for c in order]
    bars = axes.barh(range(len(order)), lengths, color=[colour_of(c) for c in order], height=0.75)
    axes.bar_label(bars, texts, padding=3, fontsize=9, color=AXIS)
    axes.set_yticks(range(len(order)), [short(names[c]) for c in order])
    spare = max(0.0, 6 - len(order)) / 2  # one class is no bar of a hand's width
    axes.set_ylim(len(order) - 0.4 + spare, -0.6 - spare)
    axes.set_xlim(0, (max(lengths, default=0) or 1) * 1.15)
    left_out = len(names) - len(order)
    axes.set_title(title + (f"; {left_out} rarer classes not shown" if left_out else ""))
    axes.set_xlabel(unit)
    if share_of:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    else:
        whole_numbers(axes.xaxis)
    grid_off(axes, "y")


def _per_photo(axes: Axes, counts: np.ndarray) -> None:
    most = int(counts.max()) if counts.size else 0
    if most <= 30:
        edges: Sequence[float] = np.arange(-0.5, most + 1.5).tolist()
    else:
        edges = np.linspace(0, most + 1, 31).tolist()
    axes.hist(counts, bins=edges, color=colour_of(0), rwidth=0.9)
    axes.set_title(f"Objects per photo; {int((counts == 0).sum()):,} photos are background")
    axes.set_xlabel("objects")
    axes.set_ylabel("photos")
    whole_numbers(axes.yaxis)
    grid_off(axes, "x")


def _centres(axes: Axes, centre: np.ndarray) -> None:
    axes.set_title("Where box centres lie")
    axes.set_xlabel("x, share of the photo's width")
    axes.set_ylabel("y, share of the photo's height")
    axes.grid(False)
    cells = int(np.clip(len(centre) ** 0.5, 8, 48))  # about one object per cell, so that a pattern can show
    heat, _, _ = np.histogram2d(centre[:, 1], centre[:, 0], bins=cells, range=((0, 1), (0, 1)))
    drawn = axes.imshow(heat, extent=(0, 1, 1, 0), cmap="viridis", aspect="auto", interpolation="nearest")
    bar = axes.figure.colorbar(drawn, ax=axes, label="objects", fraction=0.045, pad=0.02)
    whole_numbers(bar.ax.yaxis)


def _sides(axes: Axes, side: np.ndarray) -> None:
    axes.set_title("Sizes of boxes")
    axes.set_xlabel("width, share of the photo's width")
    axes.set_ylabel("height, share of the photo's height")
    if len(side) > 20_000:  # an even pick keeps the file small and shows the same cloud
        side = side[np.linspace(0, len(side) - 1, 20_000).astype(int)]
    alpha = float(np.clip(40 / max(1, len(side)) ** 0.5, 0.08, 0.7))
    axes.scatter(side[:, 0], side[:, 1], s=9, alpha=alpha, color=colour_of(0), linewidths=0)
    limit = max(0.02, float(side.max()) * 1.05) if side.size else 1.0
    axes.set_xlim(0, limit)
    axes.set_ylim(0, limit)
