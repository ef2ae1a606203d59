"""From a measured window to the record of a profile: ``profile.json``'s content, and the four files.

Times are in microseconds. ``numbers`` says what the verdict is made from, all of it measured in the plain half:

* ``step_us``, ``wait_us``, ``wait_share``, ``images_per_s``: the plain steps without the tracer;
* ``busy_us_per_step``, ``utilisation``, ``kernels_per_step``, ``kernel_mean_us``: kernels of the traced steps (on a
  machine without a GPU, operators); the utilisation is their share of ``step_us`` (of ``traced_step_us``, as operators
  are slower under the tracer while kernels are not);
* ``overhead_us_per_step``: what tracing adds to a step.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from libreyolo_core import __version__
from libreyolo_core.errors import ProfileError
from libreyolo_core.profiler import trace
from libreyolo_core.profiler.activity import Activity, bounded
from libreyolo_core.profiler.reading import FILE_NAME, SCHEMA
from libreyolo_core.profiler.settings import settings
from libreyolo_core.profiler.verdict import Verdict, verdict
from libreyolo_core.profiler.window import BRACKETED, PHASES, PLAIN, TRACED, StepTime, Window

SUMMARY_ROWS = 20
"""Kernels and operators that the summary lists."""
FILES = (FILE_NAME, "profile_summary.json", "profile_trace.json", "timeline.html")


@dataclass(frozen=True)
class Profile:
    """What a window showed.

    Args:
        verdict: what holds the step up.
        numbers: by name, see ``libreyolo_core.profiler.record``.
        phases: ``name``, ``us_per_step`` and ``share`` of the bracketed half.
        directory: where the four files are.
        record: the content of ``profile.json``.
    """

    verdict: Verdict
    numbers: dict[str, Any]
    phases: list[dict[str, Any]]
    directory: Path
    record: dict[str, Any]

    @property
    def path(self) -> Path:
        """The self-contained file that ``libreyolo profile`` reads."""
        return self.directory / FILE_NAME

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the summary, and where the whole is."""
        return {"path": str(self.path), **summary(self.record)}


def make_profile(window: Window, directory: Path) -> Profile:
    """The profile of a window that has at least one plain and one traced step; nothing is written yet."""
    run, steps = window.run, window.steps
    activity = window.tracer.activity(window.origin_ns)
    before, after = window.before, window.after
    settled = {
        **settings(run, steps[0].epoch),
        "capture": _during(run.captured, before.capture, after.capture),
        "compiled": _during(run.compiled, before.compiled, after.compiled),
        "skipped": run.scaler.skipped,
    }
    numbers = measure(window, activity)
    judged = verdict(numbers, settled)
    lanes, names, dropped = _lanes(activity, steps)
    traced = window.of(TRACED)
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "libreyolo": __version__,
        "torch": torch.__version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "run": settled,
        "window": {
            "warmup": window.extent.warmup,
            "plain": len(window.of(PLAIN)) + len(traced),
            "traced": len(traced),
            "bracketed": len(window.of(BRACKETED)),
            "planned": window.extent.steps,
        },
        "steps": [_step(s) for s in steps],
        "numbers": numbers,
        "phases": phases(window.of(BRACKETED)),
        "verdict": judged.to_dict(),
        "kernels": [
            {"name": k.name, "count": k.count, "total_us": k.total_us, "mean_us": k.mean_us, "max_us": k.max_us}
            for k in activity.kernels()
        ],
        "ops": [
            {"name": o.name, "count": o.count, "total_us": o.total_us, "self_us": o.self_us, "mean_us": o.mean_us}
            for o in activity.operators()
        ],
        "lanes": lanes,
        "lanes_dropped": dropped,
        "names": names,
    }
    return Profile(judged, numbers, record["phases"], directory, record)


def measure(window: Window, activity: Activity) -> dict[str, Any]:
    """The numbers of a window, ``None`` for what was not measured or the device does not have.

    Raises:
        ProfileError: a run on a GPU whose trace has none of its kernels.
    """
    on_gpu = window.run.device.type == "cuda"
    if on_gpu and not activity.on_device:
        raise ProfileError(
            "The trace has no kernels of the GPU",
            where="torch.profiler",
            mend="Often another tool is tracing, or the driver reserves tracing for administrators.",
        )
    plain, traced, bracketed = (window.of(part) for part in (PLAIN, TRACED, BRACKETED))
    numbers = pace(plain, window.drained_us[PLAIN])
    step_us, count = numbers["step_us"], len(traced)
    launched, busy_us = sum(k.count for k in activity.kernels()), activity.busy_us() / count
    traced_us = pace(traced, window.drained_us[TRACED])["step_us"]
    return {
        **numbers,
        "busy_us_per_step": busy_us,
        # tracing makes operators of the CPU slower, kernels of a GPU not
        "utilisation": busy_us / (step_us if on_gpu else traced_us),
        "kernels_per_step": launched / count,
        "kernel_mean_us": busy_us * count / max(1, launched),
        "copy_us_per_step": activity.copies_us() / count if on_gpu else None,
        "operators_per_step": sum(o.count for o in activity.operators()) / count,
        "driver_calls_per_step": (window.between.driver_calls - window.before.driver_calls) / len(plain)
        if on_gpu
        else None,
        "peak_memory_bytes": peak_memory(window.run.device),
        "overhead_us_per_step": traced_us - step_us,
        "traced_step_us": traced_us,
        "bracketed_step_us": pace(bracketed)["step_us"] if bracketed else None,
    }


