"""Detection metrics against cases computed by hand, and the promises of the evaluator."""

import json

import numpy as np
import pytest

from libreyolo_core.errors import DataError
from libreyolo_core.family import Post
from libreyolo_core.tasks.detect import DetectTask
from libreyolo_core.tasks.detect_eval import DetectEvaluator
from libreyolo_core.tasks.matching import confusion_matrix
from task_fakes import batch_of, predictions_of, random_split, record, scan_of, sheet

PLAIN = sheet(post=Post("topk", nms=False, max_det=300, val_conf=0.001))


def evaluate(records, found, names=("cat", "dog"), **options):
    evaluator = DetectEvaluator(scan_of(records, names), PLAIN, dict(enumerate(names)), **options)
    for i, rows in enumerate(found):
        evaluator.update(predictions_of([rows], len(names)), batch_of([i], [records[i].size]))
    return evaluator.compute()


def test_perfect_detections_score_one():
    rows = [[10, 10, 30, 30, 0], [50, 50, 90, 90, 1]]
    m = evaluate([record(rows)], [[[*r[:4], 0.9, r[4]] for r in rows]])
    for name in ("mAP50-95", "mAP50", "mAP75", "precision", "recall", "F1", "mAP_small", "mAP_medium", "AR100"):
        assert m.values[f"metrics/{name}"] == pytest.approx(1.0), name
    assert "metrics/mAP_large" not in m.values  # no object is above 96 x 96 pixels


def test_ap_of_a_ranking_computed_by_hand():
    """Four objects; right, wrong, right, right: precision 1 to recall 1/4, then 3/4 (the best at or beyond) to recall
    3/4, then 0. COCO samples recall at 0, 0.01 ... 1: 26 points at 1, 50 at 3/4, 25 at 0."""
    objects = [[10 * i, 0, 10 * i + 8, 8, 0] for i in range(4)]
    found = [[*objects[0][:4], 0.9, 0], [60, 60, 70, 70, 0.8, 0], [*objects[1][:4], 0.7, 0], [*objects[2][:4], 0.6, 0]]
    m = evaluate([record(objects)], [found], names=("cat",))
    assert m.values["metrics/mAP50"] == pytest.approx((26 * 1 + 50 * 0.75) / 101, abs=1e-9)
    assert m.values["metrics/mAP50-95"] == pytest.approx(m.values["metrics/mAP50"], abs=1e-9)
    # best F1 with all four detections: 3 right of 4 found, 3 of 4 objects
    assert m.values["metrics/precision"] == pytest.approx(0.75)
    assert m.values["metrics/recall"] == pytest.approx(0.75)
    assert m.values["metrics/F1"] == pytest.approx(0.75)
    assert m.values["metrics/conf_best_f1"] == pytest.approx(0.3, abs=1e-6)  # half-way from 0.6 to nothing


def test_ap_over_ious_counts_only_thresholds_that_the_box_reaches():
    """A box of IoU 0.8 is right at 0.50, 0.55 ... 0.80: 7 of 10 thresholds."""
    m = evaluate([record([[0, 0, 10, 10, 0]])], [[[0, 0, 8, 10, 0.9, 0]]], names=("cat",))
    assert m.values["metrics/mAP50"] == pytest.approx(1)
    assert m.values["metrics/mAP50-95"] == pytest.approx(0.7)


def test_precision_and_recall_are_those_at_the_best_f1_and_not_map():
    """Two right detections above three wrong ones: the best threshold keeps the right ones alone."""
    objects = [[0, 0, 9, 9, 0], [20, 0, 29, 9, 0], [40, 0, 49, 9, 0]]
    found = [[*objects[0][:4], 0.9, 0], [*objects[1][:4], 0.8, 0]] + [
        [60 + 5 * i, 60, 64 + 5 * i, 64, 0.3, 0] for i in range(3)
    ]
    m = evaluate([record(objects)], [found], names=("cat",))
    assert m.values["metrics/precision"] == pytest.approx(1.0)
    assert m.values["metrics/recall"] == pytest.approx(2 / 3)
    assert m.values["metrics/F1"] == pytest.approx(0.8)
    assert m.values["metrics/conf_best_f1"] == pytest.approx(0.55)


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    records, found = random_split(3, images=12, nc=3)
    m = evaluate(records, found, names=("a", "b", "c"))
    p, r = m.values["metrics/precision"], m.values["metrics/recall"]
    assert m.values["metrics/F1"] == pytest.approx(2 * p * r / (p + r))


