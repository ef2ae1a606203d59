"""Network, loss and backward in one recording: the numbers of eager training, and none of its Python."""

import logging

import pytest
import torch

from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import capture
from libreyolo_core.engine.capture import SEEN, Captured, CapturedStep, Replay, signature
from libreyolo_core.engine.plan import Phase, PhaseChanged
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.family import Capture, Change, Loss, with_path
from libreyolo_core.testing.steps import subject
from toy_family import FAMILY

STEPS = 20


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


def raises(*_, **__):
    raise AssertionError("Python of the step ran after it had been recorded")


def factor(number):
    """What the loss of a step is multiplied by, as by a window of accumulation and a scaler that moves."""
    return torch.tensor(0.3 * 2.0 ** (number % 3))


def steps(key, imgsz, tail, captured):
    """Losses of every step, gradients of the last and the network's state. Half-way the run enters its tail. After a
    capture nothing may run but the recording."""
    who = subject(key, nc=3)
    network = who.network.train()
    step = TrainStep(network, who.sheet.loss, who.sheet.input)
    manager = None
    if captured:
        manager = step.whole = CapturedStep(step, Replay(), who.sheet.capture, seed=lambda: factor(number))
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9)
    losses = []
    for number in range(STEPS):
        if number == STEPS // 2 and tail:
            enter(step, network, who.sheet, **tail)
        elif manager and manager._graphs:
            step.region = network.finish = step.loss = raises
        terms = step(who.batch([3, 1], imgsz, seed=number))
        losses.append({**terms.named(), "total": terms.total.detach()})
        optimizer.zero_grad()
        (terms.total * factor(number)).backward()
        optimizer.step()
    return losses, [p.grad for p in trained], network.state_dict(), manager


def enter(step, network, sheet, loss, options):
    """What the trainer does when a phase begins, after giving the step its Python back."""
    if "finish" in vars(network):
        del network.finish
    step.region = network.region
    new = sheet
    for name, value in loss.items():
        new = with_path(new, f"loss.{name}", value)
    network.configure(**options)
    step.set_loss(new.loss)
    if isinstance(step.whole, CapturedStep):
        step.whole.phase_changed(change(Phase(0, sheet), Phase(3, new, options)))


def change(old, new, epoch=3):
    return PhaseChanged(epoch, old, new)


@pytest.mark.parametrize(
    ("key", "imgsz", "tail"),
    [
        ("toy", 64, {"loss": {"extra": 1.0}, "options": {"sharp": True}}),
        ("yolox", 64, {"loss": {"l1": 1.0}, "options": {"l1": True}}),
        ("fomo", 96, None),
    ],
)
def test_a_recorded_step_computes_the_eager_one_without_its_python(toy, key, imgsz, tail):
    losses, gradients, state, _ = steps(key, imgsz, tail, False)
    again, others, other, manager = steps(key, imgsz, tail, True)
    phases = 2 if tail else 1
    eager = phases * (SEEN - 1)
    assert (manager.counts.captured, manager.counts.replayed, manager.counts.eager) == (phases, STEPS - eager, eager)
    assert (list(losses[0]) != list(losses[-1])) == bool(tail)  # the tail has a term of its own
    for one, two in zip(losses, again, strict=True):
        assert list(one) == list(two)
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))
    assert all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nbs": 8},
        {"freeze": "stem"},
        {"multi_scale": 0.5},
        {"amp": True, "amp_dtype": "bfloat16"},
        {"eval_interval": 2},
        {"epochs": 8, "no_aug_epochs": 4},
    ],
    ids=[
        "plain",
        "accumulation",
        "frozen part",
        "several shapes",
        "bfloat16",
        "validation in between",
        "a change of network and loss",
    ],
)
def test_a_run_of_recorded_steps_is_the_eager_one(toy, boxes_set, tmp_path, recording, given):
    eager = train(boxes_set, tmp_path, **given)
    captured = train(boxes_set, tmp_path, cuda_graph="full", **given)
    assert same(eager, captured)
    assert captured.metrics == eager.metrics
    counts = captured.capture
    assert counts["what"] == "network, loss and backward"
    assert counts["replayed"] + counts["eager"] == 3 * given.get("epochs", 4)  # 10 photos in batches of 4, 4 and 2
    # a phase captures both lengths of batch where it has three epochs or more
    assert counts["captured"] == {8: 4}.get(given.get("epochs"), 2) or "multi_scale" in given


