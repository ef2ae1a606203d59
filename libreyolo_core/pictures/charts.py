"""Charts over the confidence, and the frame that all charts share. Drawn off-screen; no global state of matplotlib is
touched, so a script's own figures are safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from libreyolo_core.pictures.palette import class_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from libreyolo_core.tasks.matching import Curves

AXIS = "#495057"
INK = "#212529"
LINES = 12
"""The most classes that get a line of their own colour and a legend entry."""
BARS = 50
"""The most bars above each other."""
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": AXIS,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecef",
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "text.parse_math": False,  # a class may be called "$5"
}


@contextmanager
def figure(wide: float, high: float) -> Iterator[Figure]:
    """A figure of that many inches, in the house style; write it with ``save`` before the block ends."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "font.family": _families()}):
        drawn = Figure(figsize=(wide, high), layout="constrained")
        FigureCanvasAgg(drawn)
        yield drawn


def save(fig: Figure, path: str | Path, dpi: int = 110) -> Path:
    """Write a figure as PNG."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=dpi)
    return path


def colour_of(index: int) -> tuple[float, float, float]:
    """A class's colour as matplotlib takes it."""
    r, g, b = class_colour(index)
    return r / 255, g / 255, b / 255


def short(name: str, most: int = 24) -> str:
    """A class name cut to a length that leaves room for the chart."""
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only, for counts and epochs."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def grid_off(axes: Axes, axis: str) -> None:
    """No grid lines and no tick marks along one axis (``x`` or ``y``)."""
    axes.grid(False, axis=axis)  # type: ignore[arg-type]
    axes.tick_params(axis=axis, length=0)  # type: ignore[arg-type]


def precision_recall(precision: np.ndarray, ap: np.ndarray, names: Sequence[str], path: Path) -> Path:
    """PR_curve.png: precision [C, 101] over recall at IoU 0.5, per class and their mean; rows of NaN are left out."""
    recall = np.linspace(0, 1, precision.shape[1])
    defined = [c for c in range(len(names)) if not np.isnan(ap[c])]
    with figure(9, 6) as fig:
        axes = fig.subplots()
        best = sorted(defined, key=lambda c: -ap[c])
        for c in best:
            axes.plot(recall, precision[c], **_line(c, len(best), f"{short(names[c])} {ap[c]:.3f}"))
        if len(best) > 1:
            mean = precision[defined].mean(axis=0)
            label = f"mean of {len(best)} classes {ap[defined].mean():.3f}"
            axes.plot(recall, mean, color="black", linewidth=2.5, label=label)
        axes.set_title("Precision over recall at IoU 0.5 (AP in the legend)")
        axes.set_xlabel("recall")
        axes.set_ylabel("precision")
        _unit(axes)
        _legend(axes)
        return save(fig, path)


def f1_confidence(curves: Curves, names: Sequence[str], path: Path) -> Path:
    """F1_curve.png: F1 at IoU 0.5 over the confidence threshold, per class and of all detections."""
    defined = [c for c in range(len(names)) if not np.isnan(curves.class_f1[c]).any()]
    with figure(9, 6) as fig:
        axes = fig.subplots()
        if len(defined) > 1:
            for c in sorted(defined, key=lambda c: -curves.class_f1[c].max()):
                line = _line(c, len(defined), f"{short(names[c])} {curves.class_f1[c].max():.3f}")
                axes.plot(curves.confidence, curves.class_f1[c], **line)
        axes.plot(curves.confidence, curves.f1, color="black", linewidth=2.5, label="F1 of all detections")
        precision = np.where(curves.recall + curves.precision > 0, curves.precision, np.nan)  # none left: no precision
        axes.plot(curves.confidence, precision, color=AXIS, linewidth=1.2, linestyle="--", label="precision")
        axes.plot(curves.confidence, curves.recall, color=AXIS, linewidth=1.2, linestyle=":", label="recall")
        axes.axvline(curves.best, color="#adb5bd", linewidth=1)
        axes.set_title(f"F1 at IoU 0.5 over confidence; best {curves.at_best[2]:.3f} at {curves.best:.3f}")
        axes.set_xlabel("confidence threshold")
        axes.set_ylabel("F1, precision, recall")
        _unit(axes)
        _legend(axes)
        return save(fig, path)


