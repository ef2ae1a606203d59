"""Denoising queries: shapes, noise, randomness per sample, and who may see whom."""

import torch

from libreyolo_core.draw import key
from libreyolo_kit_detr.boxes import cxcywh_to_xyxy, iou_giou
from libreyolo_kit_detr.denoising import attention_mask, denoising_queries, group_count


def batch(n=4, rows=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    boxes = torch.cat(
        (torch.rand(n, rows, 2, generator=g) * 0.4 + 0.3, torch.rand(n, rows, 2, generator=g) * 0.2 + 0.1), 2
    )
    labels = torch.randint(0, 10, (n, rows), generator=g)
    valid = torch.arange(rows) < torch.tensor([5, 0, 3, 1])[:n, None]
    return boxes, labels, valid, torch.tensor([key(1, 0, i) for i in range(n)])


def make(boxes, labels, valid, draw, most=5, queries=100, **options):
    return denoising_queries(boxes, labels, valid, draw, most=most, queries=queries, classes=10, **options)


def test_groups_fill_about_the_wanted_number_of_queries():
    assert [group_count(100, most) for most in (1, 3, 33, 61, 250)] == [100, 33, 3, 1, 1]


def test_padded_slots_show_the_padding_class_and_an_empty_box():
    boxes, labels, valid, draw = batch()
    boxes = boxes * valid[..., None]
    out = make(boxes, labels, valid, draw)
    assert out.groups == 20 and out.labels.shape == (4, 200) and out.box_logits.shape == (4, 200, 4)
    padded = ~valid[:, None, None, :5].expand(4, 20, 2, 5).flatten(1)
    assert (out.labels[padded] == 10).all() and (out.labels[~padded] < 10).all()
    torch.testing.assert_close(out.box_logits[padded].sigmoid(), torch.full((int(padded.sum()), 4), 1e-5))


def test_a_quarter_of_the_labels_is_drawn_anew():
    boxes, labels, valid, draw = batch(n=64)
    valid = torch.ones(64, 8, dtype=torch.bool)
    out = make(boxes, labels, valid, draw, most=8)
    wrong = (out.labels != labels[:, None, None, :8].expand(64, 12, 2, 8).flatten(1)).float().mean()
    # a quarter is redrawn and a tenth of those hits the old class: 0.225; 12288 draws have a deviation of 0.004
    assert abs(wrong - 0.225) < 0.015


def test_positives_stay_closer_to_their_box_than_negatives():
    boxes, labels, valid, draw = batch()
    out = make(boxes, labels, valid, draw)
    made = cxcywh_to_xyxy(out.box_logits.sigmoid()).unflatten(1, (20, 2, 5))
    iou, _ = iou_giou(made, cxcywh_to_xyxy(boxes[:, :5])[:, None, None])
    iou = iou.clamp(0, 1)[0]  # the first image fills all five slots
    assert iou[:, 0].mean() > 0.35 > 0.15 > iou[:, 1].mean()
    shift = (
        (made - cxcywh_to_xyxy(boxes[:, :5])[:, None, None]).abs()
        / (boxes[:, None, None, :5, 2:].repeat(1, 1, 1, 1, 2) / 2)
    )[0]
    # these boxes keep clear of the border, so no positive is clipped; 0.001 for rounding through logit and sigmoid
    assert shift[:, 0].max() <= 1.001


def test_the_noise_of_a_sample_does_not_depend_on_its_batch():
    boxes, labels, valid, draw = batch()
    whole = make(boxes, labels, valid, draw)
    alone = make(boxes[2:3], labels[2:3], valid[2:3], draw[2:3])
    assert torch.equal(whole.labels[2:3], alone.labels) and torch.equal(whole.box_logits[2:3], alone.box_logits)
    again = make(boxes, labels, valid, draw + 1)
    assert not torch.equal(whole.box_logits[0], again.box_logits[0])


def test_padding_rows_of_the_batch_change_nothing():
    boxes, labels, valid, draw = batch()
    short = make(boxes[:, :5], labels[:, :5], valid[:, :5], draw)
    long = make(boxes, labels, valid, draw)
    assert torch.equal(short.box_logits, long.box_logits)
    assert make(boxes[:, :3], labels[:, :3], valid[:, :3], draw).box_logits.shape == long.box_logits.shape


def test_groups_and_matching_queries_are_hidden_from_each_other():
    most, groups, queries = 2, 3, 5
    seen = attention_mask(most, groups, queries, torch.device("cpu"))
    size = 2 * most
    for i in range(groups):
        block = slice(i * size, (i + 1) * size)
        assert seen[block, block].all()
        others = [j for j in range(groups * size) if j // size != i]
        assert not seen[block][:, others].any()
    assert seen[:, groups * size :].all()  # everybody may look at the matching queries
    assert not seen[groups * size :, : groups * size].any()  # which look at none of the others


def test_mirrored_boxes_differ_only_where_corners_crossed():
    boxes, labels, valid, draw = batch()
    plain, mirrored = (make(boxes, labels, valid, draw, mirror=mirror).box_logits.sigmoid() for mirror in (False, True))
    crossed = plain[..., 2:] < 2e-5  # what a negative size is clipped to
    assert 0 < crossed.float().mean() < 0.5
    assert (mirrored[..., 2:][crossed] > 2e-5).float().mean() > 0.5  # some are empty, at the border of the image
    assert torch.equal(plain[..., 2:][~crossed], mirrored[..., 2:][~crossed])
    assert torch.equal(plain[..., :2], mirrored[..., :2])
