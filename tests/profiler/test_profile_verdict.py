"""The verdict on either side of every threshold, from numbers and from traces shaped like a GPU's."""

from types import SimpleNamespace

import pytest
import torch

from libreyolo_core.errors import ProfileError
from libreyolo_core.profiler.activity import read_activity
from libreyolo_core.profiler.record import measure
from libreyolo_core.profiler.report import report
from libreyolo_core.profiler.verdict import COMPUTE, DATALOADER, LAUNCH, MEMORY, verdict
from libreyolo_core.profiler.window import BRACKETED, PLAIN, TRACED, Counters, StepTime

GPU = {"device": "cuda:0", "model": "toy-l", "smaller": "toy-s", "batch": 8, "imgsz": [640, 640], "workers": 2}
GPU |= {"cores": 16, "cache": "", "augment": {"mosaic": 1.0, "flip": 0.5}, "precision": "float32", "cuda_graph": False}
CPU = {**GPU, "device": "cpu", "cores": 4, "threads": 2, "cpu_bfloat16": True}
FINE = {"wait_share": 0.05, "utilisation": 0.9, "kernels_per_step": 900.0, "kernel_mean_us": 12.0}
FINE |= {"driver_calls_per_step": 0.0}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"wait_share": 0.20}, DATALOADER),
        ({"wait_share": 0.199}, COMPUTE),
        ({"wait_share": 0.20, "utilisation": 0.3, "driver_calls_per_step": 9.0}, DATALOADER),
        ({"driver_calls_per_step": 5.0}, MEMORY),
        ({"driver_calls_per_step": 4.9}, COMPUTE),
        ({"driver_calls_per_step": 5.0, "utilisation": 0.4}, MEMORY),
        ({"utilisation": 1.051}, MEMORY),
        ({"utilisation": 1.05}, COMPUTE),
        ({"utilisation": 0.80}, COMPUTE),
        ({"utilisation": 0.799}, LAUNCH),
    ],
)
def test_each_threshold_parts_two_verdicts_on_a_gpu(changed, name):
    assert verdict({**FINE, **changed}, GPU).name == name


@pytest.mark.parametrize("wait,name", [(0.20, DATALOADER), (0.199, COMPUTE)])
@pytest.mark.parametrize("used", [0.1, 0.9, 1.8])
def test_without_a_gpu_there_are_two_verdicts_and_the_reason_says_what_they_are_made_of(wait, name, used):
    judged = verdict({**FINE, "wait_share": wait, "utilisation": used}, CPU)
    assert judged.name == name
    assert name == DATALOADER or "CPU operator time" in judged.reason


def test_reasons_hold_the_numbers_that_decided():
    launch = verdict({**FINE, "utilisation": 0.41}, GPU)
    assert "41%" in launch.reason and "900 kernels" in launch.reason and "12.0 us" in launch.reason
    starved = verdict({**FINE, "wait_share": 0.62, "wait_share_within_epochs": 0.03}, GPU)
    assert "62%" in starved.reason and "first step of an epoch (within epochs 3%)" in starved.reason
    assert "first step" not in verdict({**FINE, "wait_share": 0.62, "wait_share_within_epochs": 0.6}, GPU).reason


def levers(numbers, **run):
    return " | ".join(verdict({**FINE, **numbers}, {**GPU, **run}).levers)


def test_levers_name_the_present_value_and_leave_out_what_is_pulled_already():
    starved = {"wait_share": 0.5}
    assert levers(starved) == (
        "workers: 2 -> 4 (this machine has 16 cores) | cache=ram (decoded photos stay in memory) | "
        "mosaic_prob: 1 -> 0.5 (lighter augmentation)"
    )
    assert "workers" not in levers(starved, workers=16).partition("|")[0]
    assert "cache=ram" not in levers(starved, cache="ram", augment={}) and levers(starved, cache="ram", augment={})
    idle = {"utilisation": 0.2}
    assert "cuda_graph=true (" in levers(idle) and "batch: 8 -> 16" in levers(idle) and "compile" in levers(idle)
    assert "no lever here: a reason" in levers(idle, capture_off="a reason")
    graphed = levers(idle, cuda_graph=True, capture={"replayed": 20}, compile=True)
    assert graphed == "batch: 8 -> 16 (more work for each kernel)"
    assert "no step here was replayed" in levers(idle, cuda_graph=True, capture={"replayed": 0})
    assert (
        levers({}, tf32=True)
        == "amp=true amp_dtype=bfloat16 (mixed precision) | model: toy-l -> toy-s | imgsz: 640 -> 512"
    )
    assert "imgsz: 96 -> 64" in levers({}, imgsz=[96, 96], multiple=1)
    assert "amp" not in levers({}, precision="bfloat16")
    assert levers({"driver_calls_per_step": 7}).startswith("batch: 8 -> 4")
    assert "OMP_NUM_THREADS" not in levers({}, device="cpu", threads=2, cores=4, workers=2)
    assert "OMP_NUM_THREADS: 1 -> 2" in levers({}, device="cpu", threads=1, cores=4, workers=2)


