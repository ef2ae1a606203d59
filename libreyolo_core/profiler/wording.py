"""The numbers of a profile in words: one label, unit and rounding for the report, the commands and the timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """One entry of a profile's ``numbers``.

    Args:
        key: its name in the file.
        label: what people call it.
        unit: ``us``, ``share`` (of 1), ``bytes``, ``rate`` (per second) or ``count``.
        better: ``lower`` or ``higher``; "" when neither is better in itself.
        on_cpu: the label on a machine without a device, where operators stand for kernels.
    """

    key: str
    label: str
    unit: str
    better: str = ""
    on_cpu: str = ""


NUMBERS = (
    Number("step_us", "step", "us", "lower"),
    Number("wait_us", "waiting for data", "us", "lower"),
    Number("wait_share", "waiting, share of step", "share", "lower"),
    Number("images_per_s", "images per second", "rate", "higher"),
    Number("busy_us_per_step", "device busy per step", "us", on_cpu="in operators per step"),
    Number("utilisation", "device busy, share of step", "share", on_cpu="in operators, share of step"),
    Number("kernels_per_step", "kernels per step", "count", on_cpu="operators per step"),
    Number("kernel_mean_us", "mean kernel", "us", on_cpu="mean operator"),
    Number("driver_calls_per_step", "allocator calls to the driver per step", "count", "lower"),
    Number("copy_us_per_step", "copies per step", "us", "lower"),
    Number("peak_memory_bytes", "peak memory", "bytes", "lower"),
    Number("overhead_us_per_step", "cost of the profiler per step", "us"),
)
"""In the order of a report; a profile may lack some and hold others."""
BY_KEY = {n.key: n for n in NUMBERS}


def duration(us: float) -> str:
    """Microseconds with three digits and a fitting unit: ``850 ns``, ``12.4 us``, ``3.07 ms``, ``1.20 s``."""
    return _scaled(us, ((1e6, "s"), (1e3, "ms"), (1.0, "us"), (1e-3, "ns")))


def size(bytes_: float) -> str:
    """Bytes with three digits: ``1.21 GiB``."""
    return _scaled(bytes_, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))


def share(value: float) -> str:
    """A share of 1 in per cent: ``12.3%``."""
    return f"{100 * value:.1f}%"


def three_digits(value: float) -> str:
    """``0.0123``, ``1.23``, ``12.3``, ``1,234``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")  # 0.9996 has the digits of 1
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def in_words(value: float | None, unit: str) -> str:
    """A value with its unit; ``-`` for one that was not measured."""
    if value is None:
        return "-"
    return {"us": duration, "bytes": size, "share": share}.get(unit, three_digits)(value)


def label(number: Number, run: Mapping[str, Any]) -> str:
    """The label on the machine of a run."""
    return number.on_cpu if number.on_cpu and on_cpu(run) else number.label


def on_cpu(run: Mapping[str, Any]) -> bool:
    """Whether operators of the host stand for kernels."""
    return str(run.get("device", "")).startswith("cpu")


def facts(profile: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The numbers that a glance should catch: label, value, and what the value is of."""
    numbers = profile["numbers"]

    def shown(key: str) -> str:
        return "" if numbers.get(key) is None else in_words(numbers[key], BY_KEY[key].unit)

    cpu = on_cpu(profile["run"])
    found = [
        ("step", shown("step_us"), ""),
        ("images per second", shown("images_per_s"), ""),
        ("waiting for data", shown("wait_share"), f"{shown('wait_us')} a step"),
        ("in operators" if cpu else "device busy", shown("utilisation"), f"{shown('busy_us_per_step')} a step"),
        (
            label(BY_KEY["kernels_per_step"], profile["run"]),
            shown("kernels_per_step"),
            f"{shown('kernel_mean_us')} each",
        ),
        ("peak memory", shown("peak_memory_bytes"), "of the process" if cpu else "of tensors"),
        ("allocator calls to the driver", shown("driver_calls_per_step"), "a step"),
        ("tracing costs", shown("overhead_us_per_step"), "a step, not in the others"),
    ]
    return [fact for fact in found if fact[1]]


def title(profile: Mapping[str, Any]) -> str:
    """What was profiled: ``family-s, detect, batch 8, 320 x 320, float32 on cpu (name of the processor)``."""
    run = profile["run"]
    parts = [str(run[key]) for key in ("model", "task") if run.get(key)]
    if run.get("batch"):
        parts.append(f"batch {run['batch']}")
    if run.get("imgsz"):
        parts.append(sides(run["imgsz"]))
    place = str(run.get("device", ""))
    if run.get("device_name") and run["device_name"] != place:
        place += f" ({run['device_name']})"
    parts.append(" on ".join(p for p in (str(run.get("precision") or ""), place) if p))
    return ", ".join(p for p in parts if p)


def sides(imgsz: Any) -> str:
    """An input size in pixels: ``320 x 320``."""
    return " x ".join(str(s) for s in imgsz) if isinstance(imgsz, (list, tuple)) else f"{imgsz} x {imgsz}"


def window(profile: Mapping[str, Any]) -> str:
    """How many steps were measured, and how."""
    parts = profile["window"]
    traced, bracketed = parts.get("traced", 0), parts["bracketed"]
    more = f", {traced} more with the tracer" if traced else ""
    text = f"{parts['warmup']} steps discarded, {parts['plain'] - traced} plain{more}"
    text += f", {bracketed} with every phase waited for"
    measured = parts["plain"] + bracketed
    if measured < parts.get("planned", measured):
        text += f"; the run ended before all {parts['planned']} were measured"
    return text


def shortened(name: str, width: int = 72) -> str:
    """A kernel's name that fits a table: its beginning and its end, which is what tells kernels apart."""
    if len(name) <= width:
        return name
    head = width * 2 // 3
    return f"{name[:head]}...{name[len(name) - (width - head - 3) :]}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    for scale, unit in units:
        # what would be rounded to 1000 takes the next unit
        if abs(value) >= scale * 0.9995 or unit == units[-1][1]:
            return f"{three_digits(value / scale)} {unit}"
    raise AssertionError("the last unit takes everything")
