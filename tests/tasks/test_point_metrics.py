"""Points: peaks of a grid, matching to objects, and metrics counted by hand."""

import itertools
import json

import numpy as np
import pytest
import torch

from libreyolo_core.data.batch import Placement
from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.family import Post
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.peaks import Peaks, decode
from libreyolo_core.tasks.point import PointTask
from libreyolo_core.tasks.point_eval import CONFS, PointEvaluator
from libreyolo_core.tasks.point_matching import MATCH_CELLS, Centres, match_points
from task_fakes import batch_of, record, scan_of, sheet

SQUARE = Placement((80, 80), (80, 80), (1.0, 1.0))


def grid(cells, nc=2, size=(8, 8)):
    """Scores [1, 1 + C, gh, gw] with (row, column, class, score); the rest is background."""
    scores = torch.zeros(1, 1 + nc, *size)
    for row, column, c, s in cells:
        scores[0, 1 + c, row, column] = s
    scores[:, 0] = 1 - scores[:, 1:].sum(1)
    return Predictions(scores=scores)


def peaks_of(cells, *, placement=SQUARE, conf=0.25, radius=1, max_det=300, **more):
    (found,) = decode(grid(cells), [placement], conf=conf, radius=radius, max_det=max_det, **more)
    return found


def test_a_peak_lies_in_the_middle_of_its_cell_in_photo_pixels():
    found = peaks_of([(2, 5, 1, 0.9)], placement=Placement((40, 160), (80, 80), (0.5, 2.0)))
    assert found.xy.tolist() == [[110, 12.5]] and found.labels.tolist() == [1] and found.cell == (20, 5)
    letterboxed = Placement((40, 80), (80, 80), (1.0, 1.0), (0.0, 20.0))
    assert peaks_of([(2, 5, 1, 0.9)], placement=letterboxed).xy.tolist() == [[55, 5]]
    assert len(peaks_of([(1, 5, 1, 0.9), (6, 0, 0, 0.9)], placement=letterboxed)) == 0  # in the padding


def test_stronger_cells_suppress_the_square_around_them_whatever_the_class():
    cells = [(3, 3, 0, 0.9), (4, 4, 1, 0.8), (5, 5, 0, 0.7), (3, 5, 1, 0.6)]
    assert peaks_of(cells).scores.tolist() == pytest.approx([0.9, 0.7, 0.6])  # 0.8 is beside 0.9
    assert peaks_of(cells, radius=2).scores.tolist() == pytest.approx([0.9])
    assert len(peaks_of(cells, radius=0)) == 4
    assert peaks_of(cells, classes=(1,)).scores.tolist() == pytest.approx([0.8])  # 0.9 is not asked for


def test_equal_cells_go_row_by_row_and_the_best_are_kept():
    cells = [(6, 0, 0, 0.5), (0, 6, 0, 0.5), (0, 0, 0, 0.5)]
    assert peaks_of(cells).xy.tolist() == [[5, 5], [65, 5], [5, 65]]
    assert peaks_of(cells, max_det=2).xy.tolist() == [[5, 5], [65, 5]]
    assert len(peaks_of(cells, conf=0.5)) == 0  # the threshold itself is not above it


def test_a_higher_threshold_only_cuts_the_list():
    scores = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    for radius, conf in itertools.product((0, 1, 2), (0.3, 0.6, 0.95)):
        low, high = (
            decode(Predictions(scores=scores), [SQUARE], conf=c, radius=radius, max_det=20)[0] for c in (0.1, conf)
        )
        assert (
            low.above(conf).xy.tolist() == high.xy.tolist() and low.above(conf).scores.tolist() == high.scores.tolist()
        )


def test_background_and_values_that_are_no_numbers_are_no_points():
    scores = torch.full((1, 3, 4, 4), float("nan"))
    scores[0, 1:, 0] = 0.1
    assert len(decode(Predictions(scores=scores), [SQUARE], conf=0.25, radius=1, max_det=9)[0]) == 0


def points(rows, cell=(10.0, 10.0)):
    """x, y, class rows as points with falling scores."""
    table = np.array(rows, dtype=np.float32).reshape(-1, 3)
    n = len(table)
    return Peaks(table[:, :2], np.linspace(0.9, 0.3, n, dtype=np.float32), table[:, 2].astype(np.int64), cell)


