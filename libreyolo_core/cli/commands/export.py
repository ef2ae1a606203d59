"""``libreyolo export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.model import MODEL, load_model, require_model
from libreyolo_core.cli.options import check_values
from libreyolo_core.cli.output import Answer
from libreyolo_core.config import ExportArgs


@command(
    "export",
    summary="Write a model as ONNX or TorchScript.",
    arguments=ExportArgs,
    options=MODEL,
    example="model=runs/train/exp/weights/best.pt format=onnx --dynamic",
)
def export(given: dict[str, Any]) -> Answer:
    """Export."""
    check_values(ExportArgs, given, verb="export")
    require_model(given, verb="export")
    model, rest = load_model(given, verb="export")
    path = Path(model.export(**rest))
    size = path.stat().st_size
    document = {"path": path, "format": given.get("format", ExportArgs.format), "bytes": size}
    return Answer(document, (f"{path}  {size / 1e6:.1f} MB",))