def test_the_log_has_the_terms_of_replayed_steps(toy, boxes_set, tmp_path, recording):
    eager, captured = (train(boxes_set, tmp_path, cuda_graph=what) for what in (False, "full"))
    tables = [(r.save_dir / "results.csv").read_text().splitlines() for r in (eager, captured)]
    names = tables[0][0].split(",")
    columns = [i for i, name in enumerate(names) if name.startswith(("train/", "lr/"))]
    assert len(columns) >= 4
    for a, b in zip(*tables, strict=True):
        assert [a.split(",")[i] for i in columns] == [b.split(",")[i] for i in columns]


def test_an_interrupted_run_of_recorded_steps_resumes_exactly(toy, boxes_set, tmp_path, recording):
    whole = train(boxes_set, tmp_path, cuda_graph="full")
    first = train(boxes_set, tmp_path, cuda_graph="full", save_period=2)
    again = LibreYOLO("toy-s", pretrained=False, device="cpu").train(
        resume=str(first.save_dir / "weights" / "epoch2.pt")
    )  # fmt: skip
    assert same(whole, again)


def test_a_loss_that_is_not_static_leaves_the_network_to_be_captured(
    toy, boxes_set, tmp_path, recording, monkeypatch, caplog
):
    logging.getLogger("libreyolo").propagate = True
    moving = with_path(FAMILY.tasks["detect"], "loss", Loss("toy_family:ToyLoss", extra=0.0))
    monkeypatch.setitem(FAMILY.tasks, "detect", moving)
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        done = train(boxes_set, tmp_path, cuda_graph="full")
    assert caplog.text.count("cuda_graph=full needs a loss of static shapes, which ToyLoss is not called") == 1
    assert done.capture["what"] == "network" and done.capture["captured"] == 2
    monkeypatch.undo()
    assert same(train(boxes_set, tmp_path), done)


def test_a_loss_that_is_called_static_and_reads_the_host_ends_in_an_eager_run(
    toy, boxes_set, tmp_path, recording, monkeypatch
):
    import toy_family

    def compute(self, boxes, logits, targets, step):
        if float(boxes.sum()) > -1e9:
            return sound(self, boxes, logits, targets, step)

    sound = toy_family.ToyLoss.compute
    monkeypatch.setattr(toy_family.ToyLoss, "compute", compute)
    done = train(boxes_set, tmp_path, cuda_graph="full")
    assert done.epochs == 4 and (done.capture["captured"], done.capture["eager"]) == (0, 12)
    assert sum("capture failed" in reason for reason in done.capture["reasons"]) == 1
    assert same(train(boxes_set, tmp_path), done)


def toy_step(backend=None):
    who = subject("toy", nc=3)
    step = TrainStep(who.network.train(), who.sheet.loss, who.sheet.input)
    step.whole = CapturedStep(step, backend or Replay(), who.sheet.capture, seed=lambda: torch.tensor(1.0))
    return who, step


def test_terms_without_a_backward_leave_gradients_alone(toy):
    who, step = toy_step()
    for number in range(SEEN + 1):
        step(who.batch([1, 2], 64, seed=number))
    assert step.whole.counts.replayed == 2
    assert all(p.grad is None for p in who.network.parameters())


