"""A profiled run: what it measures, and that it is otherwise the run it would have been."""

import json
import logging
import random
import time

import numpy as np
import pytest
import torch

import toy_family
from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.config import TrainArgs
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.losses import Ranks
from libreyolo_core.profiler.measuring import profilers
from libreyolo_core.profiler.reading import load_profile
from libreyolo_core.profiler.record import FILES
from libreyolo_core.profiler.verdict import COMPUTE, DATALOADER
from libreyolo_core.profiler.window import BRACKETED, DISCARDED, OVER, PHASES, PLAIN, TRACED, Extent
from libreyolo_core.tasks.detect import DetectTask

SHORT = {"profile": True, "profile_warmup": 1, "profile_steps": 4}


@pytest.fixture
def train(toy, boxes_set, tmp_path):
    """``train(profile=True)`` trains the toy, three batches an epoch."""

    def call(**given):
        given = {"epochs": 3, "workers": 0, "plots": False, "project": str(tmp_path), "device": "cpu", **given}
        return LibreYOLO("toy-s", pretrained=False, device="cpu").train(data=str(boxes_set), **given)

    return call


@pytest.fixture
def said(caplog):
    """What the library logs."""
    logging.getLogger("libreyolo").propagate = True
    caplog.set_level(logging.INFO, logger="libreyolo")
    return caplog


