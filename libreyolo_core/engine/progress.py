"""What a person sees while a run goes on: a live bar on a terminal, one readable line per epoch elsewhere."""

from __future__ import annotations

import logging
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from libreyolo_core.engine.callbacks import Callback

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer

log = logging.getLogger("libreyolo")


class Progress(Callback):
    """Losses, rate, memory and the time left. The bar is drawn on stderr, so stdout stays clean."""

    def __init__(self) -> None:
        self.bar: Any = None

    def on_start(self, run: Trainer) -> None:
        self.began, self.first = time.monotonic(), run.updates
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.bar.start()
            self.line = self.bar.add_task("step", total=run.plan.updates, completed=run.updates, status="")

    def on_step(self, run: Trainer) -> None:
        if self.bar is not None:
            shown = (
                run.losses.means()
                if run.device.type == "cpu" or run.updates % run.plan.args.log_interval == 0
                else None
            )
            fields = {"status": _losses(shown)} if shown else {}
            self.bar.update(
                self.line, completed=run.updates, description=f"epoch {run.epoch + 1}/{run.plan.epochs}", **fields
            )

    def on_epoch(self, run: Trainer, row: dict[str, Any]) -> None:
        metrics = "  ".join(f"{k.removeprefix('metrics/')} {v:.4f}" for k, v in row.items() if k in run.shown_metrics)
        left = (time.monotonic() - self.began) / max(run.updates - self.first, 1) * (run.plan.updates - run.updates)
        log.info(
            "epoch %*d/%d  %s  %s  %.1f img/s  %s  %s left",
            len(str(run.plan.epochs)),
            row["epoch"],
            run.plan.epochs,
            _losses({k: v for k, v in row.items() if k.startswith("train/")}),
            metrics,
            row["images_per_s"],
            memory(run.device),
            _duration(left),
        )

    def on_end(self, run: Trainer) -> None:
        if self.bar is not None:
            self.bar.stop()


def memory(device: torch.device) -> str:
    """Peak memory of the device (of the process on a CPU)."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"


def _losses(means: dict[str, float]) -> str:
    names = [n for n in means if "_aux_" not in n and "_dn_" not in n]
    return "  ".join(f"{n.removeprefix('train/')} {means[n]:.4g}" for n in names)


def _duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02}m" if hours else f"{m}m{s:02}s"
