"""What moved between two profiles, and what may be said about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from libreyolo_core.profiler.compare import Change, compare, step_differs
from profiles import cpu_profile, gpu_profile

RECORDED = Path(__file__).parent / "data" / "cpu_profile.json"


def change(before, after, better="lower"):
    return Change("x", "us", before, after, better)


@pytest.mark.parametrize(
    ("before", "after", "better", "difference", "ratio", "verdict"),
    [
        (10.0, 5.0, "lower", -5.0, 0.5, "better"),
        (10.0, 5.0, "higher", -5.0, 0.5, "worse"),
        (10.0, 15.0, "lower", 5.0, 1.5, "worse"),
        (10.0, 10.1, "lower", pytest.approx(0.1), pytest.approx(1.01), ""),
        (10.0, 5.0, "", -5.0, 0.5, ""),
        (0.0, 3.0, "lower", 3.0, None, "worse"),
        (0.0, 0.0, "lower", 0.0, None, ""),
        (None, 3.0, "lower", None, None, ""),
        (3.0, None, "lower", None, None, ""),
        (None, None, "lower", None, None, ""),
    ],
)
def test_a_change_has_difference_ratio_and_a_word(before, after, better, difference, ratio, verdict):
    found = change(before, after, better)
    assert (found.difference, found.ratio, found.verdict) == (difference, ratio, verdict)


def test_a_profile_compared_with_itself_has_not_moved():
    found = compare(gpu_profile(), gpu_profile())
    assert (found.workload, found.settings, found.step_differs) == ({}, {}, False)
    everything = [*found.numbers, *found.phases, *found.kernels, *found.ops]
    assert everything
    assert not any(c.moved for c in everything)


def test_a_recorded_profile_compares_with_itself_and_without_its_lanes():
    profile = json.loads(RECORDED.read_text())
    short = {k: v for k, v in profile.items() if k not in ("lanes", "names")}
    short["kernels"], short["ops"] = short["kernels"][:5], short["ops"][:5]
    found = compare(profile, short)
    assert not any(c.moved for c in (*found.numbers, *found.phases, *found.kernels, *found.ops))
    assert len(found.kernels) == len(found.ops) == 5  # what a summary leaves out is not known, and not zero


def test_numbers_are_sorted_by_how_far_they_moved_and_rows_by_time():
    before, after = gpu_profile(), gpu_profile(step_us=10_000.0)
    after["numbers"]["wait_share"] *= 30
    found = compare(before, after)
    assert found.numbers[0].name == "wait_share"
    differences = [abs(c.difference) for c in found.kernels]
    assert differences == sorted(differences, reverse=True)
    assert found.kernels[0].ratio == pytest.approx(0.5, abs=0.01)  # times in a trace are rounded to 1 ns


def test_kernels_are_compared_per_step_whatever_the_length_of_the_window():
    few, many = gpu_profile(steps=2), gpu_profile(steps=8)
    ratios = [c.ratio for c in compare(few, many).kernels]
    assert all(0.5 < r < 2 for r in ratios)  # in all they took four times as long


def test_a_kernel_that_came_or_went_counts_with_all_its_time():
    before, after = gpu_profile(), gpu_profile()
    before["kernels"] = [k for k in before["kernels"] if "gemm" not in k["name"]]
    top = compare(before, after).kernels[0]
    assert "gemm" in top.name
    assert (top.before, top.ratio) == (0.0, None)
    assert top.after == pytest.approx(next(k for k in after["kernels"] if k["name"] == top.name)["total_us"] / 3)


def test_other_work_is_named_and_nothing_is_called_better():
    found = compare(cpu_profile(), gpu_profile())
    assert set(found.workload) == {"imgsz", "batch", "device", "device_name", "precision"}
    assert found.workload["batch"] == (8, 16)
    assert {c.verdict for c in (*found.numbers, *found.phases, *found.kernels, *found.ops)} == {""}
    assert found.verdicts == ("compute-bound", "host/launch-bound")


def test_settings_within_settings_are_named_one_by_one():
    before, after = gpu_profile(), gpu_profile()
    after["run"]["capture"] = {**before["run"]["capture"], "replayed": 6}
    assert compare(before, after).settings == {"capture.replayed": (0, 6)}


def steps_of(*times):
    profile = gpu_profile()
    profile["steps"] = [{"half": "plain", "step_us": t} for t in times] + [{"half": "bracketed", "step_us": 1e9}]
    return profile


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ((100, 101, 99, 100), (110, 111, 109, 110), True),
        ((100, 140, 60, 100), (110, 150, 70, 110), False),
        ((100,), (200, 201), None),
        ((), (), None),
    ],
)
def test_step_times_differ_when_they_lie_further_apart_than_they_vary(before, after, differs):
    assert step_differs(steps_of(*before), steps_of(*after)) is differs


def test_a_step_that_differs_by_chance_is_neither_better_nor_worse():
    before, after = steps_of(100, 140, 60, 100), steps_of(110, 150, 70, 110)
    after["numbers"]["step_us"] *= 1.1
    step = next(c for c in compare(before, after).numbers if c.name == "step_us")
    assert step.moved
    assert step.verdict == ""


def test_the_traced_steps_alone_are_not_taken_for_the_pace_of_the_others():
    before, after = steps_of(100, 101, 99), steps_of(100, 101, 99)
    after["steps"] += [{"half": "plain", "traced": True, "step_us": 500.0}] * 3
    assert step_differs(before, after) is False


def test_a_comparison_is_plain_values():
    document = compare(gpu_profile(), cpu_profile()).to_dict(top=3)
    assert json.loads(json.dumps(document)) == document
    assert len(document["kernels"]) == len(document["ops"]) == 3
