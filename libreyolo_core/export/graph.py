"""What every format exports: the deployed network with its canonical predictions, and the metadata beside it."""

from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core import __version__
from libreyolo_core.data.batch import prepare
from libreyolo_core.errors import ConfigError, ExportError
from libreyolo_core.export import ExportOptions
from libreyolo_core.family import Input, Post
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions

INPUT = "images"
DETECTIONS = "detections"
"""Output of a graph with NMS inside: float32 [N, max_det, 6] of x1 y1 x2 y2 score class; unused rows have score 0."""
FIELDS = ("boxes", "scores", "logits", "image")
TOLERANCE = 1e-3
"""How far an exported graph may be off, relative to the largest value of an output (or to 1)."""


class Graph(nn.Module):
    """Prepared images to a tuple of canonical arrays, float32.

    Args:
        network: in its inference form.
        size: (height, width) of the input in pixels, ``None`` to read it from the images.
        half: compute in float16 inside.
    """

    def __init__(self, network: Network, size: tuple[int, int] | None, *, half: bool) -> None:
        super().__init__()
        self.network, self.size, self.half_inside = network, size, half
        self.outputs: tuple[str, ...] = ()
        self.levels: tuple[int, ...] = ()
        self.open_axes: dict[str, dict[int, str]] = {}

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """``images`` float32 [N, 3, H, W], prepared."""
        found = self.predict(images)
        return tuple(getattr(found, name) for name in FIELDS if getattr(found, name) is not None)

    def predict(self, images: Tensor) -> Predictions:
        """The same with names."""
        raw = self.network(images.half() if self.half_inside else images)
        # half precision cannot tell pixels apart beyond 2048, so boxes are decoded in float32
        size = self.size or (images.shape[-2], images.shape[-1])
        return self.network.predictions(as_float(raw), size).map(lambda t: t.float())  # type: ignore[arg-type]


@dataclass
class Subject:
    """A model on its way into a file.

    Args:
        graph: the traced module, on the CPU.
        example: its input, float32 [batch, 3, H, W].
        metadata: text by name, stored in the file.
    """

    graph: Graph
    example: Tensor
    metadata: dict[str, str]


def prepare_subject(model: Any, options: ExportOptions) -> Subject:
    """A deployed copy of the model on the CPU, an example input and the metadata. The model itself is not touched.

    Raises:
        ConfigError: an input size that the network cannot take, or options that contradict each other.
        ExportError: a network that cannot compute in half precision here.
    """
    rule = model.sheet.input
    side = options.imgsz or model.imgsz
    if side % rule.multiple:
        raise ConfigError(
            f"imgsz={side} is no multiple of {rule.multiple}",
            where="export argument imgsz",
            mend=f"Use {side // rule.multiple * rule.multiple or rule.multiple} "
            f"or {(side // rule.multiple + 1) * rule.multiple}.",
        )
    if options.dynamic_imgsz and rule.fixed:
        raise ConfigError(
            "dynamic_imgsz=True is impossible: the network has one input size",
            where="export argument dynamic_imgsz",
            mend="Leave it out.",
        )
    if options.dynamic_imgsz and not model.network.open_sides:
        raise ConfigError(
            "dynamic_imgsz=True is impossible: what this network computes depends on the input's size",
            where="export argument dynamic_imgsz",
            mend="Leave it out and give the size you need: imgsz=512. Larger photos are predicted in tiles.",
        )
    network = copy.deepcopy(model.network).cpu().float().eval().deploy().eval().requires_grad_(False)
    if options.half:
        network = network.half()
    # the ONNX exporter puts the mode of the whole back afterwards, so the outermost module must be in eval mode too
    graph = Graph(network, None if options.dynamic_imgsz else (side, side), half=options.half).eval()
    example = example_images(rule, options.batch, side, side)
    try:
        with torch.no_grad():
            found = graph.predict(example)
    except RuntimeError as error:
        if not options.half:
            raise
        raise ExportError(
            f"the network cannot compute in half precision on the CPU: {_first_line(error)}",
            where="export argument half",
            mend="Export without half=True and convert the file with the tools of your runtime.",
        ) from error
    graph.outputs = tuple(name for name in FIELDS if getattr(found, name) is not None)
    graph.levels = () if options.dynamic_imgsz else found.levels
    graph.open_axes = {name: _open_axes(name, getattr(found, name)) for name in graph.outputs}
    if options.nms and "boxes" not in graph.outputs:
        raise ConfigError(
            f"nms=True has no meaning for the task {model.task_name}: the graph gives no boxes that could overlap",
            where="export argument nms",
            mend="Leave it out; what comes after the graph is done by predict.",
        )
    return Subject(graph, example, describe_model(model, options, side, graph))


