"""A rank that hangs is named: every thread's stack is written where a person looks, then the process ends."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from pathlib import Path


class Watchdog:
    """Watches that a run goes on. Each rank has one; a hang of one rank makes the others wait in a collective, so the
    file of the guilty rank is the one whose stack is *not* in a collective.

    Args:
        seconds: without a sign of life for this long the run counts as hung.
        path: where the stacks go, beside stderr.
        name: how messages call this process.
    """

    def __init__(self, seconds: float, path: Path, name: str) -> None:
        self.seconds, self.path, self.name = seconds, path, name
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def beat(self) -> None:
        """A sign of life."""
        self._last = time.monotonic()

    def __enter__(self) -> Watchdog:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.seconds / 4)):
            if time.monotonic() - self._last > self.seconds:
                self._report()
                os._exit(1)

    def _report(self) -> None:
        os.write(2, f"{self.name} made no step for {self.seconds:g} s; stacks of its threads:\n".encode())
        faulthandler.dump_traceback(file=2, all_threads=True)
        try:
            with self.path.open("w") as file:
                file.write(f"{self.name} made no step for {self.seconds:g} s\n")
                file.flush()
                faulthandler.dump_traceback(file=file, all_threads=True)
            os.write(2, f"also written to {self.path}\n".encode())
        except OSError as error:
            os.write(2, f"{self.path} cannot be written: {error.strerror}\n".encode())
