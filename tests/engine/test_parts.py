"""Optimizer groups, average, precision, devices, the log of losses."""

import copy
import logging
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from libreyolo_core.engine.device import parse_device
from libreyolo_core.engine.ema import Average
from libreyolo_core.engine.losslog import LossLog
from libreyolo_core.engine.optimizer import build_optimizer, freeze, frozen_norms, kinds
from libreyolo_core.engine.precision import MOST_SKIPPED, Mode, Scaler, choose_mode
from libreyolo_core.engine.sync_bn import SummedBatchNorm, synchronise_norms
from libreyolo_core.errors import ConfigError, DeviceError, TrainingError
from libreyolo_core.family import AdamW, Ema, Group
from libreyolo_core.losses import LossTerms, float32_island
from toy_family import FAMILY, ToyNetwork

SHEET = FAMILY.tasks["detect"].for_size("s")
CPU = torch.device("cpu")


def test_every_trainable_parameter_is_in_exactly_one_group():
    network = ToyNetwork(nc=4)
    groups = (Group("stem.*", of="norm", lr=0.1, decay=0), Group("stem", lr=0.1), Group(of="norm|bias", decay=0))
    optimizer = build_optimizer(
        network, replace(SHEET.recipe, optimizer=AdamW(0.01, decay=0.1), groups=groups), fused=False, device=CPU
    )
    grouped = [p for g in optimizer.param_groups for p in g["params"]]
    assert len(grouped) == len(set(map(id, grouped))) == len(list(network.parameters()))
    by_lr = [(round(g["lr"], 6), g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
    assert by_lr == [(0.001, 0, 2), (0.001, 0.1, 2), (0.01, 0, 4), (0.01, 0.1, 2)]


def test_norms_biases_and_weights_are_told_apart_by_module_not_by_name():
    kind = kinds(ToyNetwork(nc=4))
    assert kind["stem.1.weight"] == kind["stem.1.bias"] == "norm"
    assert kind["stem.0.weight"] == "weight" and kind["head.bias"] == "bias"


def test_a_freeze_pattern_that_matches_nothing_is_an_error():
    sheet = replace(SHEET, recipe=replace(SHEET.recipe, freeze=("backbone",)))
    with pytest.raises(ConfigError, match="freeze='backbone' matches no parameter.*body, head, stem"):
        freeze(ToyNetwork(nc=4), sheet, given=True)


def test_freezing_everything_is_an_error():
    with pytest.raises(ConfigError, match="Every parameter is frozen"):
        freeze(ToyNetwork(nc=4), replace(SHEET, recipe=replace(SHEET.recipe, freeze=("",))), given=True)


def test_frozen_norms_keep_their_statistics_too():
    network = ToyNetwork(nc=4)
    freeze(network, replace(SHEET, recipe=replace(SHEET.recipe, freeze=("stem",))), given=True)
    assert list(frozen_norms(network)) == [network.stem[1]]


def test_the_average_follows_weights_and_statistics_with_the_ramped_decay():
    network = ToyNetwork(nc=4)
    average = Average(network, Ema(decay=0.9, ramp=5))
    expected = {k: v.clone() for k, v in network.state_dict().items()}
    for step in (1, 2):
        with torch.no_grad():
            for p in network.parameters():
                p.add_(step)
            network.stem[1].running_mean.add_(3)
            network.stem[1].num_batches_tracked.add_(1)
        average.update(network)
        decay = 0.9 * (1 - math.exp(-step / 5))
        for k, v in network.state_dict().items():
            expected[k] = expected[k] * decay + v * (1 - decay) if v.is_floating_point() else v.clone()
    for k, v in average.network.state_dict().items():
        assert torch.allclose(v, expected[k], atol=1e-6), k  # float32 rounding of two updates


@pytest.mark.parametrize("form", ["cpu", "CPU", torch.device("cpu"), "auto"])
def test_accepted_device_forms(form):
    assert parse_device(form)[0].type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("form", ["0,x", "[0,1]", "gpu", "", "cuda:", "1.5", 2.5, None, True, "cuda:0,1", "-1", []])
def test_any_other_device_form_is_an_error_that_lists_the_forms(form):
    with pytest.raises(DeviceError, match="Accepted: auto, cpu"):
        parse_device(form)


def test_an_index_that_does_not_exist_names_those_that_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="CUDA device 5 does not exist.*Use one of: 0, 1"):
        parse_device("0,5")
    with pytest.raises(DeviceError, match="twice"):
        parse_device("0,0")
    assert [d.index for d in parse_device([0, 1])] == [0, 1]
    assert parse_device("cuda:1") == parse_device(1) == parse_device("1") == [torch.device("cuda", 1)]


def test_a_gpu_index_without_a_gpu_never_trains_on_the_cpu_in_silence():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(DeviceError, match="existing CUDA devices: none"):
        parse_device("0")


def test_float16_on_a_cpu_runs_float32_and_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="libreyolo"):
        logging.getLogger("libreyolo").propagate = True
        assert choose_mode(True, "float16", CPU).name == "float32"
    assert "float32 runs instead" in caplog.text