def equal(a, b):
    """Whether two trees of plain values and tensors are the same, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def everything(run):
    """Weights, average, optimizer, scaler and random states of a run, and of this process after it."""
    file = checkpoint.read(run.last)
    training = {k: v for k, v in file.training.items() if k != "train_args"}
    return file.state, training, torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()


@pytest.mark.parametrize("more", [{}, {"nbs": 8}, {"workers": 1}], ids=["plain", "accumulating", "worker"])
def test_a_profiled_run_ends_bit_for_bit_where_an_unprofiled_one_does(train, more):
    without = train(name="without", **more)
    expected = everything(without)
    profiled = train(name="with", **SHORT, **more)
    assert profiled.profile is not None and profiled.epochs == without.epochs == 3
    assert equal(everything(profiled), expected)
    assert profiled.metrics == without.metrics


def test_the_window_leaves_nothing_behind_in_the_run(train):
    class Watch(Callback):
        def __init__(self):
            self.kept, self.replaced = {}, {}

        def look(self, run):
            return {
                "trainer": {n for n in ("train_on", "forward", "update") if n in vars(run)},
                "scaler": {n for n in ("backward",) if n in vars(run.scaler)},
            }

        def on_start(self, run):
            self.batches = run.batches  # called before the profiler, which comes after the caller's own

        def on_step(self, run):
            self.replaced[run.updates] = self.look(run), run.batches is self.batches

    watch = Watch()
    train(callbacks=(watch,), **SHORT)
    inside = ({"trainer": {"train_on", "forward", "update"}, "scaler": {"backward"}}, False)
    outside = ({"trainer": set(), "scaler": set()}, True)
    assert [watch.replaced[i] == inside for i in range(1, 6)] == [True] * 5
    assert [watch.replaced[i] == outside for i in range(6, 10)] == [True] * 4


def test_the_parts_of_a_window_follow_each_other_and_the_tracer_sees_few_steps():
    default = Extent(5, 20)
    assert [default.part(i) for i in (4, 5, 9, 10, 14, 15, 24, 25)] == [
        DISCARDED, PLAIN, PLAIN, TRACED, TRACED, BRACKETED, BRACKETED, OVER,
    ]  # fmt: skip
    assert Extent(0, 400).traced == 5
    smallest = Extent(0, 4)
    assert [smallest.part(i) for i in range(5)] == [PLAIN, TRACED, BRACKETED, BRACKETED, OVER]


def test_a_profile_says_what_ran_and_its_files_are_whole(train, said):
    done = train(profile=True, profile_warmup=2, profile_steps=6, cuda_graph=True, batch=2, multi_scale=0.0)
    assert all((done.save_dir / name).is_file() for name in FILES)
    profile = load_profile(done.profile.path)
    run, numbers, steps = profile["run"], profile["numbers"], profile["steps"]
    assert (run["model"], run["batch"], run["workers"], run["precision"]) == ("toy-s", 2, 0, "float32")
    assert run["capture"]["eager"] == 6 and "need a CUDA device" in run["capture"]["reasons"][0]
    assert profile["window"] == {"warmup": 2, "plain": 3, "traced": 1, "bracketed": 3, "planned": 6}
    assert [s["half"] for s in steps] == ["plain"] * 3 + ["bracketed"] * 3
    assert [set(s.get("phases", ())) for s in steps[2:4]] == [set(), set(PHASES)]
    assert sum(p["share"] for p in profile["phases"]) == pytest.approx(1.0)
    plain = steps[:2]
    assert numbers["step_us"] == pytest.approx(sum(s["step_us"] for s in plain) / 2, abs=0.01)  # the file rounds to ns
    assert numbers["driver_calls_per_step"] is None and numbers["peak_memory_bytes"] > 0
    assert {"aten::mkldnn_convolution", "aten::convolution_backward"} & {k["name"] for k in profile["kernels"]}
    kinds = [lane["kind"] for lane in profile["lanes"]]
    assert kinds[:2] == ["steps", "phases"] and "host" in kinds and len(profile["lanes"][0]["events"]) == 6
    summary = json.loads((done.save_dir / "profile_summary.json").read_text())
    assert "lanes" not in summary and summary["verdict"] == profile["verdict"]
    assert done.profile.verdict.to_dict() == profile["verdict"]
    assert done.to_dict()["profile"]["numbers"] == numbers
    assert profile["verdict"]["name"] in said.text and "what helps" in said.text


def test_operators_of_the_trace_lie_inside_the_traced_steps(train):
    profile = load_profile(train(**SHORT).profile.path)
    traced = next(s for s in profile["steps"] if s["traced"])
    host = next(lane for lane in profile["lanes"] if lane["kind"] == "host")
    operators = [row for row in host["events"] if profile["names"][row[2]] == "aten::convolution_backward"]
    assert operators
    slack = 1000.0  # two clocks are tied to each other by one event
    for begin, duration, _ in operators:
        assert traced["begin_us"] - slack < begin < begin + duration < traced["begin_us"] + traced["step_us"] + slack


class Slow:
    """A data set whose samples are made once, and which sleeps before it answers."""

    def __init__(self, dataset, seconds):
        self.dataset, self.seconds, self.made = dataset, seconds, {}

    def __len__(self):
        return len(self.dataset)

    def prepare(self, canvas):
        self.dataset.prepare(canvas)

    def __getitem__(self, request):
        time.sleep(self.seconds)
        if request.index not in self.made:
            self.made[request.index] = self.dataset[request]
        return self.made[request.index]


@pytest.fixture
def paced(monkeypatch):
    """``paced(load_s, step_s)``: seconds that a sample and a training step take at least, the latter a function of the
    step's number."""

    def install(load_s, step_s):
        dataset, loss, steps = DetectTask.dataset, toy_family.ToyLoss.__call__, iter(range(1000))

        def slow_loss(self, outputs, targets, step):
            time.sleep(step_s(next(steps)) if outputs["boxes"].requires_grad else 0.0)
            return loss(self, outputs, targets, step)

        monkeypatch.setattr(DetectTask, "dataset", lambda *a, **k: Slow(dataset(*a, **k), load_s))
        monkeypatch.setattr(toy_family.ToyLoss, "__call__", slow_loss)

    return install


@pytest.mark.parametrize(("load_s", "name"), [(0.1, DATALOADER), (0.0, COMPUTE)])
def test_a_starved_run_is_dataloader_bound_and_the_same_run_without_the_sleep_is_not(train, paced, load_s, name):
    paced(load_s, lambda _: 0.15)  # 0.4 s of loading a step, or nothing, against 0.15 s of computing
    # the first epoch makes the samples and is discarded
    verdict = train(profile=True, profile_warmup=3, profile_steps=4).profile.verdict
    assert verdict.name == name
    assert name == DATALOADER or "CPU operator time" in verdict.reason