STEP_US = 10_000.0


def gpu_window(busy, *, streams=1, kernels=50, wait=0.0, calls=0):
    """A window of two plain and two traced steps of 10 ms whose kernels take ``busy`` of a step, and its activity."""

    def step(part, i):
        phases = {"forward": (0.0, 4000.0), "backward": (0.0, 5000.0)}
        return StepTime(part, 0, 8, i * STEP_US, wait * STEP_US, STEP_US, phases=phases)

    steps = [step(part, i) for i, part in enumerate((PLAIN, PLAIN, TRACED, TRACED, BRACKETED))]
    window = SimpleNamespace(
        of=lambda *parts: [s for s in steps if s.part in parts],
        drained_us={PLAIN: 0.0, TRACED: 0.0},
        run=SimpleNamespace(device=torch.device("cuda")),
        before=Counters(driver_calls=3),
        between=Counters(driver_calls=3 + 2 * calls),
    )
    duration = busy * STEP_US / kernels
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7 + k % streams, "ts": k * 90.0, "dur": duration}
        for k in range(2 * kernels)
    ]
    events += [{"ph": "X", "cat": "gpu_memcpy", "name": "HtoD", "pid": 0, "tid": 9, "ts": 0.0, "dur": 6000.0}]
    events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0.0, "dur": 9000.0}]
    return window, read_activity(events)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ({"busy": 0.79}, LAUNCH),
        ({"busy": 0.81}, COMPUTE),
        ({"busy": 1.04, "streams": 3}, COMPUTE),
        ({"busy": 1.06, "streams": 3}, MEMORY),
        ({"busy": 0.9, "calls": 5}, MEMORY),
        ({"busy": 0.9, "calls": 4}, COMPUTE),
        ({"busy": 0.9, "wait": 0.21}, DATALOADER),
    ],
)
def test_a_gpus_trace_is_judged_by_its_kernels_summed_over_streams(made, name):
    numbers = measure(*gpu_window(**made))
    assert verdict(numbers, GPU).name == name
    assert numbers["utilisation"] == pytest.approx(made["busy"], rel=1e-9)  # sums of some hundred floats
    assert numbers["kernels_per_step"] == 50


def test_what_the_device_still_has_to_do_after_the_plain_steps_belongs_to_their_time():
    window, activity = gpu_window(0.9)
    window.drained_us[PLAIN] = 2 * STEP_US  # the host was two steps ahead
    numbers = measure(window, activity)
    assert numbers["step_us"] == 2 * STEP_US and numbers["images_per_s"] == pytest.approx(8 / 0.02)
    assert verdict(numbers, GPU).name == LAUNCH


def test_a_gpus_trace_without_kernels_is_an_error_and_no_verdict():
    window, _ = gpu_window(0.9)
    with pytest.raises(ProfileError, match="no kernels of the GPU"):
        measure(window, read_activity([]))


def test_a_gpus_report_fits_a_screen():
    window, activity = gpu_window(0.5, calls=1)
    numbers = measure(window, activity)
    run = {**GPU, "task": "detect", "device_name": "a GPU", "capture": {"replayed": 3, "eager": 1, "reasons": ["why"]}}
    record = {"run": run, "numbers": numbers, "verdict": verdict(numbers, run).to_dict(), "phases": []}
    record["window"] = {"warmup": 5, "plain": 4, "traced": 2, "bracketed": 1, "planned": 20}
    lines = report(record)
    text = " ".join(" ".join(lines).split())
    assert len(lines) < 24 and max(map(len, lines)) <= 100
    assert "50.0% of it: 50 kernels of 100 us on average" in text and "host/launch-bound" in text
    assert "1.0 allocator calls" in text and "3 measured steps replayed, 1 eager (why)" in text
    assert "the run ended before all 20 were measured" in text
