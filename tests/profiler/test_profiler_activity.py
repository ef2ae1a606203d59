"""What a trace's events add up to: kernels, operators, busy time, lanes."""

from __future__ import annotations

import pytest

from libreyolo_core.profiler.activity import bounded, read_activity
from profiles import cpu_events, event, gpu_events


def kernel(name, stream, begin, duration):
    return event("kernel", name, stream, begin, duration, pid=0)


def test_busy_time_is_summed_over_streams_and_covered_time_counts_overlaps_once():
    activity = read_activity([kernel("a", 7, 0, 100), kernel("b", 20, 50, 100), kernel("a", 7, 300, 50)])
    assert activity.busy_us() == 250
    assert activity.covered_us() == 200
    assert activity.span() == (0, 350)


def test_copies_are_no_kernels_and_no_busy_time():
    copy = event("gpu_memcpy", "Memcpy HtoD", 7, 0, 30, pid=0)
    fill = event("gpu_memset", "Memset", 7, 40, 5, pid=0)
    activity = read_activity([copy, fill, kernel("a", 7, 50, 10)])
    assert (activity.busy_us(), activity.copies_us()) == (10, 35)
    assert [k.name for k in activity.kernels()] == ["a"]
    (lane,), names, _ = activity.lanes()
    assert [names[n] for _, _, n in lane["events"]] == ["Memcpy HtoD", "Memset", "a"]


def test_kernels_add_up_by_name_the_longest_in_all_first():
    many = [kernel("small", 7, i * 10, 2.0) for i in range(6)]
    found = read_activity([kernel("big", 7, 100, 9.0), *many, kernel("big", 7, 200, 1.0)]).kernels()
    assert [(k.name, k.count, k.total_us, k.mean_us, k.max_us) for k in found] == [
        ("small", 6, 12.0, 2.0, 2.0),
        ("big", 2, 10.0, 5.0, 9.0),
    ]


def test_an_operators_own_time_is_without_what_ran_inside_on_its_thread():
    trace = [
        event("cpu_op", "inner", 1, 10, 30),
        event("cpu_op", "outer", 1, 0, 100),
        event("cpu_op", "leaf", 1, 15, 10),
        event("cuda_runtime", "cudaLaunchKernel", 1, 50, 5),
        event("cpu_op", "elsewhere", 2, 10, 30),
        event("cpu_op", "inner", 1, 60, 20),
    ]
    activity = read_activity(trace)
    found = {o.name: (o.count, o.total_us, o.self_us) for o in activity.operators()}
    assert found == {
        "outer": (1, 100, 45),
        "inner": (2, 50, 40),
        "leaf": (1, 10, 10),
        "elsewhere": (1, 30, 30),
    }
    assert activity.driver_calls == {"cudaLaunchKernel": 1}


def test_events_that_touch_are_neighbours_and_not_nested():
    activity = read_activity([event("cpu_op", "a", 1, 0, 10), event("cpu_op", "b", 1, 10, 10)])
    assert {o.name: o.self_us for o in activity.operators()} == {"a": 10, "b": 10}


def test_an_operator_in_one_of_its_own_name_counts_twice_and_its_time_once():
    (only,) = read_activity([event("cpu_op", "a", 1, 0, 10), event("cpu_op", "a", 1, 2, 5)]).operators()
    assert (only.count, only.total_us, only.self_us) == (2, 15, 10)


def test_without_a_device_operators_stand_for_kernels_by_their_own_time():
    trace = [
        event("cpu_op", "outer", 1, 0, 100),
        event("cpu_op", "inner", 1, 10, 30),
        event("cpu_op", "inner", 1, 50, 10),
    ]
    activity = read_activity(trace)
    assert not activity.on_device
    assert [(k.name, k.total_us, k.max_us) for k in activity.kernels()] == [("outer", 60, 60), ("inner", 40, 30)]
    assert activity.busy_us() == sum(k.total_us for k in activity.kernels()) == 100


@pytest.mark.parametrize("make", [gpu_events, cpu_events])
def test_the_order_of_the_events_does_not_matter(make):
    trace = list(make(steps=2, operators=30))
    ahead, back = read_activity(trace), read_activity(reversed(trace))
    for one, other in ((ahead.kernels(), back.kernels()), (ahead.operators(), back.operators())):
        assert [(t.name, t.count) for t in one] == [(t.name, t.count) for t in other]
        assert [t.self_us for t in one] == pytest.approx([t.self_us for t in other])
    assert ahead.busy_us() == pytest.approx(back.busy_us())


def test_what_is_no_complete_event_of_a_known_kind_is_passed_over():
    trace = [
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "cat": "python_function", "name": "f", "ts": 0, "dur": 5},
        {"ph": "i", "cat": "cpu_op", "name": "g", "ts": 0},
        {},
    ]
    activity = read_activity(trace)
    assert (activity.kernels(), activity.operators(), activity.busy_us(), activity.span()) == ([], [], 0, (0, 0))
    assert activity.lanes() == ([], [], 0)


def test_lanes_are_one_per_host_thread_and_stream_in_order():
    lanes, names, dropped = read_activity(gpu_events(steps=2)).lanes()
    assert [lane["name"] for lane in lanes] == ["host thread 1", "host thread 2", "device stream 7", "device stream 20"]
    assert [lane["kind"] for lane in lanes] == ["host", "host", "device", "device"]
    assert dropped == 0
    assert all(lane["events"] == sorted(lane["events"], key=lambda row: row[0]) for lane in lanes)
    assert "cudaLaunchKernel" in names


def test_streams_of_several_devices_say_whose_they_are():
    events = [event("kernel", "a", 7, 0, 1, pid=device) for device in (0, 1)]
    assert [lane["name"] for lane in read_activity(events).lanes()[0]] == [
        "device stream 7 of device 0",
        "device stream 7 of device 1",
    ]


def test_bounded_lanes_keep_the_longest_events_and_all_steps_and_phases():
    steps = {"name": "steps", "kind": "steps", "events": [[i, 0.1, 0] for i in range(30)]}
    host = {"name": "host thread 1", "kind": "host", "events": [[i, float(1 + i % 5), 1] for i in range(50)]}
    empty = {"name": "device stream 7", "kind": "device", "events": [[60, 0.5, 2]]}
    lanes, names, dropped = bounded([steps, host, empty], ["step", "work", "tiny"], 25)
    assert dropped == 26
    assert [lane["name"] for lane in lanes] == ["steps", "host thread 1"]
    assert len(lanes[0]["events"]) == 30
    assert sorted(row[1] for row in lanes[1]["events"]) == [3.0] * 5 + [4.0] * 10 + [5.0] * 10
    assert names == ["step", "work"]
