"""Ctrl-C and SIGTERM end a run between two optimizer steps, so that what is saved can be resumed exactly."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

INTERRUPTED, TERMINATED = 1, 2
"""What ``Interrupts.requested`` can be beside 0; the larger one wins among ranks."""
SIGNALS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class Interrupts:
    """Context in which the first Ctrl-C or SIGTERM sets ``requested``, and a second Ctrl-C raises
    ``KeyboardInterrupt`` at once."""

    def __init__(self) -> None:
        self.requested = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = max(self.requested, SIGNALS[signal.Signals(number)])
