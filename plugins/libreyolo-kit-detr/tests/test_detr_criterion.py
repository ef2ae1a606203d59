"""The set criterion."""

import pytest
import torch

from libreyolo_core.errors import ConfigError
from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import SetCriterion
from libreyolo_kit_detr.boxes import absolute_xyxy


def targets(truth, labels, rows=None):
    """BoxTargets in an image of 100 by 100 pixels, and the padded truth."""
    pixels = [absolute_xyxy(torch.tensor(t).reshape(-1, 4), (100, 100)) for t in truth]
    out = BoxTargets.pad(pixels, [torch.tensor(c, dtype=torch.int64) for c in labels], rows=rows)
    padded = torch.zeros(len(truth), out.boxes.shape[1], 4)
    for i, t in enumerate(truth):
        padded[i, : len(t)] = torch.tensor(t).reshape(-1, 4)
    return out, padded


def outputs(truth, sets=1, n=1, queries=6, classes=3, dn=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    out = {
        "logits": torch.randn(sets, n, queries, classes, generator=g).requires_grad_(),
        "boxes": (torch.rand(sets, n, queries, 4, generator=g) * 0.5 + 0.1).requires_grad_(),
        "truth": truth,
    }
    if dn:
        out["dn_logits"] = torch.randn(sets, n, dn, classes, generator=g).requires_grad_()
        out["dn_boxes"] = (torch.rand(sets, n, dn, 4, generator=g) * 0.5 + 0.1).requires_grad_()
    return out


def test_a_small_case_computed_by_hand_has_its_known_loss():
    known, truth = targets([[[0.52, 0.48, 0.22, 0.2], [0.68, 0.62, 0.25, 0.22]]], [[1, 2]])
    logits = torch.tensor([[(((3 * q + c) % 5) - 2) * 0.5 for c in range(3)] for q in range(4)])
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.4, 0.2, 0.3], [0.7, 0.6, 0.3, 0.2], [0.2, 0.2, 0.1, 0.1]])
    out = {"logits": logits[None, None], "boxes": boxes[None, None], "truth": truth}
    terms = SetCriterion()(out, known, Step())
    query = SetCriterion().match(out["logits"], out["boxes"], truth, known)
    assert query[0, 0, :2].tolist() == [0, 2]
    got = {name: value.item() for name, value in terms.named().items()}
    # the known values are rounded to six digits
    assert got == pytest.approx({"vfl": 1.373679, "bbox": 0.425000, "giou": 0.647122}, abs=2e-6)
    assert terms.total.item() == pytest.approx(2.445801, abs=2e-6)


def test_all_sets_at_once_equal_each_set_alone():
    known, truth = targets([[[0.3, 0.3, 0.2, 0.2]], [[0.5, 0.5, 0.4, 0.2], [0.2, 0.7, 0.1, 0.1]]], [[0], [2, 1]])
    out = outputs(truth, sets=3, n=2)
    together = SetCriterion()(out, known, Step()).named()
    for i, suffix in enumerate(("", "_aux_0", "_aux_1")):
        alone = SetCriterion()({k: v if k == "truth" else v[i : i + 1] for k, v in out.items()}, known, Step()).named()
        for name in ("vfl", "bbox", "giou"):
            torch.testing.assert_close(together[name + suffix], alone[name])


def test_rows_of_padding_change_nothing():
    boxes, labels = [[[0.3, 0.3, 0.2, 0.2]], [[0.5, 0.5, 0.4, 0.2], [0.2, 0.7, 0.1, 0.1]]], [[0], [2, 1]]
    totals = []
    for rows in (2, 8, 24):
        known, truth = targets(boxes, labels, rows=rows)
        totals.append(SetCriterion()(outputs(truth, n=2, dn=12), known, Step()).total)
    torch.testing.assert_close(totals[0], totals[1])
    torch.testing.assert_close(totals[0], totals[2])


def test_denoising_positives_restore_their_own_box_and_divide_by_the_groups():
    known, truth = targets([[[0.3, 0.3, 0.2, 0.2]], [[0.5, 0.5, 0.4, 0.2], [0.2, 0.7, 0.1, 0.1]]], [[0], [2, 1]])
    groups = 3
    out = outputs(truth, n=2, dn=groups * 4)
    terms = SetCriterion()(out, known, Step()).named()
    distance = 0.0
    for image, count in enumerate((1, 2)):
        for group in range(groups):
            for j in range(count):
                distance += (out["dn_boxes"][0, image, group * 4 + j] - truth[image, j]).abs().sum().item()
    assert terms["bbox_dn_0"].item() == pytest.approx(5 * distance / (3 * groups), rel=1e-5)


def test_a_batch_without_boxes_teaches_background_and_reaches_every_output():
    known, truth = targets([[], []], [[], []])
    out = outputs(truth, sets=2, n=2)
    terms = SetCriterion()(out, known, Step())
    terms.total.backward()
    named = terms.named()
    assert named["vfl"] > 0 and named["bbox"] == 0 and named["giou"] == 0
    assert out["logits"].grad.abs().sum() > 0 and (out["boxes"].grad == 0).all()


def test_an_image_with_more_boxes_than_queries_is_no_error():
    many = torch.rand(20, 4).mul(0.4).add(0.1).tolist()
    known, truth = targets([many], [[0] * 20])
    terms = SetCriterion()(outputs(truth), known, Step())
    assert torch.isfinite(terms.total)


def test_shards_average_to_the_whole_batch():
    boxes, labels = [[[0.3, 0.3, 0.2, 0.2]], [[0.5, 0.5, 0.4, 0.2], [0.2, 0.7, 0.1, 0.1]]], [[0], [2, 1]]
    known, truth = targets(boxes, labels)
    out = outputs(truth, n=2, dn=12)
    whole = SetCriterion()(out, known, Step()).total

    class TwoRanks(Ranks):
        size = 2

        def sum(self, value):
            return torch.full_like(value, 3.0)

    shards = []
    for i in range(2):
        part = {k: v[i : i + 1] if k == "truth" else v[:, i : i + 1] for k, v in out.items()}
        mine = BoxTargets(known.boxes[i : i + 1], known.labels[i : i + 1], known.valid[i : i + 1], known.most)
        shards.append(SetCriterion()(part, mine, Step(TwoRanks())).total)
    torch.testing.assert_close(sum(shards) / 2, whole)


def test_focal_targets_one_and_an_unknown_score_is_an_error():
    known, truth = targets([[[0.3, 0.3, 0.2, 0.2]]], [[0]])
    out = outputs(truth)
    terms = SetCriterion(score="focal")(out, known, Step())
    logits, query = out["logits"][0, 0], SetCriterion().match(out["logits"], out["boxes"], truth, known)[0, 0, 0]
    target = torch.zeros_like(logits)
    target[query, 0] = 1
    p = logits.sigmoid()
    wanted = -(0.25 * target * (1 - p) ** 2 * p.log() + 0.75 * (1 - target) * p**2 * (1 - p).log()).sum()
    torch.testing.assert_close(terms.named()["focal"], wanted.detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="'vlf'.*loss.score.*'vfl'"):
        SetCriterion(score="vlf")