def centres(rows, crowds=()):
    table, k = np.array(rows, dtype=np.float64).reshape(-1, 3), np.array(crowds, dtype=np.float64).reshape(-1, 5)
    return Centres(table[:, :2], table[:, 2].astype(np.int64), k[:, :4], k[:, 4].astype(np.int64))


def test_the_limit_is_in_cells_of_the_grid_and_distances_are_in_pixels():
    truth = centres([(50, 50, 0)])
    assert MATCH_CELLS == 1.0
    near = match_points(points([(60, 50, 0)]), truth)
    assert near.matched.tolist() == [0] and near.distance.tolist() == [10] and not near.missed.any()
    assert match_points(points([(60.1, 50, 0)]), truth).matched.tolist() == [-1]
    assert match_points(points([(70, 50, 0)], cell=(20.0, 5.0)), truth).matched.tolist() == [0]
    assert match_points(points([(50, 58, 0)], cell=(20.0, 5.0)), truth).matched.tolist() == [-1]
    assert match_points(points([(50, 50, 1)]), truth).matched.tolist() == [-1]  # another class


def test_one_point_per_object_and_as_many_as_possible():
    """The nearest pair is between the two: taking it greedily would leave one object without."""
    score = match_points(points([(50, 50, 0), (62, 50, 0)]), centres([(60, 50, 0), (72, 50, 0)]))
    assert score.matched.tolist() == [0, 1]
    crossed = match_points(points([(60, 50, 0), (52, 50, 0)]), centres([(61, 50, 0), (69, 50, 0)]))
    assert sorted(crossed.matched.tolist()) == [0, 1]


def test_matching_is_optimal():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, m = rng.integers(0, 6, 2)
        found = points(np.hstack([rng.uniform(0, 50, (n, 2)), rng.integers(0, 2, (n, 1))]))
        truth = centres(np.hstack([rng.uniform(0, 50, (m, 2)), rng.integers(0, 2, (m, 1))]))
        score = match_points(found, truth)
        best = _best(found, truth)
        hit = score.matched >= 0
        assert (int(hit.sum()), -float(score.distance.sum())) == (best[0], pytest.approx(best[1], abs=1e-6))
        assert len(set(score.matched[hit].tolist())) == hit.sum() == (~score.missed).sum()


def _best(found, truth):
    """Number of pairs and minus their distances, by trying every matching."""
    best = (0, 0.0)
    m = len(truth.labels)
    for choice in itertools.product(range(-1, m), repeat=len(found)):
        used = [j for j in choice if j >= 0]
        if len(set(used)) < len(used):
            continue
        pairs = [(i, j) for i, j in enumerate(choice) if j >= 0]
        apart = [float(np.linalg.norm(found.xy[i].astype(float) - truth.xy[j])) for i, j in pairs]
        same = all(found.labels[i] == truth.labels[j] for i, j in pairs)
        if same and all(d <= 10 * MATCH_CELLS for d in apart):
            best = max(best, (len(pairs), -sum(apart)))
    return best


def test_points_in_a_crowd_of_their_class_count_neither_way():
    score = match_points(points([(10, 10, 0), (20, 20, 1), (70, 70, 0)]), centres([], [(0, 0, 30, 30, 0)]))
    assert score.ignored.tolist() == [True, False, False]


def evaluate(records, grids, names=("cat", "dog"), **options):
    evaluator = PointTask().evaluator(scan_of(records, names), sheet(), dict(enumerate(names)), **options)
    for i, cells in enumerate(grids):
        evaluator.update(grid(cells, len(names)), batch_of([i], [records[i].size]))
    return evaluator


def box(x, y, c, half=4):
    return [x - half, y - half, x + half, y + half, c]


def test_point_metrics_counted_by_hand():
    """Two objects found (one 3 pixels off), one missed, one point of the wrong class."""
    records = [record([box(15, 15, 0), box(58, 55, 1)], (80, 80)), record([box(35, 35, 0)], (80, 80))]
    grids = [[(1, 1, 0, 0.95), (5, 5, 1, 0.95)], [(3, 3, 1, 0.95)]]
    m = evaluate(records, grids).compute()
    assert m.values["metrics/precision"] == m.values["metrics/recall"] == pytest.approx(2 / 3)
    assert m.values["metrics/F1"] == pytest.approx(2 / 3) and m.values["metrics/mean_distance"] == pytest.approx(1.5)
    assert [m.values[f"metrics/{k}"] for k in ("TP", "FP", "FN")] == [2, 1, 1]
    assert m.values["decode/threshold"] == m.values["metrics/conf"] == 0.25 and m.values["decode/nms_radius"] == 1
    assert m.values["decode/match_cells"] == 1.0 and list(m.values) == list(PointTask.metrics)
    cat, dog = m.per_class
    assert (cat["precision"], cat["recall"], dog["precision"], dog["recall"]) == (1, 0.5, 0.5, 1)
    assert (cat["images"], cat["instances"], dog["mean_distance"]) == (2, 2, pytest.approx(3))
    json.dumps(m.per_class, allow_nan=False)


