"""Steps that overflow are left out and counted in every precision, and too many of them stop the run with advice."""

import csv
import logging

import pytest
import torch

import toy_family
from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import precision, trainer
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.precision import Mode, Scaler
from libreyolo_core.errors import TrainingError

FLOAT16, BFLOAT16, FLOAT32 = (Mode(t, "cpu") for t in (torch.float16, torch.bfloat16, torch.float32))
STEPS = 3
"""Batches of 10 photos by 4, an epoch."""


class Overflow(Callback):
    """Makes a gradient infinite in some steps, counted from 0."""

    def __init__(self, *steps):
        self.steps, self.number = steps, 0

    def on_start(self, run):
        def poison(gradient):
            self.number += 1
            return gradient * float("inf") if self.number - 1 in self.steps else gradient

        run.network.head.weight.register_hook(poison)
        if run.scaler.live.is_enabled():  # so low that nothing overflows by itself
            run.scaler.live = torch.amp.GradScaler("cpu", init_scale=1024)


@pytest.fixture
def mode(monkeypatch):
    """Chooses what runs: a CPU trains in float16 only when told to, which is slow and enough for a test."""
    return lambda wanted: monkeypatch.setattr(trainer, "choose_mode", lambda *given: wanted)


def train(data, folder, *steps, **given):
    given = {"epochs": 2, "batch": 4, "workers": 0, "plots": False, "project": str(folder), "device": "cpu", **given}
    return LibreYOLO("toy-s", pretrained=False, device="cpu").train(
        data=str(data), callbacks=[Overflow(*steps)], **given
    )


def rows(result):
    with (result.save_dir / "results.csv").open() as file:
        return [{k.strip(): v.strip() for k, v in row.items()} for row in csv.DictReader(file)]


def finite(result):
    return all(v.isfinite().all() for v in checkpoint.read(result.last).state.values() if v.is_floating_point())


def test_a_float16_run_lowers_its_scale_counts_what_it_left_out_and_reports_both(toy, boxes_set, tmp_path, mode):
    mode(FLOAT16)
    done = train(boxes_set, tmp_path, 1, 4)
    assert done.precision == "float16"
    assert done.skipped == 2 and done.updates == 2 * STEPS - 2
    assert [int(r["skipped"]) for r in rows(done)] == [1, 2]
    assert [float(r["scale"]) for r in rows(done)] == [512, 256]  # halved at every overflow
    assert finite(done)


def test_other_precisions_have_no_scale_but_the_same_count(toy, boxes_set, tmp_path, mode):
    mode(BFLOAT16)
    done = train(boxes_set, tmp_path, 1, 4, on_nonfinite="skip")
    assert done.precision == "bfloat16" and done.skipped == 2 and done.updates == 2 * STEPS - 2
    assert [r["skipped"] for r in rows(done)] == ["1", "2"]
    assert not any(k.startswith("scale") for k in rows(done)[0])
    assert finite(done)


@pytest.mark.parametrize(
    ("ran", "given", "words"),
    [
        (FLOAT16, {}, r"3 steps in a row overflowed in float16 \(loss scale 128\).*Try amp_dtype=bfloat16"),
        (
            BFLOAT16,
            {"on_nonfinite": "skip"},
            r"3 steps in a row .*not finite in bfloat16.*smaller lr0, clip=1, or amp=false",
        ),
        (FLOAT32, {"on_nonfinite": "skip"}, r"3 steps in a row .*not finite in float32.*smaller lr0, clip=1\."),
    ],
    ids=["float16", "bfloat16", "float32"],
)
def test_too_many_in_a_row_stop_the_run_with_advice(toy, boxes_set, tmp_path, mode, monkeypatch, ran, given, words):
    monkeypatch.setattr(precision, "MOST_SKIPPED", 2)
    mode(ran)
    with pytest.raises(TrainingError, match=words):
        train(boxes_set, tmp_path, *range(1, 99), **given)


def test_a_loss_that_is_never_finite_again_stops_the_run_too(toy, boxes_set, tmp_path, monkeypatch):
    class Infinite(toy_family.ToyLoss):
        def compute(self, boxes, logits, targets, step):
            terms = super().compute(boxes, logits, targets, step)
            return type(terms)({k: v + float("inf") for k, v in terms.terms.items()})

    monkeypatch.setattr(precision, "MOST_SKIPPED", 2)
    monkeypatch.setattr(toy_family, "ToyLoss", Infinite)
    with pytest.raises(TrainingError, match="3 steps in a row were left out"):
        train(boxes_set, tmp_path, on_nonfinite="skip")


def test_a_step_that_is_made_begins_the_count_in_a_row_anew(monkeypatch):
    monkeypatch.setattr(precision, "MOST_SKIPPED", 2)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = Scaler(FLOAT32, guarded=True)
    for bad in (True, True, False, True, True):
        weight.grad = torch.full((2,), float("nan") if bad else 1.0)
        assert scaler.step(optimizer, [weight], None) is not bad
    assert (scaler.skipped, scaler.in_a_row) == (4, 2) and torch.equal(weight.data, torch.full((2,), 0.9))


def test_the_guard_changes_no_bit_of_a_step_that_is_finite():
    weights = []
    for guarded in (False, True):
        weight = torch.nn.Parameter(torch.ones(5))
        weight.grad = torch.tensor([0.1, -3.0, 1e-30, 7e8, 0.3])
        Scaler(FLOAT32, guarded=guarded).step(torch.optim.SGD([weight], lr=0.1), [weight], None)
        weights.append(weight.data)
    assert torch.equal(*weights)


def test_counts_survive_a_checkpoint():
    scaler = Scaler(FLOAT16)
    scaler.leave_out()
    other = Scaler(FLOAT16)
    other.load_state_dict(scaler.state_dict())
    assert (other.skipped, other.in_a_row) == (1, 1)


@pytest.mark.parametrize(
    ("has", "dtype", "runs", "words"),
    [
        (True, "bfloat16", torch.bfloat16, ""),
        (False, "bfloat16", torch.float32, "this processor has no bfloat16 instructions, float32 runs instead"),
        (True, "float16", torch.float32, "float16 brings nothing on a CPU, float32 runs instead"),
    ],
)
def test_what_a_cpu_cannot_do_is_one_line_that_says_what_runs_instead(monkeypatch, caplog, has, dtype, runs, words):
    monkeypatch.setattr(precision, "cpu_has_bfloat16", lambda: has)
    logging.getLogger("libreyolo").propagate = True
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        assert precision.choose_mode(True, dtype, torch.device("cpu")).dtype == runs
    assert len(caplog.records) == bool(words) and words in caplog.text


def test_a_loss_whose_areas_overflow_float16_fails_the_check(toy, monkeypatch):
    from libreyolo_core.losses import LossTerms
    from libreyolo_core.testing import check_family

    class Areas(toy_family.ToyLoss):
        def __call__(self, outputs, targets, step):
            terms = super().__call__(outputs, targets, step).terms
            sides = (targets.boxes[..., 2:] - targets.boxes[..., :2]).to(outputs["boxes"].dtype)
            area = (sides[..., 0] * sides[..., 1]).sum().float()
            return LossTerms({**terms, "area": area - area.detach() + terms["box"]})

    monkeypatch.setattr(toy_family, "ToyLoss", Areas)
    (row,) = check_family("toy", only=["precision"]).rows
    assert row["status"] == "failed" and "area is nan for outputs in float16 of 320 x 320 pixels" in row["detail"]
