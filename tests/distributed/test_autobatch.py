"""``batch=-1``: what is probed, what is believed, and how ranks and nbs share it; on a fake memory meter."""

import pytest
import torch

from libreyolo_core import LibreYOLO
from libreyolo_core.engine import autobatch
from libreyolo_core.engine.autobatch import find_batch, global_batch, largest_count
from libreyolo_core.errors import ConfigError, TrainingError

GIB = 2**30


class FakeMeter:
    """A device on which a step of ``n`` images takes ``memory(n)`` bytes."""

    def __init__(self, capacity, memory):
        self.total, self.memory, self.last, self.probes = capacity, memory, 0, []

    def capacity(self):
        return self.total

    def reset(self):
        self.last = 0

    def peak(self):
        return self.last

    def step(self, batch):
        self.probes.append(batch)
        if self.memory(batch) > self.total:
            raise torch.OutOfMemoryError("fake")
        self.last = self.memory(batch)


def test_the_answer_is_the_largest_multiple_of_eight_that_the_line_allows_and_was_tried():
    meter = FakeMeter(16 * GIB, lambda n: int((1 + 0.2 * n) * GIB))
    # 0.9 * 16 = 14.4 GiB hold 67 images
    assert find_batch(meter.step, meter, most=10_000) == 64
    assert meter.probes[:5] == [1, 2, 4, 8, 16] and meter.probes[-1] == 64


def test_a_prediction_that_does_not_hold_is_lowered_until_it_does():
    meter = FakeMeter(16 * GIB, lambda n: int((1 + 0.1 * n + (0.0004 * n * n if n > 100 else 0)) * GIB))
    answer = find_batch(meter.step, meter, most=10_000)
    assert answer % 8 == 0 and meter.memory(answer) <= 0.9 * 16 * GIB and meter.probes[-1] == answer
    assert meter.probes.count(answer) == 1 and max(meter.probes) > answer


@pytest.mark.parametrize(("each", "expected"), [(2.0, 6), (13.0, 1)])
def test_few_large_images_need_no_multiple_of_eight(each, expected):
    meter = FakeMeter(16 * GIB, lambda n: int((0.5 + each * n) * GIB))
    assert find_batch(meter.step, meter, most=10_000) == expected


def test_it_never_asks_for_more_images_than_there_are():
    meter = FakeMeter(80 * GIB, lambda n: int(0.01 * n * GIB))
    assert find_batch(meter.step, meter, most=40) == 40
    assert max(meter.probes) == 40


def test_a_device_that_holds_no_image_is_an_error_with_a_mend():
    meter = FakeMeter(GIB, lambda n: 2 * GIB)
    with pytest.raises(TrainingError, match="Not even one image fits.*smaller imgsz"):
        find_batch(meter.step, meter, most=10)


def test_ranks_multiply_it_and_nbs_caps_it():
    assert global_batch(24, 4, None) == 96
    assert global_batch(24, 4, 64) == 64
    assert global_batch(24, 3, 64) == 63
    assert global_batch(1, 4, 2) == 4


def test_the_largest_target_count_of_the_set_is_what_a_probe_carries(toy):
    sheet = toy.tasks["detect"].for_size("s")
    assert largest_count([3, 1, 5, 2, 4], sheet) == 3 + 5 + 2 + 4  # mosaic puts four photos together
    from libreyolo_core.family import with_path

    assert largest_count([3, 1, 5, 2, 4], with_path(sheet, "augment.mosaic.p", 0.0)) == 5


def test_a_probe_runs_the_real_step_at_the_runs_size_and_count_and_leaves_no_trace(toy, monkeypatch):
    model = LibreYOLO("toy-s", pretrained=False, device="cpu")
    seen, real = [], autobatch.TrainStep.forward

    def forward(self, batch):
        seen.append((tuple(batch.images.shape), int(batch.targets.valid.sum())))
        return real(self, batch)

    monkeypatch.setattr(autobatch.TrainStep, "forward", forward)
    state, rng = {k: v.clone() for k, v in model.network.state_dict().items()}, torch.get_rng_state()
    probe = autobatch.training_probe(
        model, model.sheet, nc=4, side=(64, 96), count=7, device=torch.device("cpu")
    )  # fmt: skip
    probe(3)
    assert seen == [((3, 3, 64, 96), 21)] * 2
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(v, state[k]) for k, v in model.network.state_dict().items())


def test_on_a_cpu_it_is_a_stated_number_that_ranks_can_share(toy, boxes_set, tmp_path, caplog):
    from libreyolo_core.config import resolve_training
    from libreyolo_core.engine.plan import make_plan

    sheet = toy.tasks["detect"].for_size("s")
    resolved = resolve_training(sheet, {"data": "x", "batch": -1})
    plan = make_plan(resolved, samples=100, default_imgsz=64, device_type="cpu", world=3)
    assert plan.batch == 9 and "batch=-1 on a CPU means batch=9" in plan.notes[0]
    with pytest.raises(ConfigError, match="batch=-1 cannot measure the memory of mps"):
        make_plan(resolved, samples=100, default_imgsz=64, device_type="mps")
