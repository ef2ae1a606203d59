"""Profiles made by hand: the events of a training step on a GPU and on a CPU, as torch.profiler words them, and the
profile that follows from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from libreyolo_core.profiler.activity import read_activity
from libreyolo_core.profiler.reading import SCHEMA

OPERATORS = ("aten::conv2d", "aten::batch_norm", "aten::silu_", "aten::cat", "aten::add_", "aten::max_pool2d")
KERNELS = (
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnn::bnFwTrainParams)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel, std::array<char*, 2ul> >(int)",
    "void at::native::CatArrayBatchedCopy<float, unsigned int, 4, 64, 64>(float*, at::native::CatArrInputTensor)",
    "multi_tensor_apply_kernel<at::native::FusedSgdFunctor>",
    "void at::native::max_pool_forward_nchw<float>(int, float const*, long, long, long)",
)
MAIN, AUTOGRAD = 4242, 4260
"""Host threads."""
PHASES = {"to_device": 0.03, "forward": 0.35, "backward": 0.5, "optimizer": 0.12}


def gpu_events(steps: int = 3, operators: int = 40, *, step_us: float = 20_000.0, seed: int = 0) -> Iterator[dict]:
    """A trace of training steps: operators in operators, launches, kernels on two streams, one copy a step."""
    draw = random.Random(seed)
    for step in range(steps):
        start = 1000.0 + step * step_us
        yield event("user_annotation", f"ProfilerStep#{step}", MAIN, start, step_us)
        yield event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 7, start + 50, 300.0, pid=0)
        slot = step_us * 0.8 / operators
        for i in range(operators):
            thread = MAIN if i < operators * 0.4 else AUTOGRAD
            kind = draw.randrange(len(OPERATORS))
            begin, length = start + 400 + i * slot, slot * draw.uniform(0.3, 0.9)
            yield event("cpu_op", OPERATORS[kind], thread, begin, length)
            yield event("cpu_op", f"{OPERATORS[kind]}_out", thread, begin + 1, length * 0.8)
            yield event("cuda_runtime", "cudaLaunchKernel", thread, begin + 2, 3.0)
            yield {"ph": "s", "id": i, "pid": 1, "tid": thread, "ts": begin + 2, "cat": "ac2g", "name": "ac2g"}
            stream = 20 if i % 8 == 0 else 7
            yield event("kernel", KERNELS[kind], stream, begin + 9, length * draw.uniform(0.2, 1.0), pid=0)


def cpu_events(steps: int = 3, operators: int = 40, *, step_us: float = 90_000.0, seed: int = 0) -> Iterator[dict]:
    """The same on a machine without a GPU."""
    for found in gpu_events(steps, operators, step_us=step_us, seed=seed):
        if found.get("cat") in ("cpu_op", "user_annotation"):
            yield found


def event(category: str, name: str, tid: int, begin: float, duration: float, *, pid: int = 1) -> dict:
    """One complete event; microseconds."""
    place = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**place, "ts": round(begin, 3), "dur": round(duration, 3), "args": {"External id": 1}}


def profile_of(
    trace: Iterator[dict], *, steps: int = 3, step_us: float, wait_us: float = 400.0, **run: Any
) -> dict[str, Any]:
    """The profile that such a trace gives."""
    activity = read_activity(trace)
    on_gpu = activity.on_device
    lanes, names, dropped = activity.lanes()
    first, kernels = 1000.0, activity.kernels()
    count = sum(k.count for k in kernels)
    step_events, phase_events = [], []
    for step in range(2 * steps):
        half = "plain" if step < steps else "bracketed"
        start = first + step * step_us
        step_events.append([start, step_us, _index(names, f"{half} step")])
        if half == "bracketed":
            at = start + wait_us
            for name, share in PHASES.items():
                phase_events.append([at, share * (step_us - wait_us), _index(names, name)])
                at += share * (step_us - wait_us)
    lanes = [
        {"name": "steps", "kind": "steps", "events": step_events},
        {"name": "phases", "kind": "phases", "events": phase_events},
        *lanes,
    ]
    utilisation = activity.busy_us() / steps / step_us
    bound = "compute-bound" if utilisation >= 0.8 or not on_gpu else "host/launch-bound"
    settings = {
        "model": "yolox-n",
        "task": "detect",
        "imgsz": [640, 640] if on_gpu else [320, 320],
        "batch": 16 if on_gpu else 8,
        "device": "cuda:0" if on_gpu else "cpu",
        "device_name": "NVIDIA H200" if on_gpu else "Intel Xeon",
        "precision": "bfloat16" if on_gpu else "float32",
        "workers": 8 if on_gpu else 0,
        "cache": "ram",
        "compile": "off",
        "threads": 4,
        "cores": 4,
        "capture": {"captured": 0, "replayed": 0, "eager": 2 * steps, "reasons": []},
        **run,
    }
    phases = {n: s * (step_us - wait_us) for n, s in PHASES.items()}
    return {
        "schema": SCHEMA,
        "libreyolo": "0.1.0",
        "torch": "2.14.1",
        "created": "2026-01-01T12:00:00+00:00",
        "run": settings,
        "window": {"warmup": 5, "plain": steps, "traced": steps, "bracketed": steps},
        "steps": [
            {"half": "plain", "begin_us": b, "wait_us": wait_us, "step_us": d + i, "images": settings["batch"]}
            if i < steps
            else {
                "half": "bracketed",
                "begin_us": b,
                "wait_us": wait_us,
                "step_us": d + i,
                "images": settings["batch"],
                "phases": phases,
            }
            for i, (b, d, _) in enumerate(step_events)
        ],
        "numbers": {
            "step_us": step_us,
            "wait_us": wait_us,
            "wait_share": wait_us / step_us,
            "images_per_s": settings["batch"] / step_us * 1e6,
            "busy_us_per_step": activity.busy_us() / steps,
            "utilisation": utilisation,
            "kernels_per_step": count / steps,
            "kernel_mean_us": sum(k.total_us for k in kernels) / max(1, count),
            "driver_calls_per_step": 0.0 if on_gpu else None,
            "peak_memory_bytes": 3_407_872_000 if on_gpu else 1_207_959_552,
            "overhead_us_per_step": 0.03 * step_us,
        },
        "phases": [{"name": n, "us_per_step": us, "share": us / step_us} for n, us in phases.items()],
        "verdict": {
            "name": bound,
            "reason": f"busy {100 * utilisation:.0f}% of a step, {count / steps:.0f} kernels per step",
            "levers": ["cuda_graph=True", "batch: 16 -> 32", "compile=True"]
            if on_gpu
            else ["a smaller model or input"],
        },
        "kernels": [_row(k, "count", "total_us", "mean_us", "max_us") for k in kernels],
        "ops": [_row(o, "count", "total_us", "self_us", "mean_us") for o in activity.operators()],
        "lanes": lanes,
        "names": names,
        "lanes_dropped": dropped,
    }


def gpu_profile(steps: int = 3, operators: int = 40, *, step_us: float = 20_000.0, **run: Any) -> dict[str, Any]:
    """A profile of a launch-bound run on a GPU; ``run`` overrides its settings."""
    trace = gpu_events(steps, operators, step_us=step_us)
    return profile_of(trace, steps=steps, step_us=step_us, **run)


def cpu_profile(steps: int = 3, operators: int = 40, *, step_us: float = 90_000.0, **run: Any) -> dict[str, Any]:
    """A profile of a run on a CPU."""
    trace = cpu_events(steps, operators, step_us=step_us)
    return profile_of(trace, steps=steps, step_us=step_us, **run)


def _index(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def _row(total: Any, *keys: str) -> dict[str, Any]:
    return {"name": total.name, **{key: getattr(total, key) for key in keys}}
