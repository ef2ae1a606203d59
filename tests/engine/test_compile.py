"""torch.compile on a region: numbers and files of an ordinary run, one line for whatever it could not do.

Most cases compile with torch's backend ``eager``, which traces like any other and then runs the same operations: quick,
and bit for bit.
"""

import logging
import shutil
import sys

import pytest
import torch
from torch import nn

import fake_cuda
from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import compiling
from libreyolo_core.engine.accelerate import accelerate
from libreyolo_core.engine.compiling import Compiled
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.family import with_path
from libreyolo_core.losses import Ranks
from libreyolo_core.network import Network
from libreyolo_core.testing.steps import subject

CPU = torch.device("cpu")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(compiling, "COMPILER", "eager")


def train(data, folder, **given):
    given = {
        "epochs": 2, "batch": 4, "workers": 0, "plots": False, "project": str(folder), "device": "cpu", **given
    }  # fmt: skip
    return LibreYOLO("toy-s", pretrained=False, device="cpu").train(data=str(data), **given)


def same(a, b):
    a, b = (checkpoint.read(r.last) for r in (a, b))
    assert list(a.state) == list(b.state)
    return all(
        torch.equal(a.state[k], b.state[k]) and torch.equal(a.training["raw"][k], b.training["raw"][k]) for k in a.state
    )


class Small(Network):
    """A network that is traced in no time."""

    def __init__(self, side=4):
        super().__init__()
        self.conv = nn.Conv2d(3, side, 3)
        self.norm = nn.BatchNorm2d(side)

    def region(self, images, draw=None):
        return {"out": self.norm(self.conv(images))}


def step_on(manager, images):
    manager(images, torch.arange(len(images)))["out"].square().mean().backward()


