"""Models in other formats, and running what was exported.

A format is a function ``export(model, path, options) -> Path`` registered by the hook ``libreyolo_exporters``; ``onnx``
and ``torchscript`` come with the core. Exported graphs take ``images``, float32 [N, 3, H, W], prepared as the data
sheet's ``Input`` says, and return the fields of ``Predictions`` that the task uses, by name. Everything else that
running the model needs (class names, input rule, thresholds) is stored in the file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportOptions:
    """What the exporters are told; the argument of the same name in ``libreyolo_core.config.ExportArgs`` explains each.

    Args:
        imgsz: side of the input in pixels, ``None`` for the model's.
        conf, iou, max_det: used with ``nms``; ``None`` means the sheet's.
    """

    imgsz: int | None = None
    batch: int = 1
    dynamic: bool = False
    dynamic_imgsz: bool = False
    half: bool = False
    nms: bool = False
    conf: float | None = None
    iou: float | None = None
    max_det: int | None = None
    opset: int = 17