def pace(steps: Sequence[StepTime], drained_us: float = 0.0) -> dict[str, Any]:
    """Step time, wait and images per second of some steps.

    Args:
        steps: at least one.
        drained_us: what the device still had to do after them.
    """
    total = sum(s.step_us for s in steps) + drained_us
    within = [s for s in steps if not s.first]
    return {
        "step_us": total / len(steps),
        "step_std_us": statistics.stdev(s.step_us for s in steps) if len(steps) > 1 else 0.0,
        "wait_us": sum(s.wait_us for s in steps) / len(steps),
        "wait_share": sum(s.wait_us for s in steps) / total,
        "wait_share_within_epochs": sum(s.wait_us for s in within) / sum(s.step_us for s in within) if within else None,
        "images_per_s": 1e6 * sum(s.images for s in steps) / total,
    }


def phases(steps: Sequence[StepTime]) -> list[dict[str, Any]]:
    """Mean time of every phase over bracketed steps, and its share of the step without the wait for data. What the loop
    does between phases, the log of the loss above all, is ``other``."""
    if not steps:
        return []
    names = [n for n in PHASES if any(n in s.phases for s in steps)]
    means = {n: sum(s.phases[n][1] for s in steps if n in s.phases) / len(steps) for n in names}
    whole = sum(s.step_us - s.wait_us for s in steps) / len(steps)
    means["other"] = max(0.0, whole - sum(means.values()))
    return [{"name": n, "us_per_step": us, "share": us / whole} for n, us in means.items()]


def peak_memory(device: torch.device) -> int:
    """Bytes: the most that tensors took on a CUDA device so far, elsewhere the most that the process took."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """The record without its lanes, and with the largest kernels and operators alone."""
    short = {k: v for k, v in record.items() if k not in ("lanes", "names")}
    return {**short, "kernels": record["kernels"][:SUMMARY_ROWS], "ops": record["ops"][:SUMMARY_ROWS]}


def write_files(profile: Profile) -> None:
    """Write the four files; an earlier profile in the folder is replaced."""
    from libreyolo_core.profiler import timeline

    folder, record = profile.directory, profile.record
    about = {"made by": f"libreyolo {record['libreyolo']}", "model": record["run"]["model"]}
    trace.write_trace(folder / "profile_trace.json", record["lanes"], record["names"], about=about)
    timeline.write_timeline(folder / "timeline.html", record)
    (folder / "profile_summary.json").write_text(_json(summary(record), indent=1), encoding="utf-8")
    (folder / FILE_NAME).write_text(_json(record), encoding="utf-8")


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"


def _step(step: StepTime) -> dict[str, Any]:
    row: dict[str, Any] = {
        "half": "bracketed" if step.part == BRACKETED else "plain",
        "traced": step.part == TRACED,
        "epoch": step.epoch + 1,
        "first_of_epoch": step.first,
        "begin_us": round(step.begin_us, 3),
        "wait_us": round(step.wait_us, 3),
        "step_us": round(step.step_us, 3),
        "images": step.images,
    }
    if step.part == BRACKETED:
        row["phases"] = {name: round(duration, 3) for name, (_, duration) in step.phases.items()}
    return row


def _during(manager: Any, before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """How the measured steps went through a manager of captured or compiled steps; empty without one."""
    if not manager:
        return {}
    counts = {name: count - before.get(name, 0) for name, count in after.items()}
    return {**counts, "reasons": list(manager.counts.reasons)}


def _lanes(activity: Activity, steps: Sequence[StepTime]) -> tuple[list[dict[str, Any]], list[str], int]:
    """The activity's lanes below one of steps and one of phases, which reach over the whole window."""
    lanes, names, dropped = activity.lanes()
    places: dict[str, int] = {}

    def place(name: str) -> int:
        return places.setdefault(name, len(names) + len(places))

    labels = {PLAIN: "plain step", TRACED: "traced step", BRACKETED: "bracketed step"}
    whole = [[s.begin_us, s.step_us, place(labels[s.part])] for s in steps]
    parts: list[list[Any]] = []
    for step in steps:
        parts.append([step.begin_us, step.wait_us, place("wait for data")])
        parts += [[begin, duration, place(name)] for name, (begin, duration) in step.phases.items()]
    own = [{"name": "steps", "kind": "steps", "events": whole}, {"name": "phases", "kind": "phases", "events": parts}]
    lanes, names, _ = bounded([*own, *lanes], [*names, *places])
    return lanes, names, dropped