def test_amp_off_is_float32_whatever_the_type():
    assert choose_mode(False, "bfloat16", CPU).dtype == torch.float32


def overflowing():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    return weight, optimizer, Scaler(Mode(torch.float16, "cpu"))


def test_a_step_that_overflows_is_skipped_and_counted():
    weight, optimizer, scaler = overflowing()
    scaler.backward((weight * float("inf")).sum())
    assert not scaler.step(optimizer, [weight], None)
    assert torch.equal(weight.data, torch.ones(2)) and scaler.skipped == scaler.in_a_row == 1
    optimizer.zero_grad()
    scaler.backward(weight.sum())
    assert scaler.step(optimizer, [weight], None)
    assert scaler.in_a_row == 0 and scaler.skipped == 1


def test_too_many_overflows_in_a_row_stop_the_run_with_advice():
    weight, optimizer, scaler = overflowing()
    with pytest.raises(TrainingError, match="amp_dtype=bfloat16"):
        for _ in range(MOST_SKIPPED + 1):
            optimizer.zero_grad()
            scaler.backward((weight * float("inf")).sum())
            scaler.step(optimizer, [weight], None)


def test_a_loss_that_is_not_finite_names_term_step_and_files():
    log = LossLog(CPU, 10)
    log.add(LossTerms({"box": torch.tensor(1.0)}), 2, 0, ["a.jpg"])
    with pytest.raises(TrainingError, match=r"step 7: cls, total.*b.jpg.*lr0"):
        log.add(LossTerms({"cls": torch.tensor(float("nan"))}), 2, 7, ["b.jpg"])


def test_means_weigh_batches_by_their_images():
    log = LossLog(CPU, 10)
    log.add(LossTerms({"box": torch.tensor(1.0), "cls": torch.tensor(0.0)}), 3, 0, [])
    log.add(LossTerms({"box": torch.tensor(5.0), "cls": torch.tensor(4.0)}), 1, 1, [])
    assert log.means() == {"train/loss": 3.0, "train/box": 2.0, "train/cls": 1.0}


def test_losses_of_a_gpu_are_read_once_per_interval(monkeypatch):
    log = LossLog(torch.device("cuda", 0), 4)
    for step in range(3):
        log.add(LossTerms({"box": torch.tensor(float(step))}), 1, step, [])
    assert log.count == 0
    log.add(LossTerms({"box": torch.tensor(3.0)}), 1, 3, [])
    assert log.count == 4


def test_terms_over_layers_are_named_and_summed():
    terms = LossTerms({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}, parts={"a": ("", "_aux_0")})
    assert {k: float(v) for k, v in terms.named().items()} == {"a": 1.0, "a_aux_0": 2.0, "b": 3.0}
    assert float(terms.total) == 6.0


def test_a_float32_island_computes_in_float32_inside_autocast():
    @float32_island
    def area(boxes):
        assert boxes["b"][0].dtype == torch.float32
        return (boxes["b"][0] @ boxes["b"][0]).dtype

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert area({"b": [torch.full((4, 4), 700.0, dtype=torch.bfloat16)]}) == torch.float32


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 9), (4, 5, 7, 6)], ids=["rows", "sequence", "maps"])
def test_batch_norm_over_ranks_is_batch_norm_where_there_is_one(shape, affine):
    kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    ours = torch.nn.Sequential(kind(5, affine=affine)).double()
    reference = copy.deepcopy(ours)
    assert synchronise_norms(ours, torch.device("cpu")) == 1 and isinstance(ours[0], SummedBatchNorm)
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    inputs = [(3 + 2 * x).requires_grad_() for _ in range(2)]
    outputs = [m(i) for m, i in zip((ours, reference), inputs, strict=True)]
    for output in outputs:
        output.backward(g)
    pairs = [outputs, [i.grad for i in inputs], *zip(ours.buffers(), reference.buffers(), strict=True)]
    pairs += [(p.grad, q.grad) for p, q in zip(ours.parameters(), reference.parameters(), strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
