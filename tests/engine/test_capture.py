"""Capture through the backend that records operations: runs equal eager ones bit for bit, and say what they did."""

import logging

import pytest
import torch

from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import capture
from libreyolo_core.engine.capture import Captured, Replay
from libreyolo_core.engine.recording import Recorded
from libreyolo_core.family import Capture
from toy_family import ToyNetwork


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setenv("LIBREYOLO_CAPTURE_BACKEND", "replay")


def train(data, folder, **given):
    given = {
        "epochs": 4, "batch": 4, "workers": 0, "plots": False, "project": str(folder), "device": "cpu", **given
    }  # fmt: skip
    return LibreYOLO("toy-s", pretrained=False, device="cpu").train(data=str(data), **given)


def same(a, b):
    a, b = (checkpoint.read(r.last) for r in (a, b))
    return all(
        torch.equal(a.state[k], b.state[k]) and torch.equal(a.training["raw"][k], b.training["raw"][k]) for k in a.state
    )


@pytest.mark.parametrize(
    "given",
    [{}, {"nbs": 8}, {"freeze": "stem"}, {"multi_scale": 0.5}, {"amp_dtype": "bfloat16"}, {"eval_interval": 2}],
    ids=["plain", "accumulation", "frozen part", "several shapes", "bfloat16", "validation in between"],
)
def test_a_captured_run_is_the_eager_one(toy, boxes_set, tmp_path, recording, given):
    eager = train(boxes_set, tmp_path, **given)
    captured = train(boxes_set, tmp_path, cuda_graph=True, **given)
    assert same(eager, captured)
    counts = captured.capture
    steps = 4 * 3  # 10 photos in batches of 4, 4 and 2
    assert counts["replayed"] + counts["eager"] == steps
    assert counts["captured"] >= 1 and counts["replayed"] >= 1
    assert eager.capture == {}


def test_a_change_of_the_network_drops_recordings_and_captures_anew(toy, boxes_set, tmp_path, recording, caplog):
    logging.getLogger("libreyolo").propagate = True
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        done = train(boxes_set, tmp_path, cuda_graph=True, epochs=8, no_aug_epochs=4)
    assert "epoch 5 changes the network: recordings dropped" in caplog.text
    # batches of 4 come twice an epoch, of 2 once: shapes are captured in epochs 2 and 3, and again in 6 and 7
    assert done.capture["captured"] == 4
    assert same(train(boxes_set, tmp_path, epochs=8, no_aug_epochs=4), done)


def test_a_run_interrupted_between_captured_steps_resumes_exactly(toy, boxes_set, tmp_path, recording):
    whole = train(boxes_set, tmp_path, cuda_graph=True)
    first = train(boxes_set, tmp_path, cuda_graph=True, save_period=2)
    again = LibreYOLO("toy-s", pretrained=False, device="cpu").train(
        resume=str(first.save_dir / "weights" / "epoch2.pt")
    )  # fmt: skip
    assert same(whole, again)


def test_without_a_device_for_it_one_line_says_so_and_steps_are_eager(toy, boxes_set, tmp_path, caplog):
    logging.getLogger("libreyolo").propagate = True
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        done = train(boxes_set, tmp_path, cuda_graph=True, epochs=1)
    assert "cuda_graph: CUDA graphs need a CUDA device, this run is on cpu; steps run eagerly" in caplog.text
    assert (done.capture["captured"], done.capture["replayed"], done.capture["eager"]) == (0, 0, 3)


class Breaks:
    """A backend that fails at capture, or at the third replay."""

    name = "a broken backend"

    def __init__(self, at):
        self.at, self.calls = at, 0

    runs_python = True

    def record(self, network, images, draw, *, region=None):
        if self.at == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        recorded = Recorded(network, images, draw)

        def play(images, draw):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("graph is gone")
            return recorded(images, draw)

        return play


@pytest.mark.parametrize(("at", "line"), [("capture", "capture failed"), ("replay", "a replay failed")])
def test_a_failure_is_one_line_and_the_rest_of_the_run_is_eager(toy, boxes_set, tmp_path, monkeypatch, at, line):
    monkeypatch.setattr(capture, "Replay", lambda: Breaks(at))
    monkeypatch.setenv("LIBREYOLO_CAPTURE_BACKEND", "replay")
    done = train(boxes_set, tmp_path, cuda_graph=True)
    assert sum(line in reason for reason in done.capture["reasons"]) == 1
    assert done.epochs == 4 and done.capture["eager"] >= 6
    assert same(train(boxes_set, tmp_path), done)


def test_recording_leaves_buffers_gradients_and_random_state_alone():
    network = ToyNetwork(nc=3).train()
    images, draw = torch.rand(2, 3, 64, 64), torch.tensor([5, 6])
    next(network.parameters()).grad = torch.ones_like(next(network.parameters()))
    before = {k: v.clone() for k, v in network.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Recorded(network, images, draw)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert torch.equal(next(network.parameters()).grad, torch.ones_like(next(network.parameters())))
    assert torch.equal(torch.rand(1), expected)


def test_a_family_without_a_region_says_why():
    manager = Captured(ToyNetwork(nc=3), Replay(), Capture(off_reason="its decoder reads the boxes"))
    assert manager.counts.reasons == [
        "nothing of this family is captured: its decoder reads the boxes; steps run eagerly"
    ]
