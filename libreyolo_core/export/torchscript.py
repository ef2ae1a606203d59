"""Export to TorchScript: a program that runs wherever libtorch does, without this library."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

from libreyolo_core.checkpoint import replacing
from libreyolo_core.errors import ConfigError, ExportError
from libreyolo_core.export import ExportOptions
from libreyolo_core.export.graph import TOLERANCE, compare, dynamic_cases, failed, prepare_subject, quiet, tracing

METADATA = "libreyolo.json"
"""Name of the file inside the archive that holds the metadata."""


def export_torchscript(model: Any, path: str | Path, options: ExportOptions) -> Path:
    """Write ``model`` as a TorchScript file; input and outputs as for ONNX, the latter a tuple in the order of the
    metadata entry ``outputs``.

    The traced program is run and compared with the network before it is put in place.

    Args:
        model: a loaded ``LibreYOLO`` model; it is not changed.

    Raises:
        ExportError: a network that cannot be traced, or results that differ.
        ConfigError: options that the model or the format cannot take.
    """
    if options.nms:
        raise ConfigError(
            "nms=True is for ONNX only", where="export argument nms", mend="Use format=onnx, or leave nms out."
        )
    subject = prepare_subject(model, options)
    graph, example = subject.graph, subject.example
    try:
        with tracing():
            traced = torch.jit.trace(graph, example, check_trace=False)
    except Exception as error:  # tracing runs the network under rules of its own
        raise failed("TorchScript", error) from error
    for case, images in {"": example, **dynamic_cases(options, example, model.sheet.input)}.items():
        _verify(traced, graph, images, case)
    buffer = io.BytesIO()
    with quiet():
        torch.jit.save(traced, buffer, _extra_files={METADATA: json.dumps(subject.metadata)})
    with replacing(path) as sink:
        sink.write(buffer.getbuffer())
    return Path(path)


def _verify(traced: Any, graph: Any, images: torch.Tensor, case: str) -> None:
    with tracing():
        expected = dict(zip(graph.outputs, graph(images)))
        try:
            difference = compare(dict(zip(graph.outputs, traced(images))), expected, TOLERANCE)
        except RuntimeError as error:
            difference = f"it cannot run: {str(error).strip().splitlines()[-1][:160]}"
    if difference:
        raise ExportError(
            f"the traced program differs from the network on images of shape {list(images.shape)}: {difference}",
            where="check of the exported file",
            mend=f"Export without {case}=True." if case else "Export as ONNX instead.",
        )
