"""The criterion for boxes whose edges are distributions."""

import math

import pytest
import torch

from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import FDRCriterion, fdr
from libreyolo_kit_detr.boxes import absolute_xyxy, cxcywh_to_xyxy, iou_giou, relative_cxcywh
from libreyolo_kit_detr.matcher import owners

BINS = fdr.bin_values(torch.tensor([0.5]), torch.tensor([4.0]))
PLAIN = {"bbox_weight": 1.0, "giou_weight": 1.0, "fgl_weight": 1.0, "ddf_weight": 1.0}


def outputs(truth, layers=3, queries=7, classes=3, dn=0, seed=0):
    g = torch.Generator().manual_seed(seed)
    n = len(truth)
    out = {"truth": truth, "bins": BINS, "reg_scale": torch.tensor([4.0])}
    for prefix, count, sets in (("", queries, layers + 2), ("dn_", dn, layers + 1)):
        if count:
            out[prefix + "logits"] = torch.randn(sets, n, count, classes, generator=g).requires_grad_()
            out[prefix + "boxes"] = (torch.rand(sets, n, count, 4, generator=g) * 0.5 + 0.1).requires_grad_()
            out[prefix + "corners"] = torch.randn(layers, n, count, 132, generator=g).requires_grad_()
            out[prefix + "initial"] = torch.rand(n, count, 4, generator=g) * 0.5 + 0.1
    return out


def targets(counts, rows=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    boxes = [torch.rand(c, 4, generator=g) * 0.3 + 0.3 for c in counts]
    known = BoxTargets.pad(
        [absolute_xyxy(b, (100, 100)) for b in boxes],
        [torch.randint(0, 3, (c,), generator=g) for c in counts],
        rows=rows,
    )
    return known, relative_cxcywh(known.boxes, (100, 100))


def test_the_union_keeps_for_each_query_the_box_that_most_sets_gave_it():
    # (query, box) of four sets: (0,0) (2,1) twice, (1,0) (2,1), (2,0) (3,1)
    found = torch.tensor([[[0, 2]], [[0, 2]], [[1, 2]], [[2, 3]]])
    owner = owners(found, 5)
    assert owner[:, 0].tolist() == [
        [0, -1, 1, -1, -1],
        [0, -1, 1, -1, -1],
        [-1, 0, 1, -1, -1],
        [-1, -1, 0, 1, -1],
        [0, 0, 1, 1, -1],
    ]


def test_padding_owns_no_query_and_no_sets_no_boxes_are_no_error():
    assert owners(torch.tensor([[[1, -1]], [[-1, -1]]]), 3).tolist() == [[[-1, 0, -1]], [[-1] * 3], [[-1, 0, -1]]]


def test_a_small_case_has_its_known_terms():
    logits = torch.tensor([[(((3 * q + c) % 5) - 2) * 0.5 for c in range(3)] for q in range(4)])
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2], [0.3, 0.4, 0.2, 0.3], [0.7, 0.6, 0.3, 0.2], [0.2, 0.2, 0.1, 0.1]])
    truth = torch.tensor([[[0.52, 0.48, 0.22, 0.2], [0.68, 0.62, 0.25, 0.22]]])
    known = BoxTargets.pad([absolute_xyxy(truth[0], (100, 100))], [torch.tensor([1, 2])], rows=2)
    angle = 0.1 * torch.arange(4 * 132.0).view(4, 132)
    initial = torch.tensor([[0.5, 0.5, 0.25, 0.2], [0.3, 0.4, 0.2, 0.3], [0.7, 0.6, 0.25, 0.2], [0.2, 0.2, 0.1, 0.1]])
    out = {
        "logits": torch.stack((logits.flip(0), logits, logits, logits))[:, None],
        "boxes": boxes.expand(4, 1, 4, 4),
        "corners": torch.stack((angle.cos(), angle.sin()))[:, None],  # teacher, student
        "initial": initial[None],
        "truth": truth,
        "bins": BINS,
        "reg_scale": torch.tensor([4.0]),
    }
    criterion = FDRCriterion(**PLAIN)
    student = criterion.owners({**out, "logits": out["logits"][1:], "boxes": out["boxes"][1:]}, known)
    assert (student == torch.tensor([0, -1, 1, -1])).all()
    criterion.owners = lambda *_: student[-1:].expand(5, -1, -1)  # the teacher's logits would match otherwise
    named = {k: v.item() for k, v in criterion(out, known, Step()).named().items()}
    wanted = {"vfl": 1.373688, "bbox": 0.085, "giou": 0.323549, "fgl": 10.048840, "ddf": 0.172536}
    # the known values are rounded to six digits
    assert {name: named[name + "_aux_0"] for name in wanted} == pytest.approx(wanted, abs=2e-6)


