"""Running exported files: the same ``infer`` as a loaded model, from ONNX (onnxruntime) or TorchScript."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from libreyolo_core.data.batch import prepare
from libreyolo_core.errors import CheckpointError, ExportError, UsageError
from libreyolo_core.export.graph import DETECTIONS, INPUT, quiet, rebuilt
from libreyolo_core.export.torchscript import METADATA
from libreyolo_core.family import Input, Loss, Post, Size, Task
from libreyolo_core.predictions import Predictions

SUFFIXES = (".onnx", ".torchscript")


class Engine(Protocol):
    """Prepared float32 images [N, 3, H, W] to the graph's outputs by name, float32 on the CPU or the images' device."""

    def __call__(self, images: Tensor) -> dict[str, Tensor]: ...


@dataclass
class ExportedModel:
    """An exported file, ready to run.

    Args:
        path: the file.
        family, size, task: what was exported; the family's package need not be installed.
        nc, names: classes.
        imgsz: side of the input in pixels.
        sheet: input rule and thresholds as a data sheet.
        batch: images per run of the graph, 0 when any number goes.
        any_size: whether other input sizes go.
        levels: rows of each level of the predictions.
        outputs: names of the graph's outputs.
        metadata: everything stored in the file, as text.
    """

    path: Path
    family: str
    size: str
    task: str
    nc: int
    names: Mapping[int, str]
    imgsz: int
    sheet: Task
    batch: int
    any_size: bool
    levels: tuple[int, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]
    engine: Engine

    def infer(self, images: Tensor) -> Predictions:
        """Canonical predictions for uint8 images [N, 3, H, W] in the network's channel order.

        A graph with a fixed batch runs as often as needed, the last time filled up. A graph with NMS inside returns its
        detections as predictions of one row each.

        Raises:
            UsageError: images of another size than the graph was exported for.
        """
        h, w = images.shape[-2:]
        if not self.any_size and (h, w) != (self.imgsz, self.imgsz):
            raise UsageError(
                f"{self.path} takes {self.imgsz}x{self.imgsz} images, not {w}x{h}",
                where="imgsz",
                mend="Export with dynamic_imgsz=True for photos of their own size."
                if self.sheet.input.fit == "native"
                else "Leave imgsz out, or export with dynamic_imgsz=True.",
            )
        ready = prepare(images, self.sheet.input)
        parts = [self._run(part) for part in (ready.split(self.batch) if self.batch else (ready,))]
        arrays = {name: torch.cat([part[name] for part in parts]) for name in self.outputs}
        if DETECTIONS in arrays:
            return self._as_predictions(arrays[DETECTIONS])
        return Predictions(levels=self.levels, **arrays)

    def _run(self, images: Tensor) -> dict[str, Tensor]:
        count = len(images)
        if self.batch and count < self.batch:
            images = torch.cat([images, images[-1:].expand(self.batch - count, -1, -1, -1)])
        return {name: array[:count] for name, array in self.engine(images).items()}

    def _as_predictions(self, rows: Tensor) -> Predictions:
        """Rows [N, K, 6] as boxes and scores [N, K, C] with one class each."""
        scores = rows.new_zeros(*rows.shape[:2], self.nc)
        scores.scatter_(2, rows[..., 5:6].long(), rows[..., 4:5])
        return Predictions(boxes=rows[..., :4], scores=scores)


def load_exported(path: str | Path, *, device: str | torch.device = "cpu") -> ExportedModel:
    """Open an ``.onnx`` or ``.torchscript`` file that ``export`` wrote.

    Args:
        device: where it runs; ONNX files run on a CUDA device only with the package onnxruntime-gpu.

    Raises:
        CheckpointError: missing or damaged, or exported by something else.
        ExportError: onnxruntime is not installed.
    """
    file = Path(path)
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist", mend="Check the path.")
    device = torch.device(device)
    if file.suffix.lower() == ".onnx":
        engine, meta = _open_onnx(file, device)
    elif file.suffix.lower() == ".torchscript":
        engine, meta = _open_torchscript(file, device)
    else:
        raise CheckpointError(f"{file} is no exported model", mend=f"Give a file with suffix {' or '.join(SUFFIXES)}.")
    try:
        return _described(file, engine, meta)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{file} lacks what is needed to run it: {error}",
            where="its metadata",
            mend="Export it with 'libreyolo export', or run it with a tool of its own.",
        ) from error


def _described(file: Path, engine: Engine, meta: Mapping[str, str]) -> ExportedModel:
    outputs = tuple(json.loads(meta["outputs"]))
    imgsz, nc = int(meta["imgsz"]), int(meta["nc"])
    post = rebuilt(Post, meta["post"])
    if DETECTIONS in outputs:
        post = replace(post, per_level=0)  # done inside; the rows no longer belong to levels
    sheet = Task(
        sizes={meta["size"]: Size(imgsz, params=0)},
        loss=Loss(""),
        input=rebuilt(Input, meta["input"]),
        post=post,
        classes=nc,
    )
    return ExportedModel(
        file,
        meta["model_family"],
        meta["size"],
        meta["task"],
        nc,
        {int(k): v for k, v in json.loads(meta["names"]).items()},
        imgsz,
        sheet,
        int(meta["batch"]),
        bool(json.loads(meta["dynamic_imgsz"])),
        tuple(json.loads(meta["levels"])),
        outputs,
        dict(meta),
        engine,
    )


def _open_onnx(file: Path, device: torch.device) -> tuple[Engine, dict[str, str]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            "the package onnxruntime is not installed", where=str(file), mend="pip install onnxruntime"
        ) from error
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.type == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ExportError(
                f"this onnxruntime cannot use {device}",
                where=str(file),
                mend="pip install onnxruntime-gpu, or device=cpu",
            )
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    # threads that spin between runs starve the loader's workers on small machines
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=providers)
    except Exception as error:  # onnxruntime has its own types
        reason = str(error).splitlines()[0][:160]
        raise CheckpointError(f"{file} is damaged or no ONNX model: {reason}", mend="Export it again.") from error

    def run(images: Tensor) -> dict[str, Tensor]:
        names = [o.name for o in session.get_outputs()]
        arrays = session.run(names, {INPUT: images.cpu().numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}

    return run, dict(session.get_modelmeta().custom_metadata_map)


def _open_torchscript(file: Path, device: torch.device) -> tuple[Engine, dict[str, str]]:
    stored: dict[str, Any] = {METADATA: ""}
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no archive")
        with quiet():
            module = torch.jit.load(str(file), map_location=device, _extra_files=stored).eval()
        meta = json.loads(stored[METADATA] or "{}")
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1][:160]
        raise CheckpointError(
            f"{file} is damaged or no TorchScript program: {reason}", mend="Export it again."
        ) from error
    names = json.loads(meta.get("outputs", "[]"))

    @torch.inference_mode()
    def run(images: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, module(images.to(device)), strict=True))

    return run, meta