def class_scores(values: np.ndarray, names: Sequence[str], path: Path, *, what: str, mean: float) -> Path:
    """A bar per class, the best first, in columns of ``BARS``; classes without a value (NaN) are counted below.

    Args:
        values: [C], 0 to 1.
        what: name of the value.
        mean: a line across.
    """
    defined = sorted((c for c in range(len(names)) if not np.isnan(values[c])), key=lambda c: -values[c])
    columns = max(1, -(-len(defined) // BARS))
    per_column = -(-len(defined) // columns)
    rows = max(per_column, 5)
    with figure(1 + 5.5 * columns, 1.6 + 0.24 * rows) as fig:
        for k, axes in enumerate(fig.subplots(1, columns, squeeze=False)[0]):
            part = defined[k * per_column : (k + 1) * per_column]
            bars = axes.barh(range(len(part)), values[part], color=[colour_of(c) for c in part], height=0.75)
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # the line of the mean runs behind
            axes.bar_label(bars, [f"{values[c]:.3f}" for c in part], padding=4, fontsize=9, color=AXIS, bbox=ground)
            axes.set_yticks(range(len(part)), [short(names[c]) for c in part])
            spare = rows - len(part)  # columns of unequal length keep their bars alike
            axes.set_ylim(len(part) - 0.4 + spare, -0.6)
            axes.set_xlim(0, 1.12)
            axes.set_xticks(np.linspace(0, 1, 6))
            axes.axvline(mean, color=INK, linewidth=1, linestyle="--", zorder=1.5)
            grid_off(axes, "y")
            axes.set_xlabel(what)
        left_out = len(names) - len(defined)
        title = f"{what} per class; mean {mean:.3f} (dashed)"
        title += f"; {left_out} of {len(names)} classes do not occur" if left_out else ""
        fig.suptitle(title, x=0.01, ha="left", fontsize=11)
        return save(fig, path)


def point_scores(steps: np.ndarray, scores: np.ndarray, path: Path, *, conf: float, radius: int, cells: float) -> Path:
    """F1_curve.png of points: precision, recall and F1 [k, 3] over the confidences [k].

    Args:
        conf, radius: the best; the curves are those of this radius.
        cells: the farthest that a right point lies from its object.
    """
    best = float(scores[int(np.argmin(np.abs(steps - conf))), 2])
    with figure(9, 6) as fig:
        axes = fig.subplots()
        precision = np.where(scores[:, 0] + scores[:, 1] > 0, scores[:, 0], np.nan)  # none left: no precision
        axes.plot(steps, scores[:, 2], color="black", linewidth=2.5, label="F1")
        axes.plot(steps, precision, color=AXIS, linewidth=1.2, linestyle="--", label="precision")
        axes.plot(steps, scores[:, 1], color=AXIS, linewidth=1.2, linestyle=":", label="recall")
        axes.axvline(conf, color="#adb5bd", linewidth=1)
        reach = f"points within {cells:g} cell{'' if cells == 1 else 's'} of an object, radius {radius}"
        axes.set_title(f"F1 over confidence, {reach}; {best:.3f} at {conf:g}")
        axes.set_xlabel("confidence threshold")
        axes.set_ylabel("F1, precision, recall")
        _unit(axes)
        _legend(axes)
        return save(fig, path)


def _line(c: int, count: int, label: str) -> dict:
    if count > LINES:  # too many to tell apart: a grey bundle behind the mean
        return {"color": "#adb5bd", "linewidth": 0.8, "alpha": 0.7}
    return {"color": colour_of(c), "linewidth": 1.6, "label": label}


def _unit(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def _families() -> list[str]:
    from matplotlib import font_manager

    from libreyolo_core.pictures.text import EAST_ASIAN

    installed = sorted({f.name for f in font_manager.fontManager.ttflist if f.name.startswith(EAST_ASIAN)})
    return ["DejaVu Sans", *installed[:2]]