def _open_axes(name: str, output: Tensor) -> dict[int, str]:
    """The axes of an output that follow the size of the input: the rows of boxes, the sides of maps and images."""
    return {2: f"{name}_height", 3: f"{name}_width"} if output.ndim == 4 else {1: "rows"} if output.ndim == 3 else {}


def post_inside(post: Post, options: ExportOptions) -> Post:
    """The sheet's rule with the thresholds that go into the graph."""
    chosen = {k: getattr(options, k) for k in ("conf", "iou", "max_det") if getattr(options, k) is not None}
    return Post(**{**asdict(post), **chosen}) if options.nms else post


def describe_model(model: Any, options: ExportOptions, side: int, graph: Graph) -> dict[str, str]:
    """The metadata of an exported file, every value as text (structures as JSON)."""
    return {
        "libreyolo_version": __version__,
        "model_family": str(model.key),
        "size": str(model.size),
        "task": str(model.task_name),
        "nc": str(model.nc),
        "names": json.dumps({int(k): v for k, v in model.names.items()}, ensure_ascii=False),
        "imgsz": str(side),
        "input": json.dumps(asdict(model.sheet.input)),
        "post": json.dumps(asdict(post_inside(model.sheet.post, options))),
        "outputs": json.dumps([DETECTIONS] if options.nms else list(graph.outputs)),
        "levels": json.dumps([] if options.nms else list(graph.levels)),
        "batch": "0" if options.dynamic else str(options.batch),
        "dynamic_imgsz": json.dumps(options.dynamic_imgsz),
        "half": json.dumps(options.half),
    }


def rebuilt(kind: type[Input] | type[Post], text: str) -> Any:
    """An ``Input`` or ``Post`` from its JSON; fields that this version does not know are left out."""
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items() if k in known
    }
    return kind(**values)


def example_images(rule: Input, batch: int, height: int, width: int, *, seed: int = 0) -> Tensor:
    """Seeded images, smooth like photos rather than noise, prepared: float32 [batch, 3, height, width]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, 8, 8, generator=generator) * 255
    pixels = nn.functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return prepare(pixels.round(), rule)


def dynamic_cases(options: ExportOptions, example: Tensor, rule: Input) -> dict[str, Tensor]:
    """For each dynamic option that was asked for, an input unlike the example, on which the graph must be right too."""
    batch, side = len(example), example.shape[-1]
    step = -(-32 // rule.multiple) * rule.multiple
    cases = {}
    if options.dynamic:
        cases["dynamic"] = example_images(rule, batch + 2, side, side, seed=1)
    if options.dynamic_imgsz:
        cases["dynamic_imgsz"] = example_images(rule, batch, side + step, side + 2 * step, seed=2)
    return cases


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings: torch's about its older formats are for whoever writes an exporter, not for who calls one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Conditions under which networks are traced: no gradients, and no fused attention kernel, which no format has."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with quiet(), torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> str:
    """What differs beyond the tolerance, "" when nothing does. Rows of detections are compared as a set when their
    order differs: near-equal scores may change places."""
    for name, wanted in expected.items():
        got = found[name]
        if got.shape != wanted.shape:
            return f"{name} has shape {list(got.shape)} instead of {list(wanted.shape)}"
        scale = max(1.0, wanted.abs().max().item() if wanted.numel() else 1.0)
        off = (got - wanted).abs().max().item() if wanted.numel() else 0.0
        if not off <= tolerance * scale:
            if (
                name in ("boxes", "scores")
                and {"boxes", "scores"} <= set(expected)
                and _same_rows(found, expected, tolerance)
            ):
                continue
            return f"{name} is off by {off:.3g}, allowed {tolerance * scale:.3g}"
    return ""


def _same_rows(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> bool:
    """Whether 98% of the rows of each image are found among the other's rows; the last of a selection may differ."""
    scale = max(1.0, expected["boxes"].abs().max().item())
    got = torch.cat([found["boxes"] / scale, found["scores"]], dim=-1)
    wanted = torch.cat([expected["boxes"] / scale, expected["scores"]], dim=-1)  # [N, A, 4 + C]
    distance = torch.cdist(got, wanted, p=float("inf")).amin(dim=-1)  # [N, A]
    return bool(((distance <= tolerance).float().mean(dim=-1) >= 0.98).all())


def as_float(tree: Any) -> Any:
    """The same tree of tensors with every floating tensor in float32."""
    if isinstance(tree, Tensor):
        return tree.float() if tree.is_floating_point() else tree
    if isinstance(tree, dict):
        return {k: as_float(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(as_float(v) for v in tree)
    return tree


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def failed(format: str, error: Exception) -> ExportError:
    """The one-line form of whatever an exporter raised."""
    return ExportError(
        f"the network cannot be exported as {format}: {_first_line(error)}",
        where=type(error).__name__,
        mend="Try another opset or another format.",
    )
