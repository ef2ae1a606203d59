"""Both COCO libraries give the same numbers, agree with a plain reimplementation, and leave stdout alone."""

import json
import logging

import numpy as np
import pytest

from libreyolo_core.errors import UsageError
from libreyolo_core.family import Post
from libreyolo_core.tasks import coco
from libreyolo_core.tasks.coco import BACKENDS, coco_scores
from libreyolo_core.tasks.detect_eval import DetectEvaluator
from libreyolo_core.tasks.matching import overlaps
from task_fakes import batch_of, predictions_of, random_split, record, scan_of, sheet

NAMES = ("a", "b", "c", "never")


def both(records, found, nc=4):
    evaluator = DetectEvaluator(scan_of(records, NAMES), sheet(), dict(enumerate(NAMES)))
    truths = [evaluator.truth(i) for i in range(len(records))]
    rows = [np.array(f, dtype=np.float32).reshape(-1, 6) for f in found]
    return truths, rows, [coco_scores(truths, rows, nc, backend=b) for b in BACKENDS]


@pytest.fixture(params=range(4))
def split(request):
    """Random splits with crowds, empty images, images without detections, ties, and a class that never occurs."""
    return random_split(request.param, images=14, nc=3)


def test_both_libraries_give_the_same_numbers(split):
    _, _, (fast, plain) = both(*split)
    # one adds an epsilon of 2e-16 to a denominator that the other does not have: the last bit may differ
    assert fast.values == pytest.approx(plain.values, rel=0, abs=1e-14)
    for name in ("ap", "ap50", "precision50"):
        np.testing.assert_allclose(getattr(fast, name), getattr(plain, name), rtol=0, atol=1e-14)
    assert np.isnan(fast.ap[3]) and 0 < fast.values["mAP50-95"] < fast.values["mAP50"] < 1


def test_the_numbers_are_those_of_the_definition(split):
    truths, rows, (fast, _) = both(*split)
    per_class = [np.mean([_ap(truths, rows, c, t) for t in np.linspace(0.5, 0.95, 10)]) for c in range(3)]
    np.testing.assert_allclose(fast.ap[:3], per_class, rtol=0, atol=1e-9)
    assert fast.values["mAP50-95"] == pytest.approx(np.mean(per_class), abs=1e-9)
    assert fast.values["mAP50"] == pytest.approx(np.mean([_ap(truths, rows, c, 0.5) for c in range(3)]), abs=1e-9)


def _ap(truths, rows, c, threshold):
    """101-point interpolated AP of a class, written out."""
    marks, objects = [], 0
    for truth, found in zip(truths, rows):
        of_class = truth.labels == c
        boxes, crowd = truth.boxes[of_class], truth.crowd[of_class]
        objects += int((~crowd).sum())
        found = found[found[:, 5] == c]
        found = found[np.argsort(-found[:, 4], kind="stable")][:100].astype(float)
        overlap, taken = overlaps(found[:, :4], boxes, crowd), set()
        for d in range(len(found)):
            free = [g for g in range(len(boxes)) if not crowd[g] and g not in taken and overlap[d, g] >= threshold]
            if free:
                taken.add(max(free, key=lambda g: overlap[d, g]))
                marks.append((found[d, 4], True))
            elif not any(crowd[g] and overlap[d, g] >= threshold for g in range(len(boxes))):
                marks.append((found[d, 4], False))
    order = np.argsort([-s for s, _ in marks], kind="stable")
    right = np.cumsum([marks[i][1] for i in order])
    precision, recall = right / np.arange(1, len(right) + 1), right / objects
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
    return float(np.mean([best[i] if i < len(best) else 0.0 for i in at]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_detection_and_one_absent_class_are_no_special_cases(backend):
    records = [record([[0, 0, 9, 9, 0]]), record([])]
    evaluator = DetectEvaluator(scan_of(records, NAMES), sheet(), dict(enumerate(NAMES)), backend=backend)
    evaluator.update(predictions_of([[], []], 4), batch_of([0, 1]))
    assert evaluator.compute().values["metrics/mAP50-95"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_best_hundred_of_an_image_and_class_count(backend):
    wrong = [[100 + i, 100, 105 + i, 105, 0.9, 0] for i in range(100)]
    records, found = [record([[0, 0, 9, 9, 0]], (300, 300))], [[*wrong, [0, 0, 9, 9, 0.5, 0]]]
    _, rows, scores = both(records, found)
    assert len(rows[0]) == 101 and all(s.values["mAP50"] == 0 for s in scores)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_follow_the_area_of_the_object_and_not_of_its_box(backend):
    """A 40 x 40 box is medium; an outline of 500 square pixels inside it makes the object small."""
    rows, found = [[0, 0, 40, 40, 0]], [[[0, 0, 40, 40, 0.9, 0]]]

    def values(**more):
        evaluator = DetectEvaluator(scan_of([record(rows, **more)]), sheet(), {0: "cat", 1: "dog"}, backend=backend)
        evaluator.update(predictions_of(found, 2), batch_of([0]))
        return evaluator.compute().values

    assert "metrics/mAP_medium" in values() and "metrics/mAP_small" not in values()
    outlined = values(areas=np.array([500.0]))
    assert "metrics/mAP_small" in outlined and "metrics/mAP_medium" not in outlined


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluation_prints_and_logs_nothing(backend, capfd, caplog):
    caplog.set_level(logging.DEBUG)
    records, found = random_split(0, images=6, nc=3)
    post = Post("topk", nms=False, val_conf=0.001)
    evaluator = DetectEvaluator(scan_of(records, NAMES), sheet(post=post), dict(enumerate(NAMES)), backend=backend)
    evaluator.update(predictions_of(found, 4), batch_of(range(6), [r.size for r in records]))
    print(json.dumps(evaluator.compute().values))
    out = capfd.readouterr()
    assert json.loads(out.out) and out.err == "" and caplog.text == ""


def test_pycocotools_takes_over_where_the_fast_library_is_absent(monkeypatch):
    assert coco.installed_backend() == "faster-coco-eval"
    monkeypatch.setattr(coco.importlib.util, "find_spec", lambda name: None if name == "faster_coco_eval" else object())
    assert coco.installed_backend() == "pycocotools"
    monkeypatch.setattr(coco.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pycocotools"):
        coco.installed_backend()