def test_equal_scores_cannot_be_told_apart_by_a_threshold():
    """One right and one wrong detection of the same score: no threshold keeps the right one alone."""
    m = evaluate([record([[0, 0, 9, 9, 0]])], [[[0, 0, 9, 9, 0.5, 0], [50, 50, 60, 60, 0.5, 0]]], names=("cat",))
    assert m.values["metrics/precision"] == pytest.approx(0.5)
    assert m.values["metrics/recall"] == pytest.approx(1.0)


def test_a_second_detection_of_an_object_is_wrong():
    m = evaluate(
        [record([[0, 0, 9, 9, 0], [50, 50, 60, 60, 0]])],
        [[[0, 0, 9, 9, 0.9, 0], [0, 0, 9, 9, 0.8, 0], [50, 50, 60, 60, 0.7, 0]]],
    )
    assert m.values["metrics/precision"] == pytest.approx(2 / 3)


def test_detections_in_a_crowd_count_neither_way():
    rows = [[0, 0, 10, 10, 0], [40, 40, 90, 90, 0]]
    right = [0, 0, 10, 10, 0.5, 0]
    in_crowd = [[45 + i, 45, 60 + i, 60, 0.9, 0] for i in range(3)]
    crowd = record(rows, crowd=np.array([False, True]))
    m = evaluate([crowd], [[right, *in_crowd]], names=("cat",))
    assert m.values["metrics/mAP50"] == pytest.approx(1)
    assert m.values["metrics/precision"] == m.values["metrics/recall"] == pytest.approx(1)
    assert m.per_class[0]["instances"] == 1
    plain = evaluate([record(rows[:1])], [[right, *in_crowd]], names=("cat",))
    assert plain.values["metrics/mAP50"] == pytest.approx(0.25)


def test_no_detection_at_all_scores_zero_and_falls_back_to_the_default_confidence():
    m = evaluate([record([[0, 0, 9, 9, 0]]), record([])], [[], []])
    assert m.values["metrics/mAP50-95"] == m.values["metrics/F1"] == m.values["metrics/precision"] == 0
    assert m.values["metrics/conf_best_f1"] == PLAIN.post.conf


def test_images_without_objects_count_their_detections_as_wrong():
    right = [0, 0, 9, 9, 0.5, 0]
    with_false = evaluate([record([right[:4] + [0]]), record([])], [[right], [[0, 0, 9, 9, 0.9, 0]]])
    assert with_false.values["metrics/mAP50"] == pytest.approx(0.5)


def test_a_class_without_objects_has_no_ap_and_does_not_count():
    m = evaluate([record([[0, 0, 9, 9, 0]])], [[[0, 0, 9, 9, 0.9, 0], [50, 50, 60, 60, 0.8, 1]]])
    assert m.values["metrics/mAP50"] == pytest.approx(1)
    assert m.per_class[1] == {
        "class": "dog", "id": 1, "images": 0, "instances": 0,
        "precision": None, "recall": None, "F1": None, "AP50": None, "AP50-95": None,
    }  # fmt: skip
    json.dumps(m.per_class, allow_nan=False)


def test_per_class_rows_count_images_and_objects():
    records = [record([[0, 0, 9, 9, 0], [20, 0, 29, 9, 0]]), record([[0, 0, 9, 9, 0], [20, 0, 29, 9, 1]])]
    m = evaluate(records, [[[0, 0, 9, 9, 0.9, 0]], [[20, 0, 29, 9, 0.8, 1]]])
    assert [(r["class"], r["images"], r["instances"]) for r in m.per_class] == [("cat", 2, 3), ("dog", 1, 1)]
    assert m.per_class[0]["recall"] == pytest.approx(1 / 3) and m.per_class[1]["AP50"] == pytest.approx(1)


def test_a_split_without_a_labelled_object_is_an_error_and_no_zero():
    with pytest.raises(DataError, match="labelled object"):
        evaluate([record([])], [[[0, 0, 9, 9, 0.9, 0]]])


