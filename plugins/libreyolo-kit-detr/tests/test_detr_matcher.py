"""Hungarian matching of all layers and images at once."""

import itertools

import torch

from libreyolo_kit_detr import matcher
from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, iou_giou
from libreyolo_kit_detr.matcher import match, pair_cost


def problem(sets=2, n=3, queries=6, rows=4, classes=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(sets, n, queries, classes, generator=g)
    boxes = torch.rand(sets, n, queries, 4, generator=g) * 0.5 + 0.1
    truth = torch.rand(n, rows, 4, generator=g) * 0.5 + 0.1
    labels = torch.randint(0, classes, (n, rows), generator=g)
    valid = torch.arange(rows) < torch.tensor([3, 0, rows])[:n, None]
    return logits, boxes, truth, labels, valid


def test_costs_equal_the_formula_written_for_one_pair():
    logits, boxes, truth, labels, _ = problem()
    cost = pair_cost(logits, boxes, truth, labels)
    for s, n, m, q in [(0, 0, 0, 0), (1, 2, 3, 5), (0, 1, 2, 4)]:
        p = logits[s, n, q, labels[n, m]].sigmoid()
        focal = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log() - 0.75 * p**2 * -(1 - p + 1e-8).log()
        l1 = (boxes[s, n, q] - truth[n, m]).abs().sum()
        giou = iou_giou(cxcywh_to_xyxy(boxes[s, n, q]), cxcywh_to_xyxy(truth[n, m]))[1]
        torch.testing.assert_close(cost[s, n, m, q], 2 * focal + 5 * l1 - 2 * giou)


def test_matches_are_the_cheapest_of_all_assignments_in_every_layer_and_image():
    logits, boxes, truth, labels, valid = problem()
    cost = pair_cost(logits, boxes, truth, labels)
    query = match(cost, valid)
    for s in range(cost.shape[0]):
        for n in range(cost.shape[1]):
            count = int(valid[n].sum())
            assert (query[s, n, count:] == -1).all()
            best = min(
                itertools.permutations(range(cost.shape[3]), count),
                key=lambda chosen: sum(float(cost[s, n, m, q]) for m, q in enumerate(chosen)),
            )
            assert query[s, n, :count].tolist() == list(best)


def test_an_image_with_more_boxes_than_queries_matches_every_query_once():
    logits, boxes, truth, labels, _ = problem(n=1, queries=3, rows=8)
    query = match(pair_cost(logits, boxes, truth, labels), torch.ones(1, 8, dtype=torch.bool))
    for row in query.flatten(0, 1):
        assert sorted(row[row >= 0].tolist()) == [0, 1, 2]
        assert (row == -1).sum() == 5


def test_costs_that_are_not_numbers_still_give_an_assignment():
    logits, boxes, truth, labels, valid = problem()
    boxes[0, 0, 1] = float("nan")
    logits[1] = float("inf")
    query = match(pair_cost(logits, boxes, truth, labels), valid)
    assert ((query >= 0) == valid).all()


def test_one_call_to_the_host_serves_all_layers_and_images(monkeypatch):
    calls = []
    assign = matcher.assign
    monkeypatch.setattr(matcher, "assign", lambda cost: calls.append(cost.shape) or assign(cost))
    logits, boxes, truth, labels, valid = problem()
    match(pair_cost(logits, boxes, truth, labels), valid)
    assert calls == [(2, 3, 4, 6)]
