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
    """Loss scaling for float16, and in every precision the account of steps left out: they are counted, and too many in
    a row stop a hopeless run.

    Args:
        mode: what the forward passes run in.
        guarded: leave out steps with gradients that are not finite where no loss scaling does so; costs a wait for the
            device.
    """

    def __init__(self, mode: Mode, *, guarded: bool = False) -> None:
        self.live = torch.amp.GradScaler(mode.device_type, enabled=mode.dtype == torch.float16)
        self.mode, self.guarded = mode, guarded and not self.live.is_enabled()
        self.skipped = self.in_a_row = 0

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of the scaled loss."""
        self.live.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], clip: float | None) -> bool:
        """Unscale, clip to global norm ``clip``, step. Returns whether the optimizer really stepped."""
        if clip is not None or self.guarded:
            self.live.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf") if clip is None else clip)
            if self.guarded and not torch.isfinite(norm):
                log.warning("a gradient is not finite, step left out")
                return self.leave_out()
        before = self.live.get_scale() if self.live.is_enabled() else 1.0
        self.live.step(optimizer)
        self.live.update()
        if self.live.is_enabled() and self.live.get_scale() < before:
            return self.leave_out()
        self.in_a_row = 0
        return True

    def leave_out(self) -> bool:
        """Count a step that is not made; returns ``False``.

        Raises:
            TrainingError: more than ``MOST_SKIPPED`` in a row.
        """
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        if self.in_a_row <= MOST_SKIPPED:
            return False
        if self.live.is_enabled():
            problem = f"overflowed in float16 (loss scale {self.live.get_scale():g})"
            mend = "Try amp_dtype=bfloat16, amp=false, or a smaller lr0."
        else:
            problem = f"were left out, because loss or gradients are not finite in {self.mode.name}"
            mend = "Try a smaller lr0, clip=1" + ("." if self.mode.dtype == torch.float32 else ", or amp=false.")
        raise TrainingError(f"{self.in_a_row} steps in a row {problem}", where="training", mend=mend)

    def state_dict(self) -> dict:
        """For checkpoints."""
        return {"live": self.live.state_dict(), "skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict) -> None:
        """From a checkpoint."""
        if self.live.is_enabled() and state["live"]:
            self.live.load_state_dict(state["live"])
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]
