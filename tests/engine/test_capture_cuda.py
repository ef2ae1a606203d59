"""The backend for CUDA graphs, with graphs that a CPU can replay: memory stays where the capture left it."""

import pytest
import torch

import fake_cuda
from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import accelerate
from libreyolo_core.engine.capture import Captured, CapturedStep
from libreyolo_core.engine.cuda_graphs import CudaGraphs
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.testing.steps import subject


@pytest.fixture
def graphs(monkeypatch):
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(accelerate, "choose_backend", lambda device: (CudaGraphs(), ""))


def train(data, folder, **given):
    given = {
        "epochs": 4, "batch": 4, "workers": 0, "plots": False, "project": str(folder), "device": "cpu", **given
    }  # fmt: skip
    return LibreYOLO("toy-s", pretrained=False, device="cpu").train(data=str(data), **given)


@pytest.mark.parametrize(
    "given",
    [{}, {"nbs": 8, "freeze": "stem"}, {"epochs": 8, "no_aug_epochs": 4, "amp": True, "amp_dtype": "bfloat16"}],
    ids=["plain", "accumulation and a frozen part", "bfloat16 and a change of network and loss"],
)
def test_a_run_of_graphs_is_the_eager_one(toy, boxes_set, tmp_path, graphs, given):
    eager = checkpoint.read(train(boxes_set, tmp_path, **given).last).training["raw"]
    for what, launches in ((True, 2), ("full", 1)):
        fake_cuda.FakeGraph.replays = 0
        done = train(boxes_set, tmp_path, cuda_graph=what, **given)
        assert done.capture["captured"] >= 2
        assert fake_cuda.FakeGraph.replays == launches * done.capture["replayed"] > 0
        captured = checkpoint.read(done.last).training["raw"]
        assert all(torch.equal(eager[name], captured[name]) for name in eager)


def manager_of(who, step, what):
    if what == "full":
        manager = step.whole = CapturedStep(step, CudaGraphs(), who.sheet.capture, seed=lambda: torch.ones(()))
    else:
        manager = step.region = Captured(who.network, CudaGraphs(), who.sheet.capture)
    return manager


@pytest.mark.parametrize("what", [True, "full"])
def test_capturing_leaves_buffers_gradients_and_random_state_alone(toy, graphs, what):
    who = subject("toy", nc=3)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    manager = manager_of(who, step, what)
    batch = who.batch([1, 2], 64)
    images = batch.images.float()
    first = next(who.network.parameters())
    first.grad = torch.ones_like(first)
    before = {k: v.clone() for k, v in who.network.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    manager.record(images, *((batch.targets, batch.draw, torch.ones(())) if what == "full" else (batch.draw,)))
    assert all(torch.equal(v, before[k]) for k, v in who.network.state_dict().items())
    assert torch.equal(first.grad, torch.ones_like(first))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("what", [True, "full"])
def test_gradients_that_were_handed_out_survive_the_next_replay(toy, graphs, what):
    who = subject("toy", nc=3)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    manager = manager_of(who, step, what)
    kept = []
    for number in range(5):
        who.network.zero_grad(set_to_none=True)
        step(who.batch([1, 2], 64, seed=number)).total.backward()
        kept.append([(p.grad, p.grad.clone()) for p in who.network.parameters()])
    assert manager.counts.replayed == 3
    assert all(torch.equal(grad, copy) for row in kept for grad, copy in row)


def test_a_capture_that_fails_leaves_the_current_stream_as_it_was(toy, graphs, monkeypatch):
    who = subject("toy", nc=3)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    streams = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "mine")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    manager = manager_of(who, step, "full")

    def breaks(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("libreyolo_core.engine.cuda_graphs.warm_up", breaks)
    for number in range(4):
        step(who.batch([1, 2], 64, seed=number)).total.backward()
    assert streams == ["mine"] and manager.counts.eager == 4
    assert "capture failed" in manager.counts.reasons[-1]
