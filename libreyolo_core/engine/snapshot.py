"""Checkpoints of a run: what a resume needs, and putting it back."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from libreyolo_core.checkpoint import File, matches, payload, replacing, write
from libreyolo_core.errors import CheckpointError

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer


@dataclass
class Snapshots:
    """Writes ``weights/last.pt`` (resumable) and ``weights/best.pt`` (weights alone) of one run.

    Args:
        folder: the run's ``weights`` folder.
        identity: family, size, task, nc, names and imgsz, as ``checkpoint.payload`` takes them.
        arguments: the table of arguments, kept so that a resume uses the same.
        training_only: patterns of keys that ``best.pt`` leaves out.
    """

    folder: Path
    identity: dict[str, Any]
    arguments: dict[str, Any]
    training_only: tuple[str, ...] = ()

    @property
    def last(self) -> Path:
        """The newest checkpoint, resumable."""
        return self.folder / "last.pt"

    @property
    def best(self) -> Path:
        """The best epoch's weights."""
        return self.folder / "best.pt"

    def save(self, run: Trainer, *, best: bool, numbered: bool) -> list[Path]:
        """Write ``last.pt``; with ``best`` also ``best.pt``, with ``numbered`` a copy named by its epoch. A file is
        replaced only once its successor is complete on the disk."""
        weights, written = run.weights().state_dict(), []
        if best:
            # before last.pt: a run that ends between the two repeats the epoch, instead of resuming with a record of
            # best weights that were never written
            record = {"epoch": run.best["epoch"], "best_metric": run.best["fitness"], "metrics": run.best["metrics"]}
            kept = {k: v for k, v in weights.items() if not matches(k, self.training_only)}
            written.append(write(self.best, payload(kept, **self.identity, training=record)))
        written.append(write(self.last, payload(weights, **self.identity, training=self._state(run))))
        if numbered:
            copy_ = self.folder / f"epoch{run.epoch}.pt"
            with replacing(copy_) as sink:
                sink.write(self.last.read_bytes())
            written.append(copy_)
        return written

    def _state(self, run: Trainer) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state_all() if run.device.type == "cuda" else []
        return {
            # With averaging the file's weights are the average; training goes on from the raw ones.
            "raw": _on_cpu(run.network.state_dict()) if run.average else None,
            "ema_updates": run.average.updates if run.average else 0,
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
            "epoch": run.epoch,
            "batch_index": run.index,
            "step": run.updates,
            "losses": run.losses.state_dict(),
            "best_metric": run.best["fitness"],
            "best": run.best,
            "finished": run.epoch >= run.plan.epochs,
            "rng_state": {"cpu": torch.get_rng_state(), "cuda": cuda},
            "train_args": self.arguments,
        }


def restore(run: Trainer, file: File) -> None:
    """Put a run where the checkpoint ``file`` left it, bit for bit.

    Raises:
        CheckpointError: a file that holds weights alone, or one of a differently built run.
    """
    state = file.training
    if "optimizer" not in state:
        raise CheckpointError(
            f"{file.path} holds weights but no training state",
            where="resume",
            mend="Resume from weights/last.pt of a run.",
        )
    try:
        run.network.load_state_dict(state["raw"] or file.state)
        if run.average:
            run.average.network.load_state_dict(file.state)
            run.average.updates = state["ema_updates"]
        run.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{file.path} belongs to a differently built run: {str(error).splitlines()[0]}",
            where="resume",
            mend="Resume with the arguments of that run.",
        ) from error
    run.scaler.load_state_dict(state["scaler"])
    run.epoch, run.index, run.updates = state["epoch"], state["batch_index"], state["step"]
    run.best = state["best"]
    run.losses.load_state_dict(state["losses"])
    torch.set_rng_state(state["rng_state"]["cpu"])
    if run.device.type == "cuda" and state["rng_state"]["cuda"]:
        torch.cuda.set_rng_state_all(state["rng_state"]["cuda"])


def _on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: v.detach().cpu().clone() for k, v in state.items()}