def test_shards_merged_in_any_order_give_the_metrics_of_the_whole():
    records, found = random_split(7, images=20, nc=3)
    names = dict(enumerate(("a", "b", "c")))
    scan = scan_of(records, ("a", "b", "c"))

    def shard(indices):
        evaluator = DetectTask().evaluator(scan, PLAIN, names)
        for i in indices:
            evaluator.update(predictions_of([found[i]], 3), batch_of([i], [records[i].size]))
        return evaluator

    whole = shard(range(20)).compute()
    merged = shard([])
    # uneven shards, and one image that a padded sampler gave to both
    merged.merge([shard([19, *range(1, 12, 2), 0]).state(), shard([0, *range(18, 0, -2), *range(13, 19, 2)]).state()])
    assert merged.compute().values == whole.values
    assert merged.compute().per_class == whole.per_class


def test_boxes_are_compared_in_photo_pixels_whatever_the_input_size():
    from libreyolo_core.data.batch import Placement

    batch = batch_of([0])
    batch.placements = [Placement((200, 400), (64, 64), (0.16, 0.16), (0.0, 16.0))]
    evaluator = DetectEvaluator(scan_of([record([[100, 50, 200, 150, 0]], (200, 400))]), PLAIN, {0: "cat", 1: "dog"})
    evaluator.update(predictions_of([[[16, 24, 32, 40, 0.9, 0]]], 2), batch)
    assert evaluator.compute().values["metrics/mAP50-95"] == pytest.approx(1)


def test_validation_uses_its_own_thresholds_unless_told_otherwise():
    post = Post("best", nms=True, conf=0.5, iou=0.1, val_conf=0.2, val_iou=0.9, max_det=5)
    records = [record([[0, 0, 9, 9, 0]])]
    found = [[[0, 0, 9, 9, 0.3, 0], [0, 0, 9, 8, 0.25, 0], [40, 40, 50, 50, 0.1, 0]]]

    def kept(**given):
        evaluator = DetectTask().evaluator(scan_of(records), sheet(post=post), {0: "cat", 1: "dog"}, **given)
        evaluator.update(predictions_of(found, 2), batch_of([0]))
        return len(evaluator.state()[0])

    assert kept() == kept(conf=None, iou=None, max_det=None) == 2
    assert kept(conf=0.05) == 3 and kept(iou=0.5) == 1 and kept(max_det=1) == 1


def test_coco_results_carry_the_data_sets_own_ids():
    scan = scan_of([record([[0, 0, 9, 9, 1]])], category_ids={0: 7, 1: 1000}, image_ids=[397133])
    evaluator = DetectEvaluator(scan, PLAIN, {0: "cat", 1: "dog"})
    evaluator.update(predictions_of([[[1, 2, 9, 12, 0.5, 1]]], 2), batch_of([0]))
    assert evaluator.coco_results() == [{"image_id": 397133, "category_id": 1000, "bbox": [1, 2, 8, 10], "score": 0.5}]


def test_confusion_matrix_holds_the_true_positives_of_precision_on_its_diagonal():
    records, found = random_split(11, images=15, nc=3)
    m = evaluate(records, found, names=("a", "b", "c"))
    table = m.curves["confusion"]
    right, objects, predicted = np.trace(table[:3, :3]), table[:, :3].sum(), table[:3].sum()
    assert m.values["metrics/precision"] == pytest.approx(right / predicted)
    assert m.values["metrics/recall"] == pytest.approx(right / objects)
    assert table[3, 3] == 0


def test_confusion_matrix_names_what_was_taken_for_what():
    from libreyolo_core.tasks.matching import Truth

    rows = np.array([[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]], float)
    truth = Truth(rows, np.array([0, 0, 1]), np.zeros(3, bool), np.full(3, 100.0), (60, 60))
    found = np.array(
        [[0, 0, 10, 10, 0.9, 0], [20, 0, 30, 10, 0.8, 1], [0, 40, 10, 50, 0.7, 1], [40, 0, 50, 10, 0.2, 1]]
    )
    table = confusion_matrix([found], [truth], 2, conf=0.5)
    assert table.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]


def test_metrics_come_in_the_order_of_the_results_table():
    records, found = random_split(1, images=10, nc=2)
    m = evaluate(records, found)
    order = [name for name in DetectTask.metrics if name in m.values]
    assert list(m.values) == order and DetectTask.fitness in order
