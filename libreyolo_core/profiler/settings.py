"""What a run really ran with, for its profile: every setting that changes the speed of a step."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from libreyolo_core.config import TrainArgs
from libreyolo_core.engine.precision import cpu_has_bfloat16
from libreyolo_core.registry import registry
from libreyolo_core.threads import cores, default_workers

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer


def settings(run: Trainer, epoch: int) -> dict[str, Any]:
    """Plain values by name, as they are in ``epoch`` (from 0); sides in pixels."""
    plan, args, identity = run.plan, run.plan.args, run.snapshots.identity
    sheet = plan.phase(epoch).sheet
    family, size = identity["family"], identity["size"]
    workers = default_workers(run.device.type, run.ranks.local_size) if args.workers is None else args.workers
    return {
        "model": f"{family}-{size}",
        "task": identity["task"],
        "nc": identity["nc"],
        "data": str(args.data),
        "images": plan.samples,
        "imgsz": [plan.imgsz, plan.imgsz],
        "multi_scale": sheet.recipe.multi_scale,
        "batch": plan.batch,
        "accumulate": plan.accumulate,
        "batches_per_epoch": plan.batches,
        "epoch": epoch + 1,
        "device": str(run.device),
        "device_name": device_name(run.device),
        "precision": run.mode.name,
        "tf32": args.tf32,
        "channels_last": run.step_module.memory_format == torch.channels_last,
        "cuda_graph": args.cuda_graph,
        "compile": args.compile,
        "optimizer": type(run.optimizer).__name__,
        "ema": run.average is not None,
        "trainable_parameters": sum(p.numel() for p in run.parameters),
        "workers": workers,
        "cache": args.cache,
        "augment": _augmentation(sheet.augment),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "cpu_bfloat16": cpu_has_bfloat16(),
        "capture_off": sheet.capture.off_reason,
        "multiple": sheet.input.multiple,
        "fixed_input": sheet.input.fixed,
        "smaller": _smaller(family, size, identity["task"]),
    }


def device_name(device: torch.device) -> str:
    """The device's name as its maker gives it; for a CPU the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return _processor()
    return device.type


def _processor() -> str:
    import platform

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _augmentation(entries: tuple[Any, ...]) -> dict[str, float]:
    """Probability of every augmentation that a training argument can change, by its name."""
    adjustable = {f.metadata["path"] for f in fields(TrainArgs)}
    paths = {path for joined in adjustable for path in joined.split("|")}
    return {e.name: float(e.p) for e in entries if f"augment.{e.name}.p" in paths}


def _smaller(family: str, size: str, task: str) -> str:
    """The next smaller size of the family, "" for its smallest."""
    sizes = registry().family(family).tasks[task].sizes
    below = [name for name in sizes if sizes[name].params < sizes[size].params]
    return f"{family}-{max(below, key=lambda name: sizes[name].params)}" if below else ""
