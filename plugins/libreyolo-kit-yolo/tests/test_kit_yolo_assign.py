"""Pieces of dense assigners, one by one."""

import torch

from libreyolo_kit_yolo.assign import cheapest, overlap_count, pack, settle


def test_packing_keeps_order_and_marks_padding():
    mask = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    columns = pack(mask, 3)
    assert columns.cell.tolist() == [[1, 3, 4], [4, 4, 4], [4, 4, 4]]
    assert columns.found.tolist() == [[True, True, True], [True, False, False], [False, False, False]]


def test_packing_more_columns_than_cells_packs_all():
    assert pack(torch.ones(1, 4, dtype=torch.bool), 100).cell.tolist() == [[0, 1, 2, 3]]


def test_picked_rows_carry_gradients_back_to_their_cells():
    values = torch.arange(12.0).reshape(2, 3, 2).requires_grad_()
    columns = pack(torch.tensor([[True, False, True], [False, True, False]]), 2)
    picked = columns.pick(values)
    assert picked[0].tolist() == [[0, 1], [4, 5]] and picked[1, 0].tolist() == [8, 9]
    (picked * columns.found[..., None]).sum().backward()
    assert values.grad[..., 0].tolist() == [[1, 0, 1], [0, 1, 0]]


def test_cells_find_their_columns():
    columns = pack(torch.tensor([[True, False, True, False, True]]), 4)
    assert columns.of(torch.tensor([[[0, 2], [4, 2]]])).tolist() == [[[0, 1], [2, 1]]]
    assert int(columns.of(torch.tensor([[[5]]])).max()) < 4


def test_counts_are_sums_of_the_largest_overlaps_and_at_least_one():
    iou = torch.zeros(1, 2, 20)
    iou[0, 0] = 0.5
    assert overlap_count(iou).tolist() == [[5.0, 1.0]]
    assert overlap_count(iou, most=4).tolist() == [[2.0, 1.0]]
    assert overlap_count(iou[..., :3]).tolist() == [[1.5, 1.0]]


def test_the_cheapest_are_taken_and_impossible_ones_never():
    cost = torch.tensor([[[3.0, 1, 2, torch.inf], [torch.inf, 5, torch.inf, torch.inf], [1, 2, 3, 4]]])
    position, taken = cheapest(cost, torch.tensor([[2.9, 3.0, 0.0]]))
    chosen = [set(p[t].tolist()) for p, t in zip(position[0], taken[0], strict=True)]
    assert chosen == [{1, 2}, {1}, set()]


def test_contested_columns_go_to_the_named_target_even_if_it_did_not_ask():
    column = torch.tensor([[[0, 1], [1, 2], [3, 3]]])
    taken = torch.tensor([[[True, True], [True, True], [True, False]]])
    matches = settle(column, taken, torch.tensor([[2, 2, 2, 2, 2]]))
    assert matches.target.tolist() == [[0, 2, 1, 2, 0]]
    assert matches.positive.tolist() == [[True, True, True, True, False]]
    assert matches.of(torch.tensor([[[1.0], [2.0], [3.0]]])).tolist() == [[[1.0], [3.0], [2.0], [3.0], [1.0]]]
