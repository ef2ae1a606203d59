"""Which points are right: predicted and true centres of one class, matched one to one within a distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from libreyolo_core.tasks.peaks import Peaks

MATCH_CELLS = 1.0
"""The farthest that a point may lie from the centre of its object, in cells of the network's grid: the right cell or a
neighbour on the right side. At 1.5, which others use, random points on dense photos already match most objects."""


@dataclass(frozen=True)
class Centres:
    """The annotation of one image.

    Args:
        xy: float64 [m, 2], centres of objects in photo pixels.
        labels: int64 [m].
        crowds: float64 [k, 4], x1 y1 x2 y2 of regions that hold many objects.
        crowd_labels: int64 [k].
    """

    xy: np.ndarray
    labels: np.ndarray
    crowds: np.ndarray
    crowd_labels: np.ndarray


@dataclass(frozen=True)
class Score:
    """What the points of one image are worth.

    Args:
        matched: int64 [n], the object each point found, -1 for none.
        ignored: bool [n], points that count neither way: they lie in a crowd region of their class.
        distance: float64 [n], from the object in photo pixels, 0 for points without.
        missed: bool [m], objects that no point found.
    """

    matched: np.ndarray
    ignored: np.ndarray
    distance: np.ndarray
    missed: np.ndarray


def match_points(peaks: Peaks, truth: Centres) -> Score:
    """Match as many points as possible to objects of their class within ``MATCH_CELLS``, and among all such matchings
    the one with the smallest sum of distances (Hungarian algorithm; Kuhn, 1955)."""
    n, m = len(peaks), len(truth.labels)
    matched, distance = np.full(n, -1, dtype=np.int64), np.zeros(n)
    if n and m:
        apart = peaks.xy[:, None].astype(np.float64) - truth.xy[None]  # [n, m, 2]
        cells = np.sqrt(np.square(apart / np.array(peaks.cell)).sum(axis=2))
        possible = (cells <= MATCH_CELLS) & (peaks.labels[:, None] == truth.labels[None])
        rows, columns = _assign(cells, possible)
        matched[rows] = columns
        distance[rows] = np.sqrt(np.square(apart[rows, columns]).sum(axis=1))
    missed = np.ones(m, dtype=bool)
    missed[matched[matched >= 0]] = False
    return Score(matched, (matched < 0) & _in_crowd(peaks, truth), distance, missed)


def _assign(cells: np.ndarray, possible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the best matching; only pairs that share a row or a column with others need the algorithm."""
    row, column = possible.nonzero()
    alone = (possible.sum(axis=1)[row] == 1) & (possible.sum(axis=0)[column] == 1)
    rows, columns = row[alone], column[alone]
    left, right = np.unique(row[~alone]), np.unique(column[~alone])
    if len(left):
        from scipy.optimize import linear_sum_assignment

        part = np.ix_(left, right)
        # one impossible pair costs more than all possible ones together, so none is taken where it can be avoided
        cost = np.where(possible[part], cells[part], MATCH_CELLS * (len(left) + len(right)) + 1)
        i, j = linear_sum_assignment(cost)
        real = possible[part][i, j]
        rows, columns = np.append(rows, left[i[real]]), np.append(columns, right[j[real]])
    return rows, columns


def _in_crowd(peaks: Peaks, truth: Centres) -> np.ndarray:
    x, y = peaks.xy[:, 0, None], peaks.xy[:, 1, None]
    x1, y1, x2, y2 = truth.crowds.T
    inside = (x >= x1) & (x <= x2) & (y >= y1) & (y <= y2)  # [n, k]
    return (inside & (peaks.labels[:, None] == truth.crowd_labels[None])).any(axis=1)
