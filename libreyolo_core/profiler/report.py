"""A profile in words: one screen, the same for a run that goes on and for ``libreyolo profile``. Imports no torch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from libreyolo_core.profiler.wording import duration, share, sides, size, window

WIDTH = 100
COLUMN = 18


def report(profile: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines of text for a profile or its summary."""
    run, numbers, judged = profile["run"], profile["numbers"], profile["verdict"]
    rows = [
        ("run", _run(run)),
        ("window", window(profile)),
        ("step", _step(numbers)),
        ("waiting for data", f"{duration(numbers['wait_us'])} a step, {share(numbers['wait_share'])} of it"),
        _busy(run, numbers),
        ("phases", _phases(run, profile["phases"])),
        ("memory", _memory(run, numbers)),
        ("capture", _manager(run, "capture", "replayed", "captured")),
        ("compile", _manager(run, "compiled", "compiled", "shapes")),
        ("tracing costs", _overhead(numbers)),
        ("verdict", f"{judged['name']}: {judged['reason']}"),
        ("what helps", "; ".join(judged.get("levers", ())) or "nothing that is left to change"),
    ]
    return tuple(line for label, text in rows if text for line in _wrapped(label, text))


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{label:<{COLUMN}}",
        subsequent_indent=" " * COLUMN,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _run(run: Mapping[str, Any]) -> str:
    accumulate = f" (an optimizer step every {run['accumulate']})" if run.get("accumulate", 1) > 1 else ""
    threads = f", {run['threads']} of {run['cores']} cores" if run["device"] == "cpu" else ""
    return (
        f"{run['model']}, {run['task']}, {sides(run['imgsz'])} px, batch {run['batch']}{accumulate}, "
        f"{run['precision']} on {run['device']} ({run['device_name']}{threads}), "
        f"workers={run['workers']}, cache={run['cache'] or 'none'}"
    )


def _step(numbers: Mapping[str, Any]) -> str:
    spread = numbers.get("step_std_us")
    shown = f" (standard deviation {duration(spread)})" if spread else ""
    return f"{duration(numbers['step_us'])}{shown}, {numbers['images_per_s']:.1f} images/s"


def _busy(run: Mapping[str, Any], numbers: Mapping[str, Any]) -> tuple[str, str]:
    busy, used = duration(numbers["busy_us_per_step"]), share(numbers["utilisation"])
    count, mean = f"{numbers['kernels_per_step']:,.0f}", duration(numbers["kernel_mean_us"])
    if str(run["device"]).startswith("cuda"):
        return "device busy", f"{busy} a step, {used} of it: {count} kernels of {mean} on average"
    said = f"{busy} a traced step, {used} of it: {count} operators of {mean} on average"
    return "operators busy", f"{said} (CPU operator time, as there is no GPU)"


def _phases(run: Mapping[str, Any], phases: list[Mapping[str, Any]]) -> str:
    text = ", ".join(f"{p['name']} {duration(p['us_per_step'])} ({share(p['share'])})" for p in phases)
    whole = run.get("cuda_graph") == "full" and (run.get("capture") or {}).get("replayed")
    return f"{text}; forward holds the backward, as one graph does both" if text and whole else text


def _memory(run: Mapping[str, Any], numbers: Mapping[str, Any]) -> str:
    calls = numbers.get("driver_calls_per_step")
    asked = "" if calls is None else f", {calls:.1f} allocator calls to the driver a step"
    whose = "of the process" if run["device"] == "cpu" else "of tensors"
    return f"peak {size(numbers['peak_memory_bytes'])} {whose}{asked}"


def _manager(run: Mapping[str, Any], key: str, done: str, made: str) -> str:
    """How the measured steps went through the capture manager, or the compiler."""
    counts = run.get(key) or {}
    if not counts:
        return ""
    text = f"{counts[done]} measured steps {done}, {counts['eager']} eager"
    if counts.get(made):
        text += f", {counts[made]} shapes made during these steps, which the times include"
    return text + (f" ({counts['reasons'][-1]})" if counts.get("reasons") else "")


def _overhead(numbers: Mapping[str, Any]) -> str:
    cost = numbers["overhead_us_per_step"]
    within = ", within the spread of the steps" if abs(cost) <= (numbers.get("step_std_us") or 0) else ""
    return f"{duration(cost)} a step ({share(cost / numbers['step_us'])}){within}; no time above includes it"
