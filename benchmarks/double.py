"""Float64 in place of float32, for comparisons: what still differs is not rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def double_precision(on: bool = True) -> Iterator[None]:
    """Inside, new tensors and parameters are float64, and so is what ``Tensor.float()`` makes: images as the network
    gets them, and the islands that losses compute in float32."""
    kept, default = torch.Tensor.float, torch.get_default_dtype()
    if on:
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = kept  # type: ignore[method-assign]
        torch.set_default_dtype(default)
