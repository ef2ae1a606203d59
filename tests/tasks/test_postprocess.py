"""Canonical predictions become detections as the sheet's ``Post`` says."""

import pytest
import torch
from torchvision.ops import box_iou

from libreyolo_core.data.batch import Placement
from libreyolo_core.family import Post
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.postprocess import postprocess, to_host
from task_fakes import predictions_of

BEST = Post("best", nms=True, conf=0.25, iou=0.5, max_det=10)
TOPK = Post("topk", nms=False, conf=0.25, max_det=10, clamp=False)


def rows_of(detections):
    return [
        [*(round(v, 3) for v in b), round(s, 3), c]
        for b, s, c in zip(detections.boxes.tolist(), detections.scores.tolist(), detections.labels.tolist())
    ]


def test_a_score_equal_to_the_threshold_is_dropped():
    found = postprocess(predictions_of([[[0, 0, 5, 5, 0.25, 0], [20, 0, 25, 5, 0.2500001, 0]]], 2), BEST)
    assert len(found[0]) == 1 and found[0].boxes[0, 0] == 20
    found = postprocess(predictions_of([[[0, 0, 5, 5, 0.25, 0], [20, 0, 25, 5, 0.2500001, 0]]], 2), TOPK)
    assert len(found[0]) == 1 and found[0].boxes[0, 0] == 20


def test_best_gives_one_class_per_row_and_topk_several():
    boxes = torch.tensor([[[0.0, 0, 10, 10]]])
    scores = torch.tensor([[[0.6, 0.9, 0.5]]])
    p = Predictions(boxes=boxes, scores=scores)
    assert rows_of(postprocess(p, BEST)[0]) == [[0, 0, 10, 10, 0.9, 1]]
    assert [r[4:] for r in rows_of(postprocess(p, TOPK)[0])] == [[0.9, 1], [0.6, 0], [0.5, 2]]


def test_topk_ranks_pairs_of_query_and_class_over_the_image():
    scores = torch.tensor([[[0.9, 0.8], [0.7, 0.1], [0.6, 0.5]]])
    p = Predictions(boxes=torch.arange(12.0).reshape(1, 3, 4).cumsum(-1), scores=scores)
    found = postprocess(p, TOPK, max_det=3)[0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7])
    assert found.labels.tolist() == [0, 1, 0]
    # 3 queries x 2 classes are fewer than max_det
    assert len(postprocess(p, TOPK, max_det=300, conf=0.0)[0]) == 6


