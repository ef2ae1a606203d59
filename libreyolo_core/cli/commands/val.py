"""``libreyolo val``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.model import MODEL, load_model, require_model
from libreyolo_core.cli.options import check_values
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.config import ValArgs


@command(
    "val",
    summary="Measure a model on a data set.",
    arguments=ValArgs,
    options=MODEL,
    example="model=runs/train/exp/weights/best.pt data=my.yaml",
)
def val(given: dict[str, Any]) -> Answer:
    """Validate."""
    check_values(ValArgs, given, verb="val")
    require_model(given, verb="val")
    model, rest = load_model(given, verb="val")
    return answer(model.val(**rest))


def answer(metrics: Any) -> Answer:
    """The figures of a validation, in words and as a document."""
    parts: list[str | Table] = [f"{name:<24} {value:.4f}" for name, value in metrics.values.items()]
    if metrics.per_class:
        headings = tuple(metrics.per_class[0])
        rows = tuple(tuple(_shown(row.get(h)) for h in headings) for row in metrics.per_class)
        parts += ["", Table(headings, rows), ""]
    if metrics.speed:
        parts.append("ms per image: " + ", ".join(f"{name} {value:.1f}" for name, value in metrics.speed.items()))
    if metrics.save_dir:
        parts.append(f"pictures in {metrics.save_dir}")
    return Answer(metrics.to_dict(), tuple(parts))


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