def test_a_slow_second_half_that_lets_the_loader_catch_up_does_not_change_the_verdict(train, paced):
    paced(0.05, lambda step: 0.02 if step < 3 else 0.6)
    profile = train(epochs=2, workers=1, **SHORT).profile
    last = [s for s in profile.record["steps"] if s["half"] == "bracketed"][-1]
    assert profile.verdict.name == DATALOADER
    assert last["wait_us"] < 0.2 * last["step_us"]  # judged by itself this half would hide it


def test_a_run_shorter_than_the_window_says_what_it_measured(train, said):
    done = train(epochs=2, profile=True, profile_warmup=2, profile_steps=16)
    assert done.profile is None and done.epochs == 2
    assert "no verdict, as the run ended after 6 of the 18 steps of the window; 4 measured: " in said.text
    assert not (done.save_dir / "profile.json").exists()


def test_a_run_that_ends_in_the_second_half_is_judged_and_says_so(train, said):
    done = train(epochs=2, profile=True, profile_warmup=1, profile_steps=8)
    assert done.profile.record["window"]["bracketed"] == 1
    assert "the run ended before all 8 were measured" in " ".join(said.text.split())


def test_a_resumed_run_profiles_the_epoch_it_continues_in(train, toy):
    first = train(epochs=1)
    second = LibreYOLO(str(first.last)).train(resume=str(first.last), epochs=4, **SHORT)
    assert [s["epoch"] for s in second.profile.record["steps"]] == [2, 2, 3, 3]
    assert second.profile.record["run"]["epoch"] == 2 and second.epochs == 4


def test_replayed_steps_are_counted_in_the_profile(train, monkeypatch):
    monkeypatch.setenv("LIBREYOLO_CAPTURE_BACKEND", "replay")
    done = train(profile=True, profile_warmup=3, profile_steps=4, cuda_graph=True, batch=5, epochs=5)
    capture = done.profile.record["run"]["capture"]
    assert (capture["captured"], capture["replayed"], capture["eager"]) == (0, 4, 0)


def test_a_profiler_of_the_callers_own_costs_the_report_and_not_the_run(train, said):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        done = train(epochs=2, **SHORT)
    assert done.epochs == 2 and done.profile is None
    assert "no verdict, as a torch.profiler is running already; 1 measured" in said.text
    assert any(event.name == "aten::convolution_backward" for event in own.events())


def test_a_tracer_that_does_not_start_costs_the_report_and_not_the_run(train, said, monkeypatch):
    def refuse(self):
        raise RuntimeError("no permission")

    monkeypatch.setattr("libreyolo_core.profiler.tracer.Tracer.start", refuse)
    done = train(epochs=2, **SHORT)
    assert done.epochs == 2 and done.profile is None
    assert "no verdict, as the tracer did not start (RuntimeError: no permission)" in said.text


def test_a_report_that_cannot_be_written_costs_the_report_and_not_the_run(train, said, monkeypatch):
    def full(path, *rest, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("libreyolo_core.profiler.trace.write_trace", full)
    done = train(epochs=2, **SHORT)
    assert done.epochs == 2 and done.profile is None
    assert "no report (OSError: [Errno 28] No space left on device)" in said.text


def test_several_ranks_ignore_the_profiler_with_a_warning(said):
    ranks = Ranks()
    ranks.size = 2
    assert profilers(TrainArgs("x", profile=True), ranks) == []
    assert "ignored with 2 ranks" in said.text


def test_window_arguments_without_a_profile_are_named(said):
    assert profilers(TrainArgs("x", profile_steps=8), Ranks()) == []
    assert "profile_steps=8 does nothing without profile=true" in said.text and "profile_warmup" not in said.text