def test_another_gradient_than_the_recorded_one_is_an_error_and_not_a_wrong_number(toy):
    who, step = toy_step()
    for number in range(SEEN):
        terms = step(who.batch([1, 2], 64, seed=number))
    with pytest.raises(RuntimeError, match="another gradient"):
        (terms.total * 2).backward()


def test_shapes_differ_by_rows_of_targets_and_not_by_their_number(toy):
    who, _ = toy_step()

    def shape(counts):
        batch = who.batch(counts, 64)
        return signature(batch.images, batch.targets.static(), batch.draw)

    assert shape([1, 2]) == shape([5, 0]) != shape([9, 0])  # 8 rows, then 16


def test_a_change_of_the_loss_alone_drops_recordings_of_steps_and_not_those_of_regions(toy):
    who, step = toy_step()
    region = Captured(who.network, Replay(), who.sheet.capture)
    for number in range(SEEN):
        batch = who.batch([1, 2], 64, seed=number)
        step(batch)
        region(batch.images.float(), batch.draw)
    old = Phase(0, who.sheet)
    for manager in (step.whole, region):
        manager.phase_changed(change(None, old, 0))
        manager.phase_changed(change(old, Phase(3, with_path(who.sheet, "loss.extra", 1.0))))
    assert [r for r in step.whole.counts.reasons if "dropped" in r] == [
        "epoch 4 changes the loss: recordings dropped, captured anew when a shape has come 3 times"
    ]
    assert len(region.counts.reasons) == 1 and region._graphs and not step.whole._graphs


class RunsOut:
    """A backend that has no memory left; ``hidden``: as a capture reports it that was cut short by it."""

    name, runs_python = "a full device", True

    def __init__(self, hidden):
        self.hidden = hidden

    def record_step(self, *_):
        if not self.hidden:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        try:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        finally:
            raise RuntimeError("capture was invalidated")


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "behind another error"])
def test_a_capture_that_runs_out_of_memory_says_what_helps(toy, hidden):
    who, step = toy_step(RunsOut(hidden))
    for number in range(SEEN + 1):
        step(who.batch([1, 2], 64, seed=number))
    assert step.whole.counts.reasons[1:] == [
        "capture ran out of memory; use a smaller batch, or cuda_graph=false; steps run eagerly"
    ]
    assert step.whole.counts.eager == SEEN + 1


def test_more_shapes_than_are_kept_run_eagerly_with_one_line(toy, monkeypatch):
    monkeypatch.setattr(CapturedStep, "most", 1)
    monkeypatch.setattr(capture, "SEEN", 1)
    who, step = toy_step()
    for imgsz in (64, 32, 48, 64):
        step(who.batch([1, 2], imgsz))
    counts = step.whole.counts
    assert (counts.captured, counts.replayed, counts.eager) == (1, 2, 2)
    assert counts.reasons[1:] == ["1 shapes are captured, the most at a time; steps of others run eagerly"]


def test_a_run_too_short_to_capture_anything_says_so(toy, boxes_set, tmp_path, recording):
    done = train(boxes_set, tmp_path, cuda_graph="full", epochs=1)
    assert done.capture["reasons"][1:] == [
        "no shape came 3 times in 3 steps, so nothing was captured; longer runs do better, and multi_scale=0 makes "
        "batches alike"
    ]


def test_a_family_that_registers_no_region_says_why(toy):
    who = subject("toy", nc=3)
    step = TrainStep(who.network, who.sheet.loss, who.sheet.input)
    manager = CapturedStep(step, Replay(), Capture(off_reason="its decoder reads boxes"), seed=lambda: torch.ones(()))
    assert manager.counts.reasons == ["nothing of this family is captured: its decoder reads boxes; steps run eagerly"]


def test_every_phase_of_a_sheet_keeps_what_it_says_of_its_loss(toy):
    sheet = FAMILY.tasks["detect"]
    (tail,) = (c for c in sheet.changes if isinstance(c, Change))
    assert sheet.loss.static and with_path(sheet, "loss.extra", tail.set["loss.extra"]).loss.static