def test_terms_are_named_by_set_and_only_earlier_layers_are_taught():
    known, truth = targets([2, 1])
    named = FDRCriterion()(outputs(truth, dn=8), known, Step()).named()
    own, noisy = ["", "_aux_0", "_aux_1"], ["_dn_0", "_dn_1", "_dn_2"]
    wanted = {n + s for n in ("vfl", "bbox", "giou") for s in (*own, "_pre", "_enc_0", *noisy, "_dn_pre")}
    wanted |= {"fgl" + s for s in (*own, *noisy)} | {"ddf" + s for s in (*own[1:], *noisy[:-1])}
    assert set(named) == wanted


def test_a_layer_equal_to_the_final_one_has_nothing_to_learn_from_it():
    known, truth = targets([2, 1])
    out = outputs(truth)
    out["corners"] = out["corners"].detach()[:1].repeat(3, 1, 1, 1)
    named = FDRCriterion()(out, known, Step()).named()
    assert named["ddf_aux_0"].item() == pytest.approx(0, abs=1e-6)


def test_distillation_weighs_matched_and_other_edges_by_the_roots_of_their_numbers():
    known, truth = targets([2, 1])
    out = outputs(truth)
    criterion = FDRCriterion(**PLAIN)
    owner = criterion.owners(out, known)[-1]
    matched = owner >= 0
    student = (out["corners"][1].unflatten(-1, (4, 33)) / 5).log_softmax(-1)
    teacher = (out["corners"][0].unflatten(-1, (4, 33)) / 5).softmax(-1)
    edges = 25 * torch.nn.functional.kl_div(student, teacher, reduction="none").sum(-1)  # [N, Q, 4]
    trust = out["logits"][0].sigmoid().amax(-1)
    for n, q in matched.nonzero().tolist():
        corners = (cxcywh_to_xyxy(b) for b in (out["boxes"][1, n, q], truth[n, owner[n, q]]))
        trust[n, q] = iou_giou(*corners, eps=0.0)[0]
    weighted = edges * trust[..., None]
    a, b = (math.sqrt(8 / 2 * 4 * int(part.sum())) for part in (matched, ~matched))
    wanted = (weighted[matched].mean() * a + weighted[~matched].mean() * b) / (a + b)
    torch.testing.assert_close(criterion(out, known, Step()).named()["ddf_aux_0"], wanted.detach())


def test_rows_of_padding_change_nothing():
    totals = []
    for rows in (2, 8, 24):
        known, truth = targets([1, 2], rows=rows)
        totals.append(FDRCriterion()(outputs(truth, dn=12), known, Step()).total)
    torch.testing.assert_close(totals[0], totals[1])
    torch.testing.assert_close(totals[0], totals[2])


def test_denoising_positives_restore_their_own_box_and_divide_by_the_groups():
    known, truth = targets([1, 2])
    out = outputs(truth, dn=12)  # three groups of two positives and two negatives
    named = FDRCriterion()(out, known, Step()).named()
    distance = 0.0
    for image, count in enumerate((1, 2)):
        for group in range(3):
            for j in range(count):
                distance += (out["dn_boxes"][0, image, group * 4 + j] - truth[image, j]).abs().sum().item()
    assert named["bbox_dn_2"].item() == pytest.approx(5 * distance / (3 * 3), rel=1e-5)


def test_a_batch_without_boxes_teaches_background_and_agreement_and_reaches_every_output():
    known, truth = targets([0, 0])
    out = outputs(truth)
    terms = FDRCriterion()(out, known, Step())
    terms.total.backward()
    named = terms.named()
    assert named["vfl"] > 0 and named["ddf_aux_0"] > 0
    assert named["bbox"] == 0 and named["giou"] == 0 and named["fgl"] == 0
    assert out["logits"].grad.abs().sum() > 0 and (out["boxes"].grad == 0).all()
    assert all(out[name].grad.isfinite().all() for name in ("logits", "boxes", "corners"))


def test_more_boxes_than_queries_and_boxes_turned_inside_out_are_no_error():
    known, truth = targets([20])
    out = outputs(truth)
    out["boxes"] = out["boxes"].detach() * torch.tensor([1, 1, -1, 1])
    out["boxes"].requires_grad_()
    terms = FDRCriterion()(out, known, Step())
    terms.total.backward()
    assert torch.isfinite(terms.total) and out["boxes"].grad.isfinite().all()


def test_shards_average_to_the_whole_batch():
    known, truth = targets([1, 2])
    out = outputs(truth, dn=12)
    criterion = FDRCriterion()
    union = criterion.owners(out, known)[-1]
    whole = criterion(out, known, Step()).total

    class TwoRanks(Ranks):
        size = 2

        def sum(self, value):
            pairs = (union >= 0).sum()
            return torch.stack((torch.tensor(3), pairs, union.numel() - pairs)).float()

    shards = []
    for i in range(2):
        first = ("truth", "initial", "dn_initial")
        part = {k: v if v.dim() == 1 else v[i : i + 1] if k in first else v[:, i : i + 1] for k, v in out.items()}
        mine = BoxTargets(known.boxes[i : i + 1], known.labels[i : i + 1], known.valid[i : i + 1], known.most)
        shards.append(FDRCriterion()(part, mine, Step(TwoRanks())).total)
    torch.testing.assert_close(sum(shards) / 2, whole)
