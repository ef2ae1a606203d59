"""Steps, windows, phases and rates of a run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from libreyolo_core.config import resolve_training
from libreyolo_core.engine.plan import make_plan
from libreyolo_core.engine.schedule import LearningRate
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Change, Schedule
from toy_family import FAMILY

SHEET = FAMILY.tasks["detect"].for_size("s")


def plan(samples=10, sheet=SHEET, **given):
    resolved = resolve_training(sheet, {"data": "x", **given})
    return make_plan(resolved, samples=samples, default_imgsz=64, device_type="cpu")


def factors(p):
    rate = LearningRate(p)
    return [rate.factor(i) for i in range(p.updates)]


def test_an_epoch_has_a_last_partial_batch():
    p = plan(samples=10, batch=4)
    assert (p.batches, [p.batch_length(i) for i in range(3)]) == (3, [4, 4, 2])


def test_partial_window_weighs_samples_like_a_full_one():
    p = plan(samples=22, batch=4, nbs=12)  # windows of batches (4 4 4) (4 4 2)
    assert p.accumulate == 3 and p.updates_per_epoch == 2
    assert [p.weight(i) for i in range(3)] == pytest.approx([1 / 3] * 3)
    assert [p.weight(i) for i in range(3, 6)] == pytest.approx([0.4, 0.4, 0.2])
    assert [p.closes_window(i) for i in range(6)] == [False, False, True, False, False, True]


def test_a_window_of_micro_batches_has_the_gradient_of_one_batch():
    torch.manual_seed(0)
    p = plan(samples=10, batch=4, nbs=12)
    layer, x = nn.Linear(3, 1), torch.randn(10, 3)
    layer(x).mean().backward()
    whole = layer.weight.grad.clone()
    layer.zero_grad()
    for i in range(3):
        (layer(x[4 * i : 4 * i + 4]).mean() * p.weight(i)).backward()
    assert torch.allclose(layer.weight.grad, whole, atol=1e-7)  # one rounding of float32 sums


def test_short_runs_shrink_warm_up_and_tail_in_proportion_and_say_so():
    recipe = replace(SHEET.recipe, tail=15, schedule=replace(SHEET.recipe.schedule, warmup=5))
    sheet = replace(SHEET, recipe=recipe)
    long, short = plan(sheet=sheet, epochs=100), plan(sheet=sheet, epochs=10)
    assert (long.warmup, long.tail, long.notes) == (5, 15, ())
    assert (short.warmup, short.tail) == (1.25, 3)
    assert len(short.notes) == 1 and "warm-up of 5" in short.notes[0]
    assert short.phase(0).sheet.augment[0].p == 1.0 and short.phase(7).sheet.augment[0].p == 0.0


def test_what_the_user_gives_is_not_shortened():
    p = plan(epochs=4, no_aug_epochs=4, warmup_epochs=0)
    assert p.tail == 4 and p.phases[0].start == 0


def test_the_tail_switches_augmentation_loss_and_network():
    p = plan(epochs=10, no_aug_epochs=3)
    assert [ph.start for ph in p.phases] == [0, 7]
    tail = p.phase(9)
    assert (
        tail.sheet.augment[0].p == 0.0 and tail.sheet.loss.options == {"extra": 1.0} and tail.network == {"sharp": True}
    )


def test_changes_by_epoch_and_by_share_add_up():
    sheet = replace(SHEET, changes=(Change(2, {"augment.hsv.p": 0.0}), Change(0.5, {"augment.flip.p": 0.0})))
    p = plan(sheet=sheet, epochs=10)
    assert [(ph.start, ph.sheet.augment[1].p, ph.sheet.augment[2].p) for ph in p.phases] == [
        (0, 1.0, 0.5),
        (2, 0.0, 0.5),
        (5, 0.0, 0.0),
    ]


def test_the_rate_warms_up_anneals_and_holds():
    f = factors(plan(samples=20, batch=4, epochs=10, no_aug_epochs=2, warmup_epochs=2))
    assert f[:10] == pytest.approx([((i + 1) / 10) ** 2 for i in range(10)])
    assert f[-10:] == pytest.approx([0.05] * 10)
    assert all(a >= b for a, b in zip(f[9:], f[10:], strict=False))


@pytest.mark.parametrize(("anneal", "last"), [("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)])
def test_each_anneal_ends_where_it_says(anneal, last):
    sheet = replace(SHEET, recipe=replace(SHEET.recipe, tail=0, schedule=Schedule(anneal, to=0.1)))
    f = factors(plan(sheet=sheet, epochs=5))
    assert f[-1] == pytest.approx(last) and f[0] <= 1


def test_a_flat_rate_anneals_over_the_last_epochs():
    schedule = Schedule("cosine", to=0.05, warmup=2, start=0.005, flat="tail")
    f = factors(plan(sheet=replace(SHEET, recipe=replace(SHEET.recipe, tail=4, schedule=schedule)), epochs=20, batch=5))
    assert f[0] == pytest.approx(0.005 + 0.995 / 4) and f[4:32] == [1.0] * 28
    assert f[-1] == pytest.approx(0.05) and all(a > b for a, b in zip(f[31:], f[32:], strict=False))


def test_momentum_warms_up_to_the_optimizers_own():
    sheet = replace(SHEET, recipe=replace(SHEET.recipe, schedule=Schedule("constant", warmup=1, momentum=0.8)))
    p = plan(sheet=sheet, epochs=4, samples=16, batch=4)
    optimizer = torch.optim.SGD(
        [{"params": [nn.Parameter(torch.zeros(1))], "base_lr": 0.1, "base_momentum": 0.9}], lr=0.1
    )
    rate, seen = LearningRate(p), []
    for i in range(6):
        rate.apply(optimizer, i)
        seen.append(optimizer.param_groups[0]["momentum"])
    assert seen == pytest.approx([0.825, 0.85, 0.875, 0.9, 0.9, 0.9])


def test_multi_scale_sizes_are_a_function_of_seed_epoch_and_batch():
    p = plan(multi_scale=0.5, imgsz=64, epochs=4)
    sizes = [p.size(e, b) for e in range(4) for b in range(p.batches)]
    assert sizes == [p.size(e, b) for e in range(4) for b in range(p.batches)]
    assert {s % 16 for s, _ in sizes} == {0} and len(set(sizes)) > 1
    assert min(s for s, _ in sizes) >= 32 and max(s for s, _ in sizes) <= 96


def test_the_size_itself_is_drawn_as_often_as_the_recipe_says():
    p = plan(samples=4000, multi_scale=0.25, imgsz=128, epochs=1, multi_scale_base=20)
    sizes = [p.size(0, b)[0] for b in range(p.batches)]
    assert set(sizes) == {96, 112, 128, 144, 160}
    # 20 of 24 numbers stand for 128; 1000 draws have a standard deviation of 0.012
    assert sum(s == 128 for s in sizes) / len(sizes) == pytest.approx(20 / 24, abs=0.05)
    once = plan(samples=4000, multi_scale=0.25, imgsz=128, epochs=1)
    assert sum(once.size(0, b)[0] == 128 for b in range(p.batches)) / len(sizes) == pytest.approx(1 / 5, abs=0.05)


def test_an_input_side_that_does_not_fit_the_strides_names_the_next_ones():
    with pytest.raises(ConfigError, match="imgsz=100 is no multiple of 16.*imgsz=96 or imgsz=112"):
        plan(imgsz=100)


def test_minus_one_on_a_cpu_is_a_stated_default():
    p = plan(batch=-1, samples=100)
    assert p.batch == 8 and "batch=-1 on a CPU means batch=8" in p.notes[0]
