"""What a ``Results`` holds: boxes, class probabilities, points. Tensors by default, numpy arrays after ``numpy()``."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
F = TypeVar("F", bound="Field")


class Field:
    """Rows of numbers about one photo.

    Args:
        data: the numbers; columns as the subclass says.
        orig_shape: (height, width) of the photo in pixels.
    """

    def __init__(self, data: Array, orig_shape: tuple[int, ...]) -> None:
        self.data = data
        self.orig_shape = (int(orig_shape[0]), int(orig_shape[1]))

    def _with(self: F, data: Array) -> F:
        return type(self)(data, self.orig_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``data``."""
        return tuple(self.data.shape)

    def to(self: F, *args: Any, **kwargs: Any) -> F:
        """As ``torch.Tensor.to``; numpy data become a tensor first."""
        return self._with(torch.as_tensor(self.data).to(*args, **kwargs))

    def cpu(self: F) -> F:
        """On the CPU; numpy data stay what they are."""
        return self._with(self.data.cpu()) if isinstance(self.data, Tensor) else self

    def numpy(self: F) -> F:
        """The same with numpy arrays."""
        return self._with(self.data.cpu().numpy()) if isinstance(self.data, Tensor) else self

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self: F, index: Any) -> F:
        """A subset by integer, slice, mask or list; always keeps the rows' axis."""
        chosen = self.data[index]
        return self._with(chosen[None] if chosen.ndim == self.data.ndim - 1 else chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, orig_shape={self.orig_shape})\n{self.data}"


class Boxes(Field):
    """Detections of a photo, best first; ``data`` float32 [n, 6]: x1, y1, x2, y2 in photo pixels, confidence, class."""

    def __init__(self, data: Array, orig_shape: tuple[int, ...]) -> None:
        data = data[None] if data.ndim == 1 and len(data) else data
        if data.ndim != 2 or data.shape[1] != 6:
            raise ValueError(f"boxes need rows of 6 numbers (x1 y1 x2 y2 confidence class), not shape {data.shape}")
        super().__init__(data, orig_shape)

    @property
    def xyxy(self) -> Array:
        """[n, 4], x1 y1 x2 y2 in photo pixels."""
        return self.data[:, :4]

    @property
    def conf(self) -> Array:
        """[n], confidence 0 to 1."""
        return self.data[:, 4]

    @property
    def cls(self) -> Array:
        """[n], class index (as float, like ``data``)."""
        return self.data[:, 5]

    @property
    def xywh(self) -> Array:
        """[n, 4], centre x, centre y, width, height in photo pixels."""
        low, high = self.data[:, :2], self.data[:, 2:4]
        return _join((low + high) / 2, high - low)

    @property
    def xyxyn(self) -> Array:
        """``xyxy`` as shares of the photo's sides."""
        return self.xyxy / self._sides()

    @property
    def xywhn(self) -> Array:
        """``xywh`` as shares of the photo's sides."""
        return self.xywh / self._sides()

    def _sides(self) -> Array:
        h, w = self.orig_shape
        sides = [float(w), float(h), float(w), float(h)]
        if isinstance(self.data, Tensor):
            return torch.tensor(sides, dtype=self.data.dtype, device=self.data.device)
        return np.array(sides, dtype=self.data.dtype)


class Probs(Field):
    """Class probabilities of a photo; ``data`` float32 [C], sums to 1."""

    def __init__(self, data: Array, orig_shape: tuple[int, ...] = (0, 0)) -> None:
        if data.ndim != 1 or len(data) == 0:
            raise ValueError(f"probabilities are one row of numbers, not shape {tuple(data.shape)}")
        super().__init__(data, orig_shape)

    @property
    def top1(self) -> int:
        """Index of the most probable class."""
        return self.top5[0]

    @property
    def top5(self) -> list[int]:
        """Indices of the five most probable classes (of all, if there are fewer), best first."""
        values = self.data.detach().cpu().numpy() if isinstance(self.data, Tensor) else self.data
        return [int(i) for i in np.argsort(-values, kind="stable")[:5]]

    @property
    def top1conf(self) -> Array:
        """Probability of ``top1``, a scalar."""
        return self.data[self.top1]

    @property
    def top5conf(self) -> Array:
        """Probabilities of ``top5``."""
        return self.data[self.top5]

    def __getitem__(self, index: Any) -> Probs:
        raise TypeError("class probabilities are one row; use .data[index] for the probability of a class")


class Points(Field):
    """Points of a photo, best first; ``data`` float32 [n, 4]: x, y in photo pixels, confidence, class."""

    def __init__(self, data: Array, orig_shape: tuple[int, ...]) -> None:
        if data.ndim != 2 or data.shape[1] != 4:
            raise ValueError(f"points need rows of 4 numbers (x y confidence class), not shape {tuple(data.shape)}")
        super().__init__(data, orig_shape)

    @property
    def xy(self) -> Array:
        """[n, 2] in photo pixels."""
        return self.data[:, :2]

    @property
    def xyn(self) -> Array:
        """[n, 2] as shares of the photo's sides."""
        h, w = self.orig_shape
        if isinstance(self.data, Tensor):
            return self.xy / torch.tensor([float(w), float(h)], dtype=self.data.dtype, device=self.data.device)
        return self.xy / np.array([w, h], dtype=self.data.dtype)

    @property
    def conf(self) -> Array:
        """[n], confidence 0 to 1."""
        return self.data[:, 2]

    @property
    def cls(self) -> Array:
        """[n], class index (as float, like ``data``)."""
        return self.data[:, 3]


def _join(left: Array, right: Array) -> Array:
    if isinstance(left, Tensor):
        return torch.cat([left, torch.as_tensor(right)], dim=1)
    return np.concatenate([left, right], axis=1)
