"""How many operations a training step dispatches, and how often it would wait for the host."""

import pytest
import torch
from dfine_cases import REFERENCE, batch, network, reference_batch
from torch._subclasses.fake_tensor import FakeTensorMode

from libreyolo_core.losses import Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing import OperationCounter, count_step
from libreyolo_kit_detr import FDRCriterion, matcher


@pytest.mark.parametrize(
    ("draw", "recorded"), [(None, "aten_ops"), (torch.tensor([3, 4]), "aten_ops_default_training")]
)
def test_a_step_dispatches_far_fewer_operations_than_the_published_one(draw, recorded):
    net = network(nc=80)
    count = count_step(net, FDRCriterion(net), *reference_batch(), draw)
    shares = count.shares(REFERENCE.content["loss"][recorded])
    assert shares["loss"] <= 1 / 4 and shares["loss without views"] <= 1 / 4
    assert shares["all"] <= 1 and shares["all without views"] <= 1


def test_the_region_and_an_evaluation_dispatch_no_more_operations_than_published():
    net = network(nc=80)
    images, _ = reference_batch()
    with OperationCounter() as counter:
        net.region(images)
    assert counter.total <= REFERENCE.content["loss"]["aten_ops_graph_region_forward"]["total"]
    with torch.no_grad(), OperationCounter() as counter:
        net.eval()(images)
    assert counter.total <= REFERENCE.content["aten_ops_eval_forward"]["total"]
    assert counter.host_sync == 0


def test_the_number_of_operations_depends_on_neither_batch_nor_boxes():
    net = network(nc=80)
    counts = []
    for sizes in ([1, 1], [9, 0, 30, 4]):
        loss = count_step(net, FDRCriterion(net), *batch(sizes, nc=80)).loss
        counts.append((loss.total, loss.without_views))
    assert counts[0] == counts[1]


def test_a_step_reads_the_host_once(monkeypatch):
    """On a pretended CUDA device: every copy to the host, scalar read or data-dependent shape would be counted."""

    def solved(cost):
        sets, images, _, queries = cost.shape
        return torch.zeros((sets + 1, images, queries), dtype=torch.int64)

    monkeypatch.setattr(matcher, "assign_owners", solved)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        net = network()
        images = torch.rand(2, 3, 64, 64)
        targets = BoxTargets(torch.rand(2, 8, 4), torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8) > 0, 3)
        draw = torch.zeros(2, dtype=torch.int64)
        with OperationCounter() as counter:
            outputs = net(images, targets, draw)
        assert counter.host_sync == 0
        with OperationCounter() as counter:
            FDRCriterion(net)(outputs, targets, Step(draw=draw))
        assert counter.host_sync == 1
