"""Export to ONNX, checked by running the file with onnxruntime."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from libreyolo_core.checkpoint import replacing
from libreyolo_core.errors import ExportError
from libreyolo_core.export import ExportOptions
from libreyolo_core.export.graph import (
    DETECTIONS,
    INPUT,
    TOLERANCE,
    Graph,
    compare,
    dynamic_cases,
    failed,
    post_inside,
    prepare_subject,
    tracing,
)
from libreyolo_core.family import Input

log = logging.getLogger("libreyolo")
HALF_TOLERANCE = 5e-2
"""Runtimes without float16 kernels compute in float32 what torch rounds after every layer."""


def export_onnx(model: Any, path: str | Path, options: ExportOptions) -> Path:
    """Write ``model`` as an ONNX file.

    The input is ``images``, float32 [batch, 3, H, W]; the outputs are the arrays of ``Predictions`` by name, or with
    ``nms`` one array ``detections`` [batch, max_det, 6]. The file is run with onnxruntime (where installed) and
    compared with the network before it is put in place, also at other batch and input sizes when those are dynamic.

    Args:
        model: a loaded ``LibreYOLO`` model; it is not changed.

    Raises:
        ExportError: a missing package, an operation that ONNX has not, or results that differ.
        ConfigError: options that the model cannot take.
    """
    onnx = _package("onnx")
    subject = prepare_subject(model, options)
    graph = subject.graph
    try:
        content = _traced(subject.graph, subject.example, options)
    except Exception as error:  # the tracer and its operator tables raise many types
        raise failed(f"ONNX with opset {options.opset}", error) from error
    _verify(content, graph, subject.example, options, model.sheet.input)
    proto = onnx.load_from_string(content)
    if options.nms:
        from libreyolo_core.export.nms import add_selection

        post = model.sheet.post
        if not post.nms:
            log.info("%s selects by top-k and needs no NMS: the graph ends in that selection", model.key)
        add_selection(proto, post_inside(post, options), graph.levels)
    onnx.helper.set_model_props(proto, subject.metadata)
    proto.producer_name = "libreyolo"
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    if options.nms:
        _run_once(content, subject.example)
    with replacing(path) as sink:
        sink.write(content)
    return Path(path)


def _traced(graph: Graph, example: Tensor, options: ExportOptions) -> bytes:
    axes: dict[str, dict[int, str]] = {INPUT: {}, **{name: {} for name in graph.outputs}}
    if options.dynamic:
        for names in axes.values():
            names[0] = "batch"
    if options.dynamic_imgsz:
        axes[INPUT] |= {2: "height", 3: "width"}
        for name in graph.outputs:
            axes[name] |= graph.open_axes[name]
    buffer = io.BytesIO()
    with tracing():
        # the tracer, not torch.export: it needs no further package and leaves the shapes of every torch since 2.6 alike
        torch.onnx.export(
            graph,
            (example,),
            buffer,  # type: ignore[arg-type]  # the tracer writes to any binary file
            dynamo=False,
            opset_version=options.opset,
            input_names=[INPUT],
            output_names=list(graph.outputs),
            dynamic_axes={k: v for k, v in axes.items() if v},
        )
    return buffer.getvalue()


def _verify(content: bytes, graph: Graph, example: Tensor, options: ExportOptions, rule: Input) -> None:
    """Run the file on the example, and on every kind of input that is said to be dynamic."""
    try:
        import onnxruntime
    except ImportError:
        log.warning("onnxruntime is not installed, so the file was not run and compared: pip install onnxruntime")
        return
    session = _session(onnxruntime, content)
    for case, images in {"": example, **dynamic_cases(options, example, rule)}.items():
        with torch.no_grad():
            expected = dict(zip(graph.outputs, graph(images)))
        try:
            arrays = session.run(None, {INPUT: images.numpy()})
            difference = compare(
                {n: torch.from_numpy(a) for n, a in zip(graph.outputs, arrays)},
                expected,
                HALF_TOLERANCE if options.half else TOLERANCE,
            )
        except Exception as error:  # onnxruntime has its own types
            difference = f"onnxruntime cannot run it: {str(error).splitlines()[0][:160]}"
        if difference:
            raise ExportError(
                f"the exported graph differs from the network on images of shape {list(images.shape)}: {difference}",
                where="check with onnxruntime",
                mend=f"Export without {case}=True." if case else "Export with another opset, or as torchscript.",
            )


def _run_once(content: bytes, example: Tensor) -> None:
    """The graph with its selection at least loads, runs and has the stated shape."""
    try:
        import onnxruntime
    except ImportError:
        return
    (rows,) = _session(onnxruntime, content).run([DETECTIONS], {INPUT: example.numpy()})
    if rows.ndim != 3 or rows.shape[-1] != 6:
        raise ExportError(
            f"the selection inside the graph returned shape {list(rows.shape)}", mend="Export without nms."
        )


def _session(onnxruntime: Any, content: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExportError(
            f"the package {name} is not installed", where="export to ONNX", mend="pip install 'libreyolo-core[export]'"
        ) from error