def test_the_best_confidence_and_radius_are_found():
    records = [record([box(15, 15, 0)], (80, 80))]
    # a wrong point of 0.6 far away: thresholds from 0.65 are best, and 0.65 is the first of them
    m = evaluate(records, [[(1, 1, 0, 0.95), (6, 6, 0, 0.6)]]).compute()
    assert m.values["metrics/F1"] == 1 and m.values["metrics/conf"] == 0.65 and m.values["decode/nms_radius"] == 1
    # a second peak two cells away is only suppressed at radius 2
    m = evaluate(records, [[(1, 1, 0, 0.97), (1, 3, 0, 0.95)]]).compute()
    assert m.values["metrics/F1"] == 1 and m.values["decode/nms_radius"] == 2 and m.values["metrics/conf"] == 0.25


def test_a_given_threshold_replaces_the_sweep():
    records = [record([box(15, 15, 0)], (80, 80))]
    m = evaluate(records, [[(1, 1, 0, 0.95), (6, 6, 0, 0.6)]], conf=0.4, radius=0).compute()
    assert (m.values["metrics/conf"], m.values["decode/nms_radius"]) == (0.4, 0)
    assert m.values["metrics/precision"] == 0.5
    for given in ({"iou": 0.5}, {"agnostic": True}):
        with pytest.raises(ConfigError, match="no meaning for a point model"):
            evaluate(records, [], **given)


def test_nothing_found_is_zero_and_nothing_labelled_an_error():
    m = evaluate([record([box(15, 15, 0)], (80, 80))], [[]]).compute()
    assert m.values["metrics/F1"] == m.values["metrics/precision"] == 0 and "metrics/mean_distance" not in m.values
    assert m.values["metrics/conf"] == CONFS[0]
    with pytest.raises(DataError, match="labelled object"):
        evaluate([record([], (80, 80))], [[(1, 1, 0, 0.9)]]).compute()


def test_point_shards_in_any_order_merge_to_the_whole():
    rng = np.random.default_rng(3)
    records = [
        record([box(*rng.uniform(5, 75, 2), int(rng.integers(0, 2))) for _ in range(rng.integers(0, 5))], (80, 80))
        for _ in range(9)
    ]
    scores = torch.rand(9, 3, 8, 8, generator=torch.Generator().manual_seed(0)) ** 3

    def shard(indices) -> PointEvaluator:
        evaluator = evaluate(records, [])
        for i in indices:
            evaluator.update(Predictions(scores=scores[[i]]), batch_of([i], [(80, 80)]))
        return evaluator

    whole, merged = shard(range(9)).compute(), shard([])
    merged.merge([shard([8, 3, 0]).state(), shard([7, 6, 5, 4, 2, 1, 0]).state()])
    assert merged.compute().values == whole.values and merged.compute().per_class == whole.per_class
    together = evaluate(records, [])
    together.update(Predictions(scores=scores), batch_of(range(9), [(80, 80)] * 9))
    assert together.compute().values == whole.values


def test_results_use_the_sheets_thresholds_unless_others_are_given():
    post = Post(conf=0.5, radius=2, max_det=3)
    cells = [(1, 1, 0, 0.9), (1, 3, 1, 0.8), (6, 6, 1, 0.7), (6, 1, 0, 0.4)]
    photo = np.zeros((80, 80, 3), np.uint8)

    def found(**thresholds):
        (result,) = PointTask().results(
            grid(cells), [photo], [SQUARE], ["a.jpg"], sheet(post=post), {0: "cat", 1: "dog"}, **thresholds
        )
        return result.points

    assert found().xy.tolist() == [[15, 15], [65, 65]] and found().cls.tolist() == [0, 1]
    assert len(found(radius=0)) == 3 and len(found(conf=0.3)) == 3 and len(found(max_det=1)) == 1
    assert found(classes=(1,)).xy.tolist() == [[35, 15], [65, 65]]
