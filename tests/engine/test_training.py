"""Whole runs of a tiny family: exactness, resume, interruption, what a run leaves, and what it refuses."""

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import elastic
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.loggers import read_rows
from libreyolo_core.engine.request import request
from libreyolo_core.errors import LibreYOLOError, TrainingError
from libreyolo_core.family import Change
from toy_family import FAMILY, ToyLoss

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(toy):
    return lambda: LibreYOLO("toy-s", pretrained=False, device="cpu")


def run(model, data, folder, **given):
    given = {"epochs": 3, "workers": 0, "plots": False, "project": str(folder), "device": "cpu", **given}
    return model().train(data=str(data), **given)


def weights(path):
    return checkpoint.read(path).state


def same(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_runs_of_one_seed_are_identical_whatever_the_workers(model, boxes_set, tmp_path):
    alone = run(model, boxes_set, tmp_path, epochs=2, workers=0)
    helped = run(model, boxes_set, tmp_path, epochs=2, workers=2)
    again = run(model, boxes_set, tmp_path, epochs=2, workers=0)
    other = run(model, boxes_set, tmp_path, epochs=2, workers=0, seed=1)
    assert same(alone.last, helped.last) and same(alone.last, again.last)
    assert not same(alone.last, other.last)


KILLED = """
import os, signal, sys
sys.path[:0] = [{support!r}]
import importlib.metadata as metadata
from libreyolo_core import LibreYOLO, registry
from libreyolo_core.engine.callbacks import Callback
registry.entry_points = lambda group: [metadata.EntryPoint("toy", "toy_family", "libreyolo")]

class Kill(Callback):
    def on_step(self, run):
        if run.updates == {step}:
            os.kill(os.getpid(), signal.{signal})

LibreYOLO("toy-s", pretrained=False, device="cpu").train(
    data={data!r}, epochs=3, workers=0, plots=False, project={project!r}, device="cpu", callbacks=[Kill()], **{more!r})
"""


def killed_run(data, project, step, name, **more):
    code = KILLED.format(
        support=str(ROOT / "tests/support"), step=step, signal=name, data=str(data), project=str(project), more=more
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_a_run_killed_in_its_second_epoch_resumes_to_the_weights_of_an_uninterrupted_one(model, boxes_set, tmp_path):
    whole = run(model, boxes_set, tmp_path / "whole")
    dead = killed_run(boxes_set, tmp_path / "killed", 5, "SIGKILL")
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    resumed = model().train(resume=str(tmp_path / "killed" / "exp"))
    assert same(whole.last, resumed.last) and same(whole.best, resumed.best)
    assert resumed.save_dir.resolve() == (tmp_path / "killed" / "exp").resolve()
    a, b = (checkpoint.read(r.last).training for r in (whole, resumed))
    assert a["best"] == b["best"] and a["step"] == b["step"] and a["ema_updates"] == b["ema_updates"]
    for x, y in zip(a["optimizer"]["state"].values(), b["optimizer"]["state"].values(), strict=True):
        assert torch.equal(x["momentum_buffer"], y["momentum_buffer"])
    rows = read_rows(resumed.save_dir / "results.csv")
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert [r["train/loss"] for r in rows] == [r["train/loss"] for r in read_rows(whole.save_dir / "results.csv")]


@pytest.mark.parametrize("step", [2, 4])
def test_ctrl_c_saves_between_two_steps_says_how_to_resume_and_resumes_exactly(model, boxes_set, tmp_path, step):
    whole = run(model, boxes_set, tmp_path / "whole")
    stopped = killed_run(boxes_set, tmp_path / "stopped", step, "SIGINT")
    assert stopped.returncode != 0
    assert f"interrupted at step {step}, saved. Continue with resume=" in stopped.stderr
    resumed = model().train(resume=str(tmp_path / "stopped" / "exp"))
    assert same(whole.last, resumed.last)
    losses = [[r["train/loss"] for r in read_rows(x.save_dir / "results.csv")] for x in (whole, resumed)]
    assert losses[0] == losses[1]


def test_a_resumed_run_uses_the_saved_arguments_and_names_every_new_one(model, boxes_set, tmp_path, caplog):
    logging.getLogger("libreyolo").propagate = True
    first = run(model, boxes_set, tmp_path, epochs=2, lr0=0.003, seed=5)
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        second = model().train(resume=str(first.last), epochs=4)
    assert "resume: epochs=4 instead of 2" in caplog.text
    saved = yaml.safe_load((second.save_dir / "args.yaml").read_text())
    assert (saved["lr0"]["value"], saved["seed"]["value"], saved["epochs"]["value"]) == (0.003, 5, 4)
    assert second.epochs == 4


def test_a_cfg_file_may_resume_and_change_values(model, boxes_set, tmp_path, caplog):
    logging.getLogger("libreyolo").propagate = True
    first = run(model, boxes_set, tmp_path, epochs=2, lr0=0.003)
    cfg = tmp_path / "more.yaml"
    cfg.write_text(f"resume: true\nproject: {tmp_path}\nepochs: 3\n")
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        second = model().train(cfg=str(cfg))
    assert second.save_dir.resolve() == first.save_dir.resolve()
    assert "resume: epochs=3 instead of 2" in caplog.text
    saved = yaml.safe_load((second.save_dir / "args.yaml").read_text())
    assert (saved["lr0"]["value"], saved["epochs"]["value"]) == (0.003, 3)
    # the arguments that a resumed run leaves begin a new one
    third = model().train(cfg=str(second.save_dir / "args.yaml"), name="anew")
    assert third.save_dir == tmp_path / "anew" and third.epochs == 3


def test_a_restart_finds_its_run_where_a_cfg_file_puts_it(model, boxes_set, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    first = run(model, boxes_set, tmp_path, epochs=1)
    run(model, boxes_set, tmp_path, epochs=1, name="other/deep")
    cfg = tmp_path / "cfg.yaml"
    cfg.write_text(f"data: {boxes_set}\nproject: {tmp_path}\n")
    args = request(model(), {"cfg": str(cfg)}).resolved.args
    assert elastic.resumed(args.project, args.name) == {"resume": str(first.save_dir.resolve())}
    deep = tmp_path / "other" / "deep"
    assert elastic.resumed(args.project, "other/deep") == {"resume": str(deep.resolve())}
    (deep / "weights" / "last.pt").unlink()  # killed before its first checkpoint
    assert elastic.resumed(args.project, "other/deep") == {"name": "other/deep", "exist_ok": True}
    assert elastic.resumed(args.project, "new") == {}
    elastic.begin()  # the script's next training
    assert elastic.resumed(args.project, args.name) == {}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    assert elastic.resumed(args.project, args.name) == {}


def test_a_finished_run_says_so_and_how_to_extend_it(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=1)
    with pytest.raises(LibreYOLOError, match="is finished: all 1 epochs.*epochs= above 1"):
        model().train(resume=str(done.save_dir))


def test_best_weights_hold_no_training_state_and_cannot_be_resumed(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=1)
    assert "optimizer" not in checkpoint.read(done.best).training
    with pytest.raises(LibreYOLOError, match="no training state.*last.pt"):
        model().train(resume=str(done.best))


def test_a_run_leaves_every_file_and_nothing_outside_its_folder(model, boxes_set, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(model, boxes_set, tmp_path / "runs", plots=True, loggers="csv,tensorboard")
    left = {p.name for p in done.save_dir.rglob("*")}
    assert left >= {
        "best.pt", "last.pt", "results.csv", "results.png", "labels.png", "train_batch0.jpg", "val_predictions.jpg",
        "confusion_matrix.png", "PR_curve.png", "args.yaml", "dataset_report.txt", "environment.txt", "train.log",
    }  # fmt: skip
    assert any(n.startswith("events.out.tfevents") for n in left)
    assert {p.name for p in tmp_path.iterdir()} == {"boxes", "runs"}
    umask = os.umask(0)
    os.umask(umask)
    assert (done.best.stat().st_mode & 0o777) == 0o666 & ~umask


def test_args_yaml_says_where_every_value_came_from(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=2, lr0=0.02)
    table = yaml.safe_load((done.save_dir / "args.yaml").read_text())
    assert table["lr0"] == {"value": 0.02, "from": "user"}
    assert table["momentum"] == {"value": 0.9, "from": "family"}
    assert table["strict"] == {"value": False, "from": "core"}
    assert table["mixup_prob"]["from"] == "not offered"


def test_custom_class_names_survive_training_saving_and_loading(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=1)
    assert LibreYOLO(done.best, device="cpu").names == {0: "red", 1: "green"}


def test_a_fine_tune_keeps_everything_but_the_head_and_names_it(model, boxes_set, tmp_path, caplog):
    start = model()
    path = start.save(tmp_path / "four.pt")
    logging.getLogger("libreyolo").propagate = True
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        tuned = LibreYOLO(path, device="cpu")
        tuned.train(
            data=str(boxes_set), epochs=1, lr0=1e-9, workers=0, plots=False, project=str(tmp_path), device="cpu"
        )
    assert "head.weight" in caplog.text and "head.bias" in caplog.text
    for key, value in weights(path).items():
        if key.startswith(("stem.0", "body.0")):
            assert torch.allclose(tuned.network.state_dict()[key], value, atol=1e-6), key  # three steps at lr 1e-9


def test_pretrained_off_starts_afresh_even_from_a_model_with_weights(model, boxes_set, tmp_path):
    file = run(model, boxes_set, tmp_path, epochs=2).best
    afresh = run(lambda: LibreYOLO(file, device="cpu"), boxes_set, tmp_path, epochs=1, pretrained=False)
    assert same(afresh.last, run(model, boxes_set, tmp_path, epochs=1).last)


def test_the_optimizer_steps_once_per_window(model, boxes_set, tmp_path):
    class Count(Callback):
        def __init__(self):
            self.steps = []

        def on_step(self, run):
            self.steps.append(run.updates)

    count = Count()
    done = run(model, boxes_set, tmp_path, epochs=2, batch=2, nbs=4, callbacks=[count])
    assert done.updates == 2 * 3 and count.steps == list(range(1, 7))


class Poisoned(ToyLoss):
    """Returns NaN at its third call."""

    calls = 0

    def __call__(self, outputs, targets, step):
        terms = super().__call__(outputs, targets, step)
        Poisoned.calls += 1
        if Poisoned.calls == 3:
            terms.terms["cls"] = terms.terms["cls"] * float("nan")
        return terms


@pytest.fixture
def poisoned(monkeypatch):
    import toy_family

    Poisoned.calls = 0
    monkeypatch.setattr(toy_family, "ToyLoss", Poisoned)


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_no_best(model, boxes_set, tmp_path, poisoned):
    with pytest.raises(TrainingError, match="not finite at step 2: cls, total.*boxes/images/train"):
        run(model, boxes_set, tmp_path)
    assert not list(tmp_path.rglob("best.pt"))


def test_or_is_skipped_and_counted_when_asked(model, boxes_set, tmp_path, poisoned):
    done = run(model, boxes_set, tmp_path, on_nonfinite="skip")
    assert done.skipped == 1 and done.epochs == 3
    assert all(v.isfinite().all() for v in weights(done.last).values())


def test_schedule_and_average_wait_for_the_optimizer_when_a_step_overflows(model, boxes_set, tmp_path, monkeypatch):
    from libreyolo_core.engine.precision import Scaler

    step, calls = Scaler.step, []

    def overflows_once(self, optimizer, parameters, clip):
        calls.append(optimizer.param_groups[0]["lr"])
        if len(calls) == 2:
            self.skipped += 1
            return False
        return step(self, optimizer, parameters, clip)

    monkeypatch.setattr(Scaler, "step", overflows_once)
    done = run(model, boxes_set, tmp_path, epochs=2)
    assert done.updates == 5 and done.skipped == 1 and len(calls) == 6
    assert calls[1] == calls[2]  # the step after the skipped one has the rate that the skipped one had
    assert checkpoint.read(done.last).training["ema_updates"] == 5
    assert [r["skipped"] for r in read_rows(done.save_dir / "results.csv")] == ["1", "1"]


def test_a_run_without_better_metric_stops_after_its_patience(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=9, patience=2, lr0=1e-9)
    assert done.epochs < 9


def test_frozen_parameters_do_not_move(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=1, freeze="stem")
    torch.manual_seed(0)
    fresh = LibreYOLO("toy-s", pretrained=False, nc=2, device="cpu")
    after = weights(done.last)
    torch.manual_seed(0)
    start = type(fresh.network)(nc=2, width=8).state_dict()
    for key in start:
        if key.startswith("stem"):
            assert torch.equal(after[key], start[key]), key
    assert not torch.equal(after["head.weight"], start["head.weight"])


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 0},
        {"imgsz": 100},
        {"data": "no/such.yaml"},
        {"device": "0,x"},
        {"loggers": "csvv"},
        {"loss": "sharp"},
        {"freeze": "backbone"},
        {"cuda_graph": "whole"},
        {"compile": "fastest"},
        {"name": "../outside"},
        {"resume": "no/such/run"},
        {"cfg": "no/such.yaml"},
    ],
)
def test_a_bad_request_is_one_line_and_leaves_no_folder(model, boxes_set, tmp_path, given, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibreYOLOError) as error:
        model().train(**{"data": str(boxes_set), "workers": 0, **given})
    assert "\n" not in str(error.value) and error.value.mend
    assert {p.name for p in tmp_path.iterdir()} == {"boxes"}


def test_a_named_run_never_overwrites_another(model, boxes_set, tmp_path):
    run(model, boxes_set, tmp_path, epochs=1, name="mine")
    with pytest.raises(LibreYOLOError, match="mine exists.*exist_ok=true"):
        run(model, boxes_set, tmp_path, epochs=1, name="mine")
    assert run(model, boxes_set, tmp_path, epochs=1, name="mine", exist_ok=True).save_dir.name == "mine"


def test_a_set_without_a_val_split_trains_and_its_last_weights_count(model, boxes_set, tmp_path, caplog):
    logging.getLogger("libreyolo").propagate = True
    file = boxes_set.with_name("train_only.yaml")
    file.write_text("path: .\ntrain: images/train\nnames: [red, green]\n")
    done = run(model, file, tmp_path)
    assert done.best == done.last and "no val split" in caplog.text


def test_the_phase_of_the_tail_reaches_network_loss_and_log(model, boxes_set, tmp_path):
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_phase(self, run, change):
            self.seen.append((change.epoch, run.network.sharp, run.step_module.loss.extra))

    watch = Watch()
    done = run(model, boxes_set, tmp_path, epochs=4, callbacks=[watch])
    assert watch.seen == [(0, False, 0.0), (3, True, 1.0)]
    rows = read_rows(done.save_dir / "results.csv")
    assert rows[0]["train/extra"] == "" and float(rows[3]["train/extra"]) > 0


def test_val_gives_the_metrics_of_the_best_epoch(model, boxes_set, tmp_path):
    done = run(model, boxes_set, tmp_path, epochs=2)
    again = LibreYOLO(done.best, device="cpu").val(data=str(boxes_set), plots=False, workers=0)
    # same weights, same code; another memory format of the weights moves a confidence by its last bit
    assert again.values == pytest.approx(done.metrics, abs=2e-7)
    json.dumps(again.to_dict())


def test_a_change_reaches_the_moving_average(model, boxes_set, tmp_path, monkeypatch):
    sheet = FAMILY.tasks["detect"]
    monkeypatch.setitem(FAMILY.tasks, "detect", replace(sheet, changes=(Change(1, {"recipe.ema.ramp": 0.0}),)))
    seen = []

    class Decay(Callback):
        def on_step(self, run):
            seen.append((run.epoch, run.average.decay(run.average.updates)))

    run(model, boxes_set, tmp_path, epochs=2, callbacks=[Decay()])
    assert all(decay < 0.5 for epoch, decay in seen if epoch == 0)
    assert all(decay == 0.99 for epoch, decay in seen if epoch == 1) and seen[-1][0] == 1
