"""Training: it learns, and no batch is too empty, too crowded or too narrow for it."""

import pytest
import torch
from dfine_cases import batch, freeze_statistics, network, stir, terms_of

from libreyolo_core.losses import Ranks, Step
from libreyolo_core.targets import BoxTargets
from libreyolo_kit_detr import FDRCriterion


def test_one_batch_is_learnt_in_a_few_steps():
    net = network()
    images, targets, draw = batch([2, 1])
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    totals = []
    for _ in range(12):
        terms = terms_of(net, images, targets, draw)
        optimizer.zero_grad()
        terms.total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        totals.append(terms.total.item())
    assert totals[-1] < 0.85 * totals[0]


@pytest.mark.parametrize("counts", [[0, 0], [0, 2], [1, 25]])
@pytest.mark.parametrize("draws", [True, False])
def test_every_parameter_gets_a_finite_gradient_whatever_the_boxes(counts, draws):
    net = network()
    images, targets, draw = batch(counts)
    terms = terms_of(net, images, targets, draw if draws else None)
    terms.total.backward()
    assert torch.isfinite(terms.total)
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    if sum(counts) == 0:
        assert terms.named()["bbox"] == 0 and terms.named()["vfl"] > 0


def test_denoising_can_be_switched_off():
    net = network()
    images, targets, draw = batch([2, 1])
    assert any("_dn_" in name for name in terms_of(net, images, targets, draw).named())
    net.configure(denoising=0)
    assert not any("_dn_" in name for name in terms_of(net, images, targets, draw).named())
    with pytest.raises(TypeError, match="no option 'denoisng'"):
        net.configure(denoisng=0)


def test_half_precision_stays_finite_and_the_criterion_in_float32():
    net = network()
    images, targets, draw = batch([3, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = terms_of(net, images, targets, draw)
    terms.total.backward()
    assert all(term.dtype == torch.float32 and term.isfinite().all() for term in terms.terms.values())
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("size", ["n", "s"])
@pytest.mark.parametrize(("height", "width"), [(64, 128), (160, 96)])
def test_any_multiple_of_32_works_in_training_and_evaluation(size, height, width):
    net = network(size)
    images, targets, draw = batch([2, 1], height, width)
    assert torch.isfinite(terms_of(net, images, targets, draw).total)
    net.eval()
    with torch.no_grad():
        found = net.predictions(net(images), (height, width))
    cells = sum((height // s) * (width // s) for s in net.strides)
    assert found.boxes.shape == (2, min(300, cells), 4) and found.scores.shape == (2, min(300, cells), 3)
    assert found.boxes.isfinite().all() and found.scores.isfinite().all()


def test_evaluation_equals_the_last_layer_of_training():
    net = network()
    freeze_statistics(net)
    stir(net)
    images, targets, _ = batch([2, 1])
    with torch.no_grad():
        trained = net(images, targets)
        evaluated = net.eval()(images)
    # the same kernels on the same numbers; only the order in which a batched sum runs may differ
    torch.testing.assert_close(trained["logits"][0], evaluated["pred_logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained["boxes"][0], evaluated["pred_boxes"], atol=1e-5, rtol=1e-5)


def test_evaluation_asks_only_the_heads_it_needs():
    net = network().eval()
    asked = []
    decoder = net.decoder
    for kind, heads in (("score", decoder.dec_score_head), ("quality", decoder.decoder.lqe_layers)):
        for index, head in enumerate(heads):
            head.register_forward_hook(lambda *_, kind=kind, index=index: asked.append((kind, index)))
    with torch.no_grad():
        net(batch([1])[0])
    assert asked == [("score", 2), ("quality", 2)]


def test_denoising_queries_do_not_change_what_matching_queries_answer():
    net = network()
    freeze_statistics(net)
    stir(net)
    images, targets, draw = batch([2, 1])
    with torch.no_grad():
        with_noise, without = net(images, targets, draw), net(images, targets)
    assert "dn_logits" in with_noise and "dn_logits" not in without
    for name in ("logits", "boxes", "corners"):
        torch.testing.assert_close(with_noise[name], without[name], atol=1e-5, rtol=1e-5)


def test_two_ranks_compute_the_gradient_of_one():
    net = network()
    freeze_statistics(net)
    stir(net)
    images, targets, draw = batch([0, 20])

    class Recorder(Ranks):
        """Keeps what the loss of the whole batch counts."""

        seen: list = []

        def sum(self, value):
            self.seen.append(value)
            return value

    class Two(Ranks):
        size = 2

        def sum(self, value):
            (whole,) = Recorder.seen
            return whole

    def gradients(rows, step):
        net.zero_grad()
        mine = BoxTargets(targets.boxes[rows], targets.labels[rows], targets.valid[rows], targets.most)
        FDRCriterion(net)(net(images[rows], mine, draw[rows]), mine, step).total.backward()
        return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}

    whole = gradients(slice(0, 2), Step(Recorder()))
    shards = [gradients(slice(i, i + 1), Step(Two())) for i in range(2)]
    difference = torch.stack([(whole[n] - (shards[0][n] + shards[1][n]) / 2).norm() for n in whole]).norm()
    # float32 sums split in two; among a million ReLU inputs one may lie within rounding of zero and switch
    assert difference < 2e-5 * torch.stack([g.norm() for g in whole.values()]).norm()


def test_deploying_keeps_the_answers():
    net = network()
    stir(net)
    images, targets, draw = batch([2, 1])
    for _ in range(2):
        net(images, targets, draw)  # moves the statistics away from 0 and 1
    net.eval()
    with torch.no_grad():
        before = net(images)
        after = net.deploy()(images)
    for key in before:
        # sixty layers whose scales are rounded into the weights
        torch.testing.assert_close(before[key], after[key], atol=1e-3, rtol=0)
