"""The validation loop: speed, progress, shards."""

import pytest
import torch

from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.classify_eval import ClassifyEvaluator
from libreyolo_core.timing import Stopwatch, device_of, synchronise
from libreyolo_core.validator import validate
from task_fakes import batch_of, class_scan

SCAN = class_scan([0, 1, 0, 1, 1], ["a", "b"])
LOGITS = torch.tensor([[2.0, 0], [0, 1], [0, 1], [0, 3], [4, 0]])


class Loader:
    """Batches of two."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        for k in range(0, len(self.indices), 2):
            part = self.indices[k : k + 2]
            batch = batch_of(part)
            batch.images = torch.tensor(part, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 1, 1)
            yield batch


def infer(images):
    return Predictions(logits=LOGITS[images[:, 0, 0, 0].long()])


def test_every_image_is_measured_once_and_progress_is_told():
    seen = []
    m = validate(infer, Loader(range(5)), ClassifyEvaluator(SCAN, None, SCAN.names), on_batch=seen.append)
    assert m.values["metrics/accuracy_top1"] == pytest.approx(3 / 5) and seen == [2, 4, 5]
    assert set(m.speed) == {"preprocess", "inference", "postprocess"} and all(v > 0 for v in m.speed.values())


def test_shards_gathered_over_ranks_give_the_metric_of_one_process():
    whole = validate(infer, Loader(range(5)), ClassifyEvaluator(SCAN, None, SCAN.names))
    other = ClassifyEvaluator(SCAN, None, SCAN.names)
    for batch in Loader([1, 3]):
        other.update(infer(batch.images), batch)

    class Two:
        size = 2

        def gather(self, value):
            return [value, other.state()]

    shard = validate(infer, Loader([0, 2, 4]), ClassifyEvaluator(SCAN, None, SCAN.names), ranks=Two())
    assert shard.values == whole.values


def test_inference_time_includes_the_work_that_the_device_still_does(monkeypatch):
    waited = []
    monkeypatch.setattr("libreyolo_core.validator.synchronise", lambda device: waited.append(device))
    validate(infer, Loader(range(5)), ClassifyEvaluator(SCAN, None, SCAN.names))
    assert waited == [torch.device("cpu")] * 3


def test_synchronising_asks_the_device_that_holds_the_predictions(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    synchronise("cpu")
    synchronise(torch.device("cuda", 1))
    assert asked == [torch.device("cuda", 1)]
    assert device_of(Predictions(logits=torch.zeros(1, 1, device="meta"))).type == "meta"


def test_a_stopwatch_gives_milliseconds_per_image(monkeypatch):
    times = iter([0.0, 1.0, 5.0, 6.0])
    monkeypatch.setattr("libreyolo_core.timing.time.perf_counter", lambda: next(times))
    clock = Stopwatch()
    for _ in range(2):
        with clock("inference"):
            pass
    assert clock.per_image(4) == {"inference": 500.0}
