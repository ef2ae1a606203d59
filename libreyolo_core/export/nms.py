"""Thresholds, NMS and the choice of the best rows, appended to an ONNX graph that ends in ``boxes`` and ``scores``.

Everything has a static shape but the batch: what NMS keeps is scattered back into the score table, and one top-k takes
the best ``max_det`` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from libreyolo_core.errors import ExportError
from libreyolo_core.export.graph import DETECTIONS
from libreyolo_core.family import Post


class _Builder:
    """Appends nodes and constants under names of their own."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.count = 0

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output (a list of names for several)."""
        import onnx

        self.count += 1
        names = [f"select/{self.count}_{kind}_{i}" for i in range(outputs)]
        self.graph.node.append(onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any) -> str:
        """Add a constant; returns its name."""
        import onnx

        self.count += 1
        name = f"select/{self.count}_constant"
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def integers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant(values, np.int64)


def add_selection(proto: Any, post: Post, levels: Sequence[int]) -> None:
    """Replace the outputs ``boxes`` [N, A, 4] and ``scores`` [N, A, C] of an ONNX model by ``detections``
    [N, max_det, 6], in place.

    Args:
        proto: the ``onnx.ModelProto``.
        post: thresholds and kind of selection.
        levels: rows of each level, for ``post.per_level``.
    """
    import onnx

    build = _Builder(proto.graph)
    scores = _limit_levels(build, "scores", post.per_level, levels) if post.per_level else "scores"
    if post.pick == "best":
        scores = _only_best_class(build, scores)
    table = build.node("Transpose", scores, perm=[0, 2, 1])  # [N, C, A]
    table = _suppressed(build, table, post) if post.nms else _above(build, table, post.conf)
    batch = next(o for o in proto.graph.output if o.name == "boxes").type.tensor_type.shape.dim[0]
    rows = _top_rows(build, table, post.max_det)
    proto.graph.node.append(onnx.helper.make_node("Identity", [rows], [DETECTIONS]))
    kind = onnx.helper.make_tensor_value_info(DETECTIONS, onnx.TensorProto.FLOAT, ["batch", post.max_det, 6])
    kind.type.tensor_type.shape.dim[0].CopyFrom(batch)
    del proto.graph.output[:]
    proto.graph.output.append(kind)


def _only_best_class(build: _Builder, scores: str) -> str:
    """Scores [N, A, C] with all but the best class of each row set to 0."""
    best, _ = build.node("TopK", scores, build.integers(1), outputs=2, axis=2)  # [N, A, 1]
    return _masked(build, scores, build.node("GreaterOrEqual", scores, best))


def _limit_levels(build: _Builder, scores: str, most: int, levels: Sequence[int]) -> str:
    """Scores with the rows of each level beyond its ``most`` best set to 0."""
    if not levels:
        raise ExportError(
            "the selection is per level, and the levels depend on the input size",
            where="export arguments nms and dynamic_imgsz",
            mend="Leave one of the two out.",
        )
    best, _ = build.node("TopK", scores, build.integers(1), outputs=2, axis=2)  # [N, A, 1]
    keeps, start = [], 0
    for count in levels:
        part = build.node("Slice", best, build.integers(start), build.integers(start + count), build.integers(1))
        top, _ = build.node("TopK", part, build.integers(min(most, count)), outputs=2, axis=1)
        least = build.node("Slice", top, build.integers(-1), build.integers(2**31), build.integers(1))  # [N, 1, 1]
        keeps.append(build.node("GreaterOrEqual", part, least))
        start += count
    return _masked(build, scores, build.node("Concat", *keeps, axis=1))


def _masked(build: _Builder, table: str, keep: str) -> str:
    return build.node("Where", keep, table, build.constant(0.0, np.float32))


def _above(build: _Builder, table: str, conf: float) -> str:
    return _masked(build, table, build.node("Greater", table, build.constant(conf, np.float32)))


def _suppressed(build: _Builder, table: str, post: Post) -> str:
    """The score table [N, C, A] with everything that NMS drops set to 0."""
    chosen = build.node(  # [S, 3] of image, class, row
        "NonMaxSuppression",
        "boxes",
        table,
        build.integers(post.max_det),
        build.constant([post.iou], np.float32),
        build.constant([post.conf], np.float32),
    )
    values = build.node("GatherND", table, chosen)  # [S]
    empty = build.node("ConstantOfShape", build.node("Shape", table), value=_zero())
    return build.node("ScatterND", empty, chosen, values)


def _top_rows(build: _Builder, table: str, most: int) -> str:
    """The ``most`` best entries of the score table as rows x1 y1 x2 y2 score class, [N, most, 6]."""
    # padding first, so that there are always enough entries for the top-k; padded entries have score 0
    padded = build.node("Pad", table, build.integers(0, 0, 0, 0, 0, most), mode="constant")  # [N, C, A + most]
    boxes = build.node("Pad", "boxes", build.integers(0, 0, 0, 0, most, 0), mode="constant")  # [N, A + most, 4]
    columns = build.node("Slice", build.node("Shape", padded), build.integers(2), build.integers(3))
    flat = build.node("Reshape", padded, build.integers(0, -1))
    top, index = build.node("TopK", flat, build.integers(most), outputs=2, axis=1)  # [N, most]
    label = build.node("Div", index, columns)
    row = build.node("Unsqueeze", build.node("Mod", index, columns), build.integers(2))  # [N, most, 1]
    where = build.node("Concat", row, row, row, row, axis=2)
    picked = build.node("GatherElements", boxes, where, axis=1)  # [N, most, 4]
    score = build.node("Unsqueeze", top, build.integers(2))
    label = build.node("Unsqueeze", build.node("Cast", label, to=1), build.integers(2))
    return build.node("Concat", picked, score, label, axis=2)


def _zero() -> Any:
    import onnx

    return onnx.helper.make_tensor("zero", onnx.TensorProto.FLOAT, [1], [0.0])
