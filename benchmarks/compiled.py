"""Twenty steps eagerly and with compile=True: how far the losses are apart, and what the run said it did.

    python benchmarks/compiled.py                       # yolox-n and rtdetr-r18; minutes on a CPU, most of it compiling
    python benchmarks/compiled.py segformer-b0 --data treecrowns-semantic

Public ``train`` calls on embedded photos, in the family's own precision. They continue weights that were trained for
some epochs: at random weights all predictions cost an assigner the same, and any other order of additions decides
differently. How far that alone goes says the column with another number of threads, an eager run as well. The exit code
says whether the compiled losses agree within a thousandth, and whether all steps ran compiled code.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from statistics import median
from typing import Any

from cases import table

import libreyolo  # noqa: F401  (before torch: bounds the spin of its threads)
from libreyolo import LibreYOLO
from libreyolo_core.engine.callbacks import Callback

STEPS, TOLERANCE, LEARNING = 20, 1e-3, 15


class Clock(Callback):
    """The moments at which steps were done."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_step(self, run: Any) -> None:
        """See ``Callback``."""
        self.at.append(time.perf_counter())

    def step_ms(self) -> float:
        """The median, which compiling and validations do not move."""
        return 1e3 * median(b - a for a, b in zip(self.at, self.at[1:], strict=False))


def losses(weights: str, folder: str, settings: dict[str, Any]) -> tuple[list[float], float, dict[str, Any]]:
    """The loss of each step, milliseconds of a step with its loading, and the run's account of compiling."""
    from step_losses import step_losses

    clock = Clock()
    with step_losses() as found:
        result = LibreYOLO(weights, device="cpu").train(project=folder, callbacks=[clock], **settings)
    return found, clock.step_ms(), result.compile


def learned(model: str, folder: str, settings: dict[str, Any]) -> str:
    """Weights after the first epochs of a training from scratch."""
    import torch

    torch.manual_seed(0)
    start = LibreYOLO(model, pretrained=False, device="cpu")
    result = start.train(project=folder, name=model, **{**settings, "epochs": LEARNING, "no_aug_epochs": 0})
    return str(result.last)


def measure(model: str, folder: str, settings: dict[str, Any]) -> tuple[tuple[Any, ...], bool]:
    """A row, and whether it is as it should be."""
    import torch

    weights, threads = learned(model, folder, settings), torch.get_num_threads()
    eager, eager_ms, _ = losses(weights, folder, settings)
    torch.set_num_threads(2 if threads == 1 else 1)
    other, _, _ = losses(weights, folder, settings)
    torch.set_num_threads(threads)
    compiled, compiled_ms, account = losses(weights, folder, {**settings, "compile": True})
    apart, control = ([abs(a - b) / abs(a) for a, b in zip(eager, found, strict=True)] for found in (compiled, other))
    said = f"{account['compiled']} steps compiled, {account['eager']} eager; {account['graphs']} graph"
    row = (
        model, f"{max(apart[:5]):.0e}", f"{max(apart):.0e}", f"{max(control[:5]):.0e}", f"{max(control):.0e}",
        f"{eager_ms:.0f}", f"{compiled_ms:.0f}", said,
    )  # fmt: skip
    return row, max(apart) <= TOLERANCE and account["compiled"] == len(eager) == STEPS


def main() -> int:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=["yolox-n", "rtdetr-r18"])
    parser.add_argument("--data", default="treecrowns", help="an embedded set of 40 photos or more")
    parser.add_argument("--imgsz", type=int, default=160)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    settings = {
        "data": options.data, "imgsz": options.imgsz, "batch": options.batch, "epochs": 2, "seed": 0,
        "device": "cpu", "plots": False, "workers": 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = [measure(model, folder, settings) for model in options.model]
    head = ("model", "compiled, 5 steps", "20 steps", "other threads, 5 steps", "20 steps")
    head += ("eager step, ms", "compiled step, ms", "what the run says")
    print(table(head, [row for row, _ in found]))
    return 0 if all(right for _, right in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