def test_nms_drops_overlapping_boxes_of_one_class_only():
    rows = [[0, 0, 10, 10, 0.9, 0], [1, 0, 11, 10, 0.8, 0], [1, 0, 11, 10, 0.7, 1], [50, 50, 60, 60, 0.6, 0]]
    found = postprocess(predictions_of([rows], 2), BEST)[0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    assert postprocess(predictions_of([rows], 2), BEST, agnostic=True)[0].scores.tolist() == pytest.approx([0.9, 0.6])


def test_boxes_below_zero_do_not_suppress_other_classes():
    rows = [[-300, -300, -290, -290, 0.9, 1], [-300 + 21, -300 + 21, -290 + 21, -290 + 21, 0.8, 0]]
    wide = [[-1000, -1000, -10, -10, 0.7, c] for c in range(5)]
    found = postprocess(predictions_of([rows + wide], 5), BEST)[0]
    assert len(found) == 7


def test_rows_that_are_not_finite_are_dropped_and_take_no_place():
    nan, inf = float("nan"), float("inf")
    rows = [
        [0, 0, 5, 5, nan, 0],
        [nan, 0, 5, 5, 0.9, 0],
        [0, 0, inf, 5, 0.8, 1],
        [0, 0, 5, 5, inf, 1],
        [9, 9, 12, 12, 0.5, 1],
    ]
    for post in (BEST, TOPK):
        found = postprocess(predictions_of([rows], 2), post, max_det=1)[0]
        assert rows_of(found) == [[9, 9, 12, 12, 0.5, 1]]


def test_results_are_sorted_and_capped_per_image():
    many = [[20 * i, 0, 20 * i + 9, 9, 0.3 + 0.01 * i, 0] for i in range(30)]
    found = postprocess(predictions_of([many, [], many[:2]], 1), BEST, max_det=7)
    assert [len(d) for d in found] == [7, 0, 2]
    assert found[0].scores.tolist() == sorted(found[0].scores.tolist(), reverse=True)
    assert found[0].scores[0].item() == pytest.approx(0.59)


def test_boxes_come_out_in_photo_pixels_and_are_clamped_when_the_sheet_says_so():
    place = Placement(photo=(50, 100), size=(64, 64), scale=(0.5, 0.5), offset=(7.0, 10.0))
    rows = [[7, 10, 32, 20, 0.9, 0], [-10, 10, 80, 20, 0.8, 1]]
    clamped = postprocess(predictions_of([rows], 2), BEST, placements=[place])[0]
    assert rows_of(clamped) == [[0, 0, 50, 20, 0.9, 0], [0, 0, 100, 20, 0.8, 1]]
    free = postprocess(predictions_of([rows], 2), TOPK, placements=[place])[0]
    assert free.boxes[1].tolist() == [-34, 0, 146, 20]


def test_boxes_without_area_on_the_photo_are_dropped_before_the_cap():
    place = Placement(photo=(20, 20), size=(64, 64), scale=(1.0, 1.0))
    rows = [[30, 30, 40, 40, 0.9, 0], [5, 5, 5, 9, 0.8, 0], [1, 1, 4, 4, 0.7, 0]]
    found = postprocess(predictions_of([rows], 1), BEST, placements=[place], max_det=1)[0]
    assert rows_of(found) == [[1, 1, 4, 4, 0.7, 0]]


def test_stretched_photos_use_a_factor_per_axis():
    place = Placement(photo=(100, 400), size=(64, 64), scale=(64 / 400, 64 / 100))
    found = postprocess(predictions_of([[[16, 32, 32, 64, 0.9, 0]]], 1), BEST, placements=[place])[0]
    assert found.boxes[0].tolist() == pytest.approx([100, 50, 200, 100])


def test_asking_for_classes_leaves_the_whole_cap_to_them():
    rows = [[20 * i, 0, 20 * i + 9, 9, 0.9 - 0.1 * i, i % 2] for i in range(6)]
    for post in (BEST, TOPK):
        found = postprocess(predictions_of([rows], 2), post, classes=[1], max_det=3)[0]
        assert found.labels.tolist() == [1, 1, 1]


def test_a_row_counts_for_its_best_class_alone_when_classes_are_asked_for():
    p = Predictions(boxes=torch.tensor([[[0.0, 0, 9, 9]]]), scores=torch.tensor([[[0.9, 0.6]]]))
    assert len(postprocess(p, BEST, classes=[1])[0]) == 0
    assert postprocess(p, TOPK, classes=[1])[0].scores.tolist() == pytest.approx([0.6])


@pytest.mark.parametrize("pick", ["best", "topk"])
def test_each_level_keeps_its_own_best(pick):
    post = Post(pick, nms=False, per_level=1, conf=0.1, clamp=False)
    rows = [[20 * i, 0, 20 * i + 9, 9, s, 0] for i, s in enumerate([0.9, 0.8, 0.7, 0.3, 0.4])]
    p = predictions_of([rows], 1)
    p.levels = (3, 2)
    assert postprocess(p, post)[0].scores.tolist() == pytest.approx([0.9, 0.4])


def test_pairs_enter_nms_beyond_the_cap_on_results():
    """With ``topk`` and NMS the cap must not cut the candidates, or duplicates would crowd out the second object."""
    post = Post("topk", nms=True, conf=0.1, iou=0.5, max_det=2)
    rows = [[0, 0, 10, 10, 0.9 - 0.01 * i, 0] for i in range(5)] + [[50, 50, 60, 60, 0.5, 0]]
    assert postprocess(predictions_of([rows], 1), post)[0].scores.tolist() == pytest.approx([0.9, 0.5])


def test_half_precision_boxes_are_compared_in_float32():
    rows = [[1000, 1000, 1400, 1400, 0.9, 0], [1001, 1000, 1401, 1400, 0.8, 0]]
    found = postprocess(predictions_of([rows], 1).map(lambda t: t.half()), BEST)[0]
    assert len(found) == 1 and found.boxes.dtype == found.scores.dtype == torch.float32


def test_many_rows_give_what_a_plain_greedy_suppression_gives():
    torch.manual_seed(0)
    boxes = torch.rand(2, 400, 2) * 200
    boxes = torch.cat([boxes, boxes + torch.rand(2, 400, 2) * 80 + 1], -1)
    scores = torch.rand(2, 400, 5)
    found = postprocess(Predictions(boxes=boxes, scores=scores), BEST, max_det=1000)
    for i, d in enumerate(found):
        best, label = scores[i].max(-1)
        order = [j for j in best.argsort(descending=True, stable=True).tolist() if best[j] > 0.25]
        overlap, kept = box_iou(boxes[i], boxes[i]), []
        for j in order:
            same = [k for k in kept if label[k] == label[j]]
            if not (overlap[j, same] > 0.5).any():
                kept.append(j)
        assert torch.equal(d.boxes, boxes[i, kept]) and torch.equal(d.labels, label[kept])


def test_moving_to_the_host_keeps_images_apart():
    found = postprocess(predictions_of([[[0, 0, 5, 5, 0.9, 0]], []], 1), BEST)
    assert [len(d) for d in to_host(found)] == [1, 0] and to_host([]) == []
