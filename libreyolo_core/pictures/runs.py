"""``results.png``: the curves of a training run, from its ``results.csv``."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from libreyolo_core.pictures.charts import colour_of, figure, save, whole_numbers

COLUMNS = 4
_GROUPS = ("train/", "val/", "metrics/", "lr")


def plot_results(table: str | Path, path: str | Path) -> Path | None:
    """One small chart per column of a results.csv over the epochs: losses, metrics, learning rates, the rest.

    Args:
        table: CSV with a column ``epoch``; empty cells (epochs without validation) are left out of the lines.
        path: PNG to write.

    Returns:
        ``path``, or ``None`` when the table has no row to draw.
    """
    series = read_series(table)
    shown = {name: points for name, points in series.items() if points}
    if not shown:
        return None
    rows = -(-len(shown) // COLUMNS)
    with figure(3.6 * min(COLUMNS, len(shown)), 2.6 * rows) as fig:
        grid = fig.subplots(rows, min(COLUMNS, len(shown)), squeeze=False)
        for axes, (name, points) in zip(grid.flat, shown.items(), strict=False):
            epochs, values = zip(*points, strict=True)
            marker = "o" if len(points) <= 60 else ""
            axes.plot(epochs, values, color=colour_of(_group(name)), linewidth=1.5, marker=marker, markersize=3)
            axes.set_title(name)
            whole_numbers(axes.xaxis)
            axes.margins(x=0.03)
            if not any(values):  # a flat zero would get an axis that reaches below it
                axes.set_ylim(0, 1)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("epoch")
        return save(fig, path)


def read_series(table: str | Path) -> dict[str, list[tuple[float, float]]]:
    """(epoch, value) of every numeric column, ordered by group; cells that hold no finite number are skipped."""
    with open(table, newline="", encoding="utf-8") as file:
        rows = [{k.strip(): v for k, v in row.items() if k} for row in csv.DictReader(file)]
    names = [n for n in (rows[0] if rows else {}) if n not in ("epoch", "step")]
    names.sort(key=_group)
    series: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        pairs = [(_number(row.get("epoch")), _number(row.get(name))) for row in rows]
        series[name] = [(e, v) for e, v in pairs if math.isfinite(e) and math.isfinite(v)]
    return series


def _group(name: str) -> int:
    return next((i for i, start in enumerate(_GROUPS) if name.startswith(start)), len(_GROUPS))


def _number(text: str | None) -> float:
    try:
        return float(text) if text else math.nan
    except ValueError:
        return math.nan
