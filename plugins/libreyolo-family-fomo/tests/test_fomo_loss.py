"""The loss: recorded values, which cell a box marks, ranks, and how many operations it takes."""

import math

import pytest
import torch

from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.counting import OperationCounter
from libreyolo_family_fomo.loss import GridCrossEntropy, grid_classes


def boxes_at(*centres: tuple[float, float]) -> torch.Tensor:
    """Boxes of 4 by 4 pixels around (x, y)."""
    return torch.tensor([[x - 2.0, y - 2.0, x + 2.0, y + 2.0] for x, y in centres]).reshape(-1, 4)


def labels(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def wave(shape: tuple[int, ...]) -> torch.Tensor:
    """Made-up logits."""
    return torch.sin(0.37 * torch.arange(math.prod(shape), dtype=torch.float64)).reshape(shape).float()


def test_loss_and_gradients_equal_the_reference(recorded_step, reference):
    network, images, targets = recorded_step
    terms = GridCrossEntropy(network)(network(images), targets, Step())
    named = {k: float(v) for k, v in terms.named().items()} | {"total_loss": float(terms.total.detach())}
    problems, compared = reference.compare_loss(named)
    assert problems == []
    assert set(compared) == {"ce", "total_loss"}
    terms.total.backward()
    recorded = reference.content["loss"]["gradient"]
    gradients = {name: float(p.grad.norm()) for name, p in network.named_parameters()}
    total = math.sqrt(sum(g * g for g in gradients.values()))
    assert total == pytest.approx(recorded["total_l2_norm"], rel=1e-3)
    for name, norm in recorded["l2_norm_by_parameter"].items():
        assert gradients[name] == pytest.approx(norm, rel=1e-3, abs=1e-6), name


def test_hand_made_logits_give_the_recorded_loss(build):
    first = boxes_at((4 * 8 + 4, 3 * 8 + 4), (8 * 8 + 4, 7 * 8 + 4))
    targets = BoxTargets.pad([first, boxes_at((6 * 8 + 4, 6 * 8 + 4))], [labels(0, 1), labels(0)])
    total = GridCrossEntropy(build("s", 2))(wave((2, 3, 12, 12)), targets, Step()).total
    assert float(total) == pytest.approx(1.396089, rel=1e-6)


def test_a_box_marks_the_cell_of_its_centre_alone():
    targets = BoxTargets.pad([boxes_at((17.0, 39.9)), boxes_at()], [labels(2), labels()])
    grid = grid_classes(targets, channels=4, grid=(6, 5), stride=8)
    assert grid.shape == (2, 1, 6, 5)
    assert grid.nonzero().tolist() == [[0, 0, 4, 2]]
    assert grid[0, 0, 4, 2] == 3


def test_centres_at_the_edge_stay_on_the_grid():
    targets = BoxTargets.pad([boxes_at((48.0, 48.0), (-1.0, 0.0), (47.9, 0.0))], [labels(0, 1, 2)])
    grid = grid_classes(targets, channels=4, grid=(6, 6), stride=8)[0, 0]
    assert (grid[5, 5], grid[0, 0], grid[0, 5]) == (1, 2, 3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_last_of_several_boxes_in_a_cell_counts(order):
    targets = BoxTargets.pad([boxes_at((20.0, 20.0), (21.0, 19.0), (22.0, 23.0))], [labels(*order)])
    grid = grid_classes(targets, channels=4, grid=(6, 6), stride=8)[0, 0]
    assert grid[2, 2] == 1 + order[-1]
    assert (grid > 0).sum() == 1


def test_many_random_boxes_are_marked_as_a_plain_loop_would():
    draw = torch.Generator().manual_seed(0)
    centres = torch.rand(3, 40, 2, generator=draw) * 64
    classes = torch.randint(0, 5, (3, 40), generator=draw)
    targets = BoxTargets.pad([torch.cat((c - 3, c + 3), 1) for c in centres], list(classes))
    expected = torch.zeros(3, 1, 8, 8, dtype=torch.int64)
    for image in range(3):
        for (x, y), c in zip(centres[image].tolist(), classes[image].tolist(), strict=True):
            expected[image, 0, int(y / 8), int(x / 8)] = c + 1
    assert torch.equal(grid_classes(targets, channels=6, grid=(8, 8), stride=8), expected)


def test_padding_rows_change_nothing(build):
    boxes, classes = boxes_at((20.0, 20.0), (60.0, 80.0)), labels(1, 0)
    loss, logits = GridCrossEntropy(build("s", 2)), wave((1, 3, 12, 12))
    totals = [loss(logits, BoxTargets.pad([boxes], [classes], rows=m), Step()).total for m in (2, 8, 48)]
    assert totals[0] == totals[1] == totals[2]


def test_images_without_objects_have_a_finite_loss_that_is_plain_cross_entropy(build):
    logits = wave((2, 3, 12, 12))
    total = GridCrossEntropy(build("s", 2))(logits, BoxTargets.pad([boxes_at()] * 2, [labels()] * 2), Step()).total
    expected = torch.nn.functional.cross_entropy(logits, torch.zeros(2, 12, 12, dtype=torch.int64))
    assert float(total) == pytest.approx(float(expected), rel=1e-6)  # another order of summation


def test_the_weight_of_objects_is_an_option(build):
    network, logits = build("s", 1), wave((1, 2, 12, 12))
    targets = BoxTargets.pad([boxes_at((20.0, 20.0))], [labels(0)])
    grid = torch.zeros(1, 12, 12, dtype=torch.int64)
    grid[0, 2, 2] = 1
    for weight in (1.0, 10.0):
        expected = torch.nn.functional.cross_entropy(logits, grid, torch.tensor([1.0, weight]))
        total = GridCrossEntropy(network, fg_weight=weight)(logits, targets, Step()).total
        assert float(total) == pytest.approx(float(expected), rel=1e-6)  # another order of summation


class OneOfTwo(Ranks):
    """A rank whose fellow has cells of ``others`` weight."""

    size = 2

    def __init__(self, others: float) -> None:
        self.others = others

    def sum(self, value):
        return value + self.others


def test_two_uneven_ranks_give_the_loss_of_one(build):
    loss, logits = GridCrossEntropy(build("s", 2)), wave((3, 3, 12, 12))
    rows = [boxes_at((20.0, 20.0), (60.0, 80.0)), boxes_at(), boxes_at((5.0, 5.0))]
    classes = [labels(1, 0), labels(), labels(1)]
    whole = loss(logits, BoxTargets.pad(rows, classes), Step()).total
    first, rest = 144 + 2 * 99.0, 2 * 144 + 99.0  # cells, and 99 more for each with an object
    halves = [
        loss(logits[part], BoxTargets.pad(rows[part], classes[part]), Step(ranks=OneOfTwo(others))).total
        for part, others in ((slice(0, 1), rest), (slice(1, 3), first))
    ]
    assert float(sum(halves) / 2) == pytest.approx(float(whole), rel=1e-6)  # gradients are averaged over ranks


def test_half_precision_logits_are_compared_in_float32(build):
    logits = torch.zeros(1, 2, 12, 12, dtype=torch.bfloat16)
    logits[:, 1] = 300.0
    targets = BoxTargets.pad([boxes_at()], [labels()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = GridCrossEntropy(build("s", 1))(logits, targets, Step()).total
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(300.0, rel=1e-6)  # bfloat16 would know 300 to one part in 256


def test_a_training_step_dispatches_no_more_operations_than_the_reference(recorded_step, reference):
    network, images, targets = recorded_step
    with OperationCounter() as counter:
        GridCrossEntropy(network)(network(images), targets, Step()).total.backward()
    recorded = reference.content["loss"]["aten_ops"]["all"]
    assert counter.total <= recorded["total"]
    assert counter.without_views <= recorded["without_views"]
    assert counter.host_sync == 0


def test_the_number_of_operations_depends_on_neither_batch_nor_boxes(build):
    loss, counts = GridCrossEntropy(build("s", 2)), set()
    for boxes in ([1, 1], [0, 40, 3, 7]):
        rows = [boxes_at(*[(2.0 * i, 90.0 - i) for i in range(count)]) for count in boxes]
        targets = BoxTargets.pad(rows, [torch.zeros(count, dtype=torch.int64) for count in boxes])
        with OperationCounter() as counter:
            loss(torch.zeros(len(boxes), 3, 12, 12), targets, Step())
        counts.add((counter.total, counter.without_views, counter.host_sync))
    assert len(counts) == 1