@pytest.mark.parametrize(
    "given",
    [{}, {"epochs": 4, "no_aug_epochs": 2, "nbs": 8, "freeze": "stem"}],
    ids=["plain", "accumulation, a frozen part and a change of the network"],
)
def test_a_compiled_run_is_the_ordinary_one(toy, boxes_set, tmp_path, quick, given):
    compiled = train(boxes_set, tmp_path, compile=True, **given)
    assert same(train(boxes_set, tmp_path, **given), compiled)
    epochs = given.get("epochs", 2)
    counts = compiled.compile
    assert (counts["mode"], counts["shapes"], counts["graphs"]) == ("default", epochs // 2, epochs // 2)
    # two batches of 4 an epoch, and one of 2, which does not come often enough
    assert (counts["compiled"], counts["eager"], counts["recompiled"]) == (2 * epochs, epochs, 0)
    assert any("changes the network: compiled anew" in reason for reason in counts["reasons"]) == (epochs == 4)


def test_the_log_says_what_was_compiled_and_how_many_steps_ran_it(toy, boxes_set, tmp_path, quick, caplog):
    logging.getLogger("libreyolo").propagate = True
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        train(boxes_set, tmp_path, compile=True)
    assert "compile: compiled for images 4x3x64x64 in " in caplog.text
    assert "compile: 1 shapes in 1 graphs, 0 recompilations, " in caplog.text
    assert "4 steps compiled, 2 eager" in caplog.text


def test_compiling_leaves_buffers_gradients_and_random_state_alone(quick):
    network = Small().train()
    manager = Compiled(network, "default", CPU)
    network.conv.bias.grad = torch.ones(4)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    manager._compiled(("a shape",), torch.rand(2, 3, 8, 8), torch.arange(2))
    torch.manual_seed(3)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert torch.equal(network.conv.bias.grad, torch.ones(4))
    assert torch.equal(torch.rand(1), expected)


def test_a_further_shape_is_compiled_once_it_has_come_often(quick, monkeypatch):
    monkeypatch.setattr(compiling, "OFTEN", 3)
    manager = Compiled(Small().train(), "default", CPU)
    step_on(manager, torch.rand(2, 3, 8, 8))
    for _ in range(4):
        step_on(manager, torch.rand(1, 3, 8, 8))
    counts = manager.counts
    assert (counts.shapes, counts.compiled, counts.eager) == (2, 3, 2)


def test_more_shapes_than_are_kept_run_eagerly_with_one_line(quick, monkeypatch):
    monkeypatch.setattr(compiling, "OFTEN", 1)
    monkeypatch.setattr(compiling, "MOST_SHAPES", 1)
    manager = Compiled(Small().train(), "default", CPU)
    for side in (8, 9, 10, 8):
        step_on(manager, torch.rand(2, 3, side, side))
    assert (manager.counts.shapes, manager.counts.compiled, manager.counts.eager) == (1, 2, 2)
    assert manager.counts.reasons[1:] == ["1 shapes are compiled, the most at a time; steps of others run eagerly"]


def test_every_network_of_a_process_is_compiled_however_many_there_are(quick):
    # torch keeps eight compilations per code object and runs eagerly after that, without a word
    for _ in range(10):
        manager = Compiled(Small().train(), "default", CPU)
        step_on(manager, torch.rand(2, 3, 8, 8))
        assert manager.counts.graphs == 1


def test_a_graph_break_shows_in_the_number_of_graphs(quick):
    class Reads(Small):
        def region(self, images, draw=None):
            out = self.conv(images)
            if float(out.detach().sum()) > 1e9:
                out = out * 2
            return {"out": self.norm(out)}

    manager = Compiled(Reads().train(), "default", CPU)
    step_on(manager, torch.rand(2, 3, 8, 8))
    assert manager.counts.graphs == 2 and "2 graphs" in manager.counts.reasons[0]


@pytest.mark.parametrize("at", ["trace", "compile", "run"])
def test_a_failure_is_one_line_and_the_rest_of_the_run_is_eager(toy, boxes_set, tmp_path, monkeypatch, at):
    def compile_region(network, mode):
        calls = []

        def region(images, draw):
            calls.append(1)
            if at == "trace" or (at == "run" and len(calls) == 3):
                raise RuntimeError("no C++ compiler")
            if at == "compile":  # shows only when the backward is compiled
                return {k: Breaks.apply(v) for k, v in network.region(images, draw).items()}
            return network.region(images, draw)

        return region

    monkeypatch.setattr(compiling, "compile_region", compile_region)
    done = train(boxes_set, tmp_path, compile=True)
    counts = done.compile
    line = {"run": "compiled code failed"}.get(at, "compiling failed") + " (RuntimeError: no C++ compiler)"
    assert [line in reason for reason in counts["reasons"]].count(True) == 1
    assert done.epochs == 2 and counts["eager"] == {"run": 5}.get(at, 6)
    assert same(train(boxes_set, tmp_path), done)


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no C++ compiler")


def test_a_device_without_memory_for_it_says_what_helps(monkeypatch):
    def compile_region(network, mode):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr(compiling, "compile_region", compile_region)
    manager = Compiled(Small().train(), "default", CPU)
    step_on(manager, torch.rand(2, 3, 8, 8))
    assert manager.counts.reasons == [
        "compiling ran out of memory; use a smaller batch, or compile=false; the network runs eagerly"
    ]


def test_graphs_of_the_compiler_on_a_cpu_are_one_line():
    manager = Compiled(Small(), "reduce-overhead", CPU)
    assert manager.mode == manager.close()["mode"] == "default"
    assert manager.counts.reasons == [
        "mode=reduce-overhead means CUDA graphs, which a cpu has not: it compiles as 'default'"
    ]


def parts(device, **given):
    who = subject("toy", nc=3)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    given = {"cuda_graph": False, "compile": False, **given}
    return step, *accelerate(step, who.sheet, device, seed=lambda: torch.ones(()), **given)


def test_statistics_over_all_ranks_are_not_compiled_and_a_line_says_so(toy):
    class Two(Ranks):
        size = 2

    who = subject("toy", nc=3)
    for sync_bn in (True, False):
        sheet = with_path(who.sheet, "ranks.sync_bn", sync_bn)
        step = TrainStep(who.network, sheet.loss, sheet.input, Two())
        compiled, _ = accelerate(step, sheet, CPU, cuda_graph=False, compile=True, seed=lambda: torch.ones(()))
        assert compiled.on != sync_bn
        assert any("sync_bn=false would allow it" in reason for reason in compiled.counts.reasons) == sync_bn


def test_one_of_two_ways_to_cuda_graphs_wins_and_says_so(toy, monkeypatch):
    fake_cuda.install(monkeypatch)
    step, compiled, captured = parts(torch.device("cuda"), cuda_graph=True, compile="reduce-overhead")
    assert compiled.mode == "default" and captured.backend
    assert compiled.counts.reasons == [
        "mode=reduce-overhead means CUDA graphs, and so does cuda_graph: that one captures them"
    ]
    assert step.region is captured and captured.region is compiled and captured.eager is compiled


def test_a_whole_step_is_recorded_around_the_compiled_region(toy, monkeypatch):
    fake_cuda.install(monkeypatch)
    step, compiled, captured = parts(torch.device("cuda"), cuda_graph="full", compile=True)
    assert step.whole is captured and step.region is compiled


def test_recorded_operations_are_those_of_the_network_itself_and_a_line_says_so(
    toy, boxes_set, tmp_path, quick, monkeypatch
):
    monkeypatch.setenv("LIBREYOLO_CAPTURE_BACKEND", "replay")
    both = train(boxes_set, tmp_path, compile=True, cuda_graph=True, epochs=3)
    assert same(train(boxes_set, tmp_path, epochs=3), both)
    assert both.capture["reasons"][1:] == ["what is recorded is the network's Python, not what compile made of it"]
    # batches of 4: two steps of compiled code, then recorded
    assert (both.compile["compiled"], both.capture["replayed"], both.capture["captured"]) == (2, 5, 2)


@pytest.mark.skipif(
    sys.platform == "win32" or not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)
def test_real_compiled_code_trains_within_a_thousandth_of_eager(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")

    def losses(compile):
        torch.manual_seed(0)
        network = Small().train()
        compiled = Compiled(network, "default", CPU) if compile else None
        region = compiled or network.region
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        found = []
        for number in range(20):
            images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(number))
            total = (region(images, None)["out"].relu() - images.mean()).square().mean()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            found.append(float(total.detach()))
        return found, compiled

    eager, _ = losses(False)
    found, compiled = losses(True)
    assert (compiled.counts.shapes, compiled.counts.graphs, compiled.counts.compiled) == (1, 1, 20)
    assert eager[-1] < 0.9 * eager[0]
    # compiled code adds in another order; 1e-3 is what 20 steps may make of that
    assert max(abs(a - b) / abs(a) for a, b in zip(eager, found, strict=True)) < 1e-3
