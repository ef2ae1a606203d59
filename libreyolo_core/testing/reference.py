"""Numeric reference files: weights by key, inputs by name, and what a network must answer."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core.data.batch import prepare
from libreyolo_core.family import Input
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import IGNORED, BoxTargets, ClassTargets, ImageTargets, MaskTargets, Targets
from libreyolo_core.testing.deterministic import image_for, sample_indices, tensor_for

BOXES = (
    ((1, 0.10, 0.15, 0.45, 0.60), (17, 0.50, 0.20, 0.90, 0.55), (3, 0.30, 0.55, 0.80, 0.95)),
    ((62, 0.20, 0.25, 0.75, 0.85),),
)
"""Annotation of the two images of every detection reference: class, x1, y1, x2, y2 as fractions of the side."""


@dataclass(frozen=True)
class Reference:
    """A reference file; ``content`` is its JSON."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def read(cls, path: str | Path) -> Reference:
        """Parse a file."""
        return cls(Path(path), json.loads(Path(path).read_text()))

    @property
    def size(self) -> str:
        """Size key of the family."""
        return str(self.content["size"])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every state-dict entry."""
        return {
            k: () if v == "scalar" else tuple(int(n) for n in str(v).split("x"))
            for k, v in self.content["keys"].items()
        }

    def state(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of the reference. Entries it does not fill keep the value of ``own`` (a fresh network's
        state), or are left out where the network stores none."""
        unfilled = self.content.get("keys_not_filled") or {}
        endings = tuple((self.content.get("keys_scale") or {}).get("ending", ()))
        tied = dict(self.content.get("keys_tied") or {})
        state: dict[str, Tensor] = {}
        for key, shape in self.shapes().items():
            if key in unfilled:
                if key in own:
                    state[key] = own[key].clone()
            elif key.endswith("num_batches_tracked"):
                state[key] = torch.zeros(shape, dtype=torch.int64)
            else:
                name = tied.get(key, key)
                value = tensor_for(name, shape, self.content.get("gain", 1.0))
                if endings and name.endswith(endings):
                    value = (1 + 2 * value).astype(np.float32)
                state[key] = torch.from_numpy(value)
        return state

    def images(self, where: dict[str, Any], rule: Input) -> Tensor:
        """The input of ``where``, the file's ``input`` or ``loss.input``: float [2, 3, H, W], prepared."""
        call = re.search(r"image_for(\(.*?\)\))", where["image"])
        name, shape = ast.literal_eval(call.group(1))  # type: ignore[union-attr]
        pixels = torch.from_numpy(image_for(name, shape)) * 255
        return prepare(pixels.flip(1) if rule.colour == "bgr" else pixels, rule)

    def targets(self, side: tuple[int, int]) -> Targets:
        """The annotation of the training loss for images of ``side`` (height, width)."""
        task, (h, w) = self.content["task"], side
        if task == "classify":
            return ClassTargets(torch.tensor(self.content["loss"]["targets"]["tensor"]))
        if task == "semantic":
            return MaskTargets(torch.from_numpy(_blocks(h, w, self.content["classes"])))
        if task == "restore":
            name = f"{self.content['family']}-target"
            return ImageTargets(torch.from_numpy(image_for(name, (2, 3, h, w))) * 255)
        rows = [torch.tensor(r, dtype=torch.float64) for r in BOXES]
        scale = torch.tensor([w, h, w, h], dtype=torch.float64)
        highest = self.content["classes"] - 1
        return BoxTargets.pad(
            [(r[:, 1:] * scale).float() for r in rows], [r[:, 0].long().clamp(max=highest) for r in rows]
        )

    def compare_predictions(self, found: Predictions) -> list[str]:
        """Differences beyond 1e-4 of the largest absolute value, one line each; none when equal."""
        arrays = {n: getattr(found, n) for n in ("boxes", "scores", "logits", "image") if getattr(found, n) is not None}
        canonical = {k.removeprefix("canonical."): v for k, v in self.content["canonical"].items()}
        if "best_score_sorted" in canonical:
            arrays["best_score_sorted"] = found.scores.amax(-1).sort(dim=-1, descending=True).values  # type: ignore[union-attr]
        in_order = self.content.get("query_order_stable", True)
        problems = []
        for name, expected in canonical.items():
            if name in ("boxes", "scores") and not in_order:
                continue
            problems += compare(f"canonical.{name}", arrays.get(name), expected)
        problems += self._compare_rows(arrays)
        return problems

    def _compare_rows(self, arrays: dict[str, Tensor]) -> list[str]:
        problems = []
        for row in self.content.get("canonical_rows") or ():
            boxes, scores = arrays["boxes"][row["image"]].double(), arrays["scores"][row["image"]].double()
            scale = self.content["canonical"]["canonical.boxes"]["absmax"]
            far = (boxes - torch.tensor(row["box"], dtype=torch.float64)).abs().amax(-1) / scale
            wanted = torch.tensor(list(row["scores"].values()), dtype=torch.float64)
            got = scores[:, [int(c) for c in row["scores"]]]
            far = torch.maximum(far, (got - wanted).abs().amax(-1))
            if far.min() > 1e-4:
                problems.append(
                    f"no query of image {row['image']} is at box {row['box']} (nearest is off by {far.min():.2e})"
                )
        return problems

    def compare_loss(self, named: dict[str, float]) -> tuple[list[str], list[str]]:
        """Differences beyond 1e-3 relative (20 times the recorded conditioning when that is larger), and the components
        that were compared. Terms are found by name, with ``loss_`` before or ``_loss`` behind."""
        recorded = self.content["loss"]
        allowed = max(1e-3, 20 * recorded["conditioning"]["worst_component"])
        problems, compared = [], []
        for name, expected in recorded["components"].items():
            short = name.removeprefix("loss_").removesuffix("_loss")
            value = next((named[n] for n in (name, short) if n in named), None)
            if value is None:
                continue
            compared.append(name)
            if abs(value - expected) > allowed * max(abs(expected), 1e-9):
                problems.append(f"{name} is {value:.7g}, expected {expected:.7g}")
        return problems, compared


def _blocks(height: int, width: int, classes: int) -> np.ndarray:
    """uint8 [2, height, width]: twelve blocks of classes per image, the two top rows ignored."""
    y, x = np.mgrid[:height, :width]
    first = (3 * y // height) * 4 + 4 * x // width
    masks = np.stack([(first + 5 * i) % classes for i in range(2)]).astype(np.uint8)
    masks[:, :2] = IGNORED
    return masks


def compare(name: str, found: Tensor | None, expected: dict[str, Any]) -> list[str]:
    """Shape, sampled values and statistics of one array against its record."""
    if found is None:
        return [f"{name}: the predictions have no such array"]
    array = found.detach().double().cpu().numpy()
    if list(array.shape) != list(expected["shape"]):
        return [f"{name}: shape {list(array.shape)}, expected {expected['shape']}"]
    tolerance = 1e-4 * expected["absmax"]
    flat = array.reshape(-1)
    worst = float(np.abs(flat[sample_indices(name, flat.size)] - np.asarray(expected["samples"])).max())
    problems = [f"{name}: samples differ by {worst:.3e}, allowed {tolerance:.3e}"] if not worst <= tolerance else []
    for statistic, value in (("mean", flat.mean()), ("std", flat.std()), ("absmax", np.abs(flat).max())):
        if not abs(value - expected[statistic]) <= tolerance:
            problems.append(f"{name}: {statistic} {value:.7g}, expected {expected[statistic]:.7g}")
    return problems
