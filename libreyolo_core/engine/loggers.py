"""The core's experiment loggers; others come through the hook ``libreyolo_loggers``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libreyolo_core.checkpoint import replacing
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.errors import UsageError

if TYPE_CHECKING:
    from libreyolo_core.engine.trainer import Trainer


class CsvLogger(Callback):
    """``results.csv``: one row per epoch. Columns that appear later (a term that a phase switches on) are added to all
    rows; a resumed run keeps the rows of the epochs it does not repeat."""

    def on_start(self, run: Trainer) -> None:
        self.path = run.directory / "results.csv"
        self.rows = [r for r in read_rows(self.path) if int(r["epoch"]) <= run.epoch]

    def on_epoch(self, run: Trainer, row: dict[str, Any]) -> None:
        self.rows.append({k: _text(v) for k, v in row.items()})
        columns = list(dict.fromkeys(key for r in self.rows for key in r))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        with replacing(self.path) as sink:
            sink.write(text.getvalue().encode())


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a results.csv, none when it does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class TensorBoardLogger(Callback):
    """TensorBoard events in the run directory."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError(
                "loggers=tensorboard needs the package tensorboard",
                where="train argument loggers",
                mend="pip install tensorboard, or leave it out.",
            ) from None
        self.make = SummaryWriter

    def on_start(self, run: Trainer) -> None:
        self.writer = self.make(str(run.directory), purge_step=run.epoch + 1 if run.epoch else None)

    def on_epoch(self, run: Trainer, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "epoch":
                self.writer.add_scalar(name, value, row["epoch"])
        self.writer.flush()

    def on_end(self, run: Trainer) -> None:
        self.writer.close()


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
