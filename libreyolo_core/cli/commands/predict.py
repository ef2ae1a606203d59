"""``libreyolo predict``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command, is_on
from libreyolo_core.cli.model import MODEL, load_model, require_model
from libreyolo_core.cli.options import check_values
from libreyolo_core.cli.output import Answer
from libreyolo_core.config import PredictArgs


@command(
    "predict",
    summary="Run a model on images, folders or videos.",
    arguments=PredictArgs,
    options=MODEL,
    example="model=runs/train/exp/weights/best.pt source=photos --save",
)
def predict(given: dict[str, Any]) -> Answer:
    """Predict. Results are kept as plain values only, so that a long video does not fill the memory."""
    check_values(PredictArgs, given, verb="predict")
    require_model(given, verb="predict")
    model, rest = load_model(given, verb="predict")
    results, folder = [], None
    for result in model.predict(rest.pop("source"), stream=True, **rest):
        results.append(result.to_dict())
        folder = getattr(result, "save_dir", None) or folder
    writes = any(is_on(given.get(name, "false"), name) for name in ("save", "save_txt", "save_crop", "save_mask"))
    lines = [f"{len(results)} {'image' if len(results) == 1 else 'images'}"]
    if writes and folder:
        lines.append(f"files in {folder}")
    elif not writes:
        lines.append("nothing was written: add --save for pictures, --save-txt for label files")
    document = {"results": results, "save_dir": folder if writes else None}
    if "cuda_graph" in given:
        document["capture"] = model.capture
    return Answer(document, tuple(lines))
