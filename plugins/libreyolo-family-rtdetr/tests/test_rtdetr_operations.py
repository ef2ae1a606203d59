"""How many operations a training step dispatches, and how often it would wait for the host."""

import pytest
import torch
from rtdetr_cases import REFERENCE, batch, network, reference_images, reference_targets
from torch._subclasses.fake_tensor import FakeTensorMode

from libreyolo_core.losses import Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing import OperationCounter, count_step
from libreyolo_kit_detr import SetCriterion, matcher


@pytest.mark.parametrize(
    ("draw", "recorded"), [(None, "aten_ops"), (torch.tensor([3, 4]), "aten_ops_default_training")]
)
def test_a_step_dispatches_far_fewer_operations_than_the_published_one(draw, recorded):
    net = network(nc=80)
    count = count_step(net, SetCriterion(net), reference_images(), reference_targets(), draw)
    shares = count.shares(REFERENCE["loss"][recorded])
    assert shares["loss"] <= 1 / 2 and shares["loss without views"] <= 1 / 2
    assert shares["all"] <= 1 and shares["all without views"] <= 1


def test_evaluation_dispatches_no_more_operations_than_the_published_one():
    net = network(nc=80).eval()
    with torch.no_grad(), OperationCounter() as counter:
        net(reference_images())
    assert counter.total <= REFERENCE["aten_ops_eval_forward"]["total"]
    assert counter.host_sync == 0


def test_the_number_of_operations_depends_on_neither_batch_nor_boxes():
    net = network(nc=80)
    counts = []
    for sizes in ([1, 1], [9, 0, 30, 4]):
        loss = count_step(net, SetCriterion(net), *batch(sizes, nc=80)).loss
        counts.append((loss.total, loss.without_views))
    assert counts[0] == counts[1]


def test_a_step_reads_the_host_once(monkeypatch):
    """On a pretended CUDA device: every copy to the host, scalar read or data-dependent shape would be counted."""
    monkeypatch.setattr(matcher, "assign", lambda cost: torch.zeros(cost.shape[:3], dtype=torch.int64))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        net = network()
        images = torch.rand(2, 3, 64, 64)
        targets = BoxTargets(torch.rand(2, 8, 4), torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8) > 0, 3)
        draw = torch.zeros(2, dtype=torch.int64)
        with OperationCounter() as counter:
            outputs = net(images, targets, draw)
        assert counter.host_sync == 0
        with OperationCounter() as counter:
            SetCriterion(net)(outputs, targets, Step(draw=draw))
        assert counter.host_sync == 1
