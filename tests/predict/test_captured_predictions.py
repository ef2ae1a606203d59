"""Predictions from recordings equal eager ones, and the model says how many there were of each."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fake_cuda
import toy_family
from libreyolo_core import LibreYOLO
from libreyolo_core.engine import capture, inference
from libreyolo_core.engine.inference import tensors_of
from libreyolo_core.family import Capture


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setenv("LIBREYOLO_CAPTURE_BACKEND", "replay")


@pytest.fixture
def lines(caplog):
    logging.getLogger("libreyolo").propagate = True
    caplog.set_level(logging.INFO, logger="libreyolo")
    return lambda: [r.message for r in caplog.records if r.message.startswith("cuda_graph")]


def make():
    torch.manual_seed(0)
    return LibreYOLO("toy-s", pretrained=False, device="cpu")


def photos(count, side=64, seed=0):
    return list(np.random.default_rng(seed).integers(0, 255, (count, side, side, 3), dtype=np.uint8))


def boxes(results):
    return [r.boxes.data for r in results]


def counts(model):
    return tuple(model.capture[k] for k in ("captured", "replayed", "eager"))


def test_replayed_predictions_are_the_eager_ones(toy, recording, lines):
    model, source = make(), photos(7)
    eager = boxes(model.predict(source, conf=0.0, verbose=False))
    assert model.capture == {}
    found = boxes(model.predict(source, conf=0.0, cuda_graph=True))
    assert all(torch.equal(a, b) for a, b in zip(eager, found, strict=True)) and sum(len(b) for b in found)
    assert counts(model) == (1, 5, 2)
    assert lines()[-1] == "cuda_graph: 1 shapes recorded, 5 predictions replayed, 2 eager"


def test_graphs_of_a_gpu_give_predictions_that_are_the_callers_to_keep(toy, monkeypatch):
    from libreyolo_core.engine.cuda_graphs import CudaGraphs

    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(inference, "choose_backend", lambda device: (CudaGraphs(), ""))
    model = make()
    infer = model.infer_captured(True)
    images = [torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8) for _ in range(6)]
    found = [infer(i) for i in images]
    assert counts(model) == (1, 4, 2) and fake_cuda.FakeGraph.replays == 4
    for image, predictions in zip(images, found, strict=True):
        expected = tensors_of(model.infer(image))
        assert all(torch.equal(a, b) for a, b in zip(expected, tensors_of(predictions), strict=True))


def test_once_recorded_the_networks_python_runs_no_more_and_weights_changed_in_place_count(toy, recording):
    model, (image,) = make(), photos(1)
    for _ in range(3):
        model.predict(image, cuda_graph=True, verbose=False)
    with torch.no_grad():
        model.network.head.bias.add_(0.5)
    expected = boxes(model.predict(image, conf=0.0, verbose=False))
    model.network.region = None
    found = boxes(model.predict(image, conf=0.0, cuda_graph=True, verbose=False))
    assert torch.equal(expected[0], found[0])


def test_shapes_beyond_the_bound_push_out_the_least_recently_used(toy, recording, monkeypatch, lines):
    monkeypatch.setattr(inference.CapturedInference, "most", 2)
    model = make()

    def go(side, times):
        for image in photos(times, side):
            model.predict(image, imgsz=side, cuda_graph=True, verbose=False)

    for side in (64, 96):
        go(side, 3)
    go(64, 1)  # 96 is now the oldest
    go(128, 3)
    assert counts(model) == (3, 4, 6)
    go(64, 1)
    assert counts(model) == (3, 5, 6)
    go(96, 1)  # gone: eager until it has come three times again
    assert counts(model) == (3, 5, 7)
    assert sum("least recently used" in line for line in lines()) == 1


def test_without_a_device_for_it_true_says_so_once_and_auto_says_nothing(toy, lines):
    model, source = make(), photos(2)
    model.predict(source, cuda_graph="auto", verbose=False)
    assert lines() == []
    (reason,) = model.capture["reasons"]
    assert "CUDA graphs need a CUDA device" in reason and counts(model) == (0, 0, 2)
    for _ in range(2):
        model.predict(source, cuda_graph=True, verbose=False)
    assert lines() == [f"cuda_graph: {reason}"]
    assert reason.endswith("; predictions run eagerly")


class Breaks(capture.Replay):
    """A backend that fails at capture, or at the second replay."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def record_inference(self, network, images):
        if self.at == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        recorded = super().record_inference(network, images)

        def play(images):
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("graph is gone")
            return recorded(images)

        return play


@pytest.mark.parametrize(("at", "line"), [("capture", "capture failed"), ("replay", "a replay failed")])
def test_a_failure_is_one_line_and_predictions_go_on_eagerly(toy, recording, monkeypatch, lines, at, line):
    monkeypatch.setattr(capture, "Replay", lambda: Breaks(at))
    model, source = make(), photos(6)
    eager = boxes(model.predict(source, conf=0.0, verbose=False))
    found = boxes(model.predict(source, conf=0.0, cuda_graph=True, verbose=False))
    assert all(torch.equal(a, b) for a, b in zip(eager, found, strict=True))
    assert sum(line in text for text in lines()) == 1
    assert model.capture["eager"] >= 4


def test_a_sheet_can_rule_it_out(entry_points, recording, monkeypatch, lines):
    family = toy_family.FAMILY
    ruled_out = Capture("network", inference_off_reason="it picks queries on the host")
    task = replace(family.tasks["detect"], capture=ruled_out)
    monkeypatch.setattr(toy_family, "FAMILY", replace(family, tasks={"detect": task}))
    entry_points(toy="toy_family")
    model = make()
    model.predict(photos(4), cuda_graph=True, verbose=False)
    assert counts(model) == (0, 0, 4)
    assert "it picks queries on the host; predictions run eagerly" in lines()[0]


def test_new_weights_drop_the_recordings(toy, recording, tmp_path):
    model, (image,) = make(), photos(1)
    for _ in range(3):
        model.predict(image, cuda_graph=True, verbose=False)
    assert counts(model) == (1, 1, 2)
    model.network.double().float()  # the same numbers in other memory
    model.predict(image, cuda_graph=True, verbose=False)
    assert any("elsewhere in memory" in reason for reason in model.capture["reasons"])
    assert counts(model) == (1, 1, 3)


def test_the_command_reports_the_counts(toy, recording, tmp_path):
    from PIL import Image

    from libreyolo_core.cli.group import cli

    for i, photo in enumerate(photos(4)):
        Image.fromarray(photo).save(tmp_path / f"{i}.png")
    weights = make().save(tmp_path / "toy.pt")
    done = CliRunner().invoke(
        cli, ["predict", f"model={weights}", f"source={tmp_path}/*.png", "cuda_graph=true", "--json"]
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["capture"]["captured"], document["capture"]["replayed"], len(document["results"])) == (1, 2, 4)
