"""Mixed precision: what was asked for, what the device can do, and what really runs."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

import torch

from libreyolo_core.errors import TrainingError

log = logging.getLogger("libreyolo")
MOST_SKIPPED = 25
"""Overflowing steps in a row after which a run stops."""


@dataclass(frozen=True)
class Mode:
    """The type that forward passes run in; ``float32`` means no autocast."""

    dtype: torch.dtype
    device_type: str

    @property
    def name(self) -> str:
        """``float32``, ``bfloat16`` or ``float16``."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> contextlib.AbstractContextManager:
        """The context of a forward pass."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)


def choose_mode(amp: bool, dtype: str, device: torch.device) -> Mode:
    """What runs for ``amp`` and ``amp_dtype`` on ``device``; every deviation from the request is one log line."""
    if not amp:
        return Mode(torch.float32, device.type)
    if device.type == "cuda":
        if dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            log.warning("amp_dtype=bfloat16: this GPU has none, float16 with a gradient scaler runs instead")
            dtype = "float16"
        return Mode(getattr(torch, dtype), "cuda")
    if device.type == "cpu":
        if dtype == "float16":
            log.info("amp: float16 brings nothing on a CPU, float32 runs instead (amp_dtype=bfloat16 is possible)")
            return Mode(torch.float32, "cpu")
        if not cpu_has_bfloat16():
            log.warning("amp_dtype=bfloat16: this processor has no bfloat16 instructions, float32 runs instead")
            return Mode(torch.float32, "cpu")
        return Mode(torch.bfloat16, "cpu")
    log.info("amp: not used on %s, float32 runs instead", device.type)
    return Mode(torch.float32, device.type)


def cpu_has_bfloat16() -> bool:
    """Whether torch knows that the processor computes bfloat16 in hardware; it tells for x86 alone."""
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(ask and ask())


class Scaler:
    """Loss scaling for float16; does nothing for other types. Counts skipped steps and stops a hopeless run."""

    def __init__(self, mode: Mode) -> None:
        self.live = torch.amp.GradScaler(mode.device_type, enabled=mode.dtype == torch.float16)
        self.skipped = self.in_a_row = 0

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of the scaled loss."""
        self.live.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], clip: float | None) -> bool:
        """Unscale, clip to global norm ``clip``, step. Returns whether the optimizer really stepped."""
        if clip is not None:
            self.live.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        before = self.live.get_scale() if self.live.is_enabled() else 1.0
        self.live.step(optimizer)
        self.live.update()
        stepped = not self.live.is_enabled() or self.live.get_scale() >= before
        self.in_a_row = 0 if stepped else self.in_a_row + 1
        self.skipped += not stepped
        if self.in_a_row > MOST_SKIPPED:
            raise TrainingError(
                f"{self.in_a_row} steps in a row overflowed in float16 (loss scale {self.live.get_scale():g})",
                where="mixed precision",
                mend="Try amp_dtype=bfloat16, amp=false, or a smaller lr0.",
            )
        return stepped

    def state_dict(self) -> dict:
        """For checkpoints."""
        return {"live": self.live.state_dict(), "skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict) -> None:
        """From a checkpoint."""
        if self.live.is_enabled() and state["live"]:
            self.live.load_state_dict(state["live"])
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]
