"""A headless Chromium that tests talk to over its debugging pipe: open a page, ask it, move the mouse, press keys."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 180.0
"""For one answer: a machine that many share takes a minute to start the browser."""
START = """
import os, sys
ends = [os.dup(int(number)) for number in sys.argv[1:3]]
for wanted, end in zip((3, 4), ends):
    os.dup2(end, wanted)
    os.set_inheritable(wanted, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads from descriptor 3 and writes to 4."""
CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36}


def find_browser() -> str | None:
    """The path of an installed Chromium or Chrome, or ``None``."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One window of 1280 x 800. A context: leaving it ends the browser.

    Attributes:
        complaints: errors and warnings of the console, uncaught exceptions, and addresses asked for over a network.
    """

    def __init__(self, program: str, profile: Path) -> None:
        self.complaints: list[str] = []
        self._buffer, self._count, self._session = b"", 0, ""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
            "--disable-background-networking --window-size=1280,800 --remote-debugging-pipe"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(to_browser), str(from_browser), program]
            + [*flags.split(), f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)

    def __enter__(self) -> Browser:
        targets = self._ask("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(self, *reason: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def open(self, address: str) -> None:
        """Load a page anew and wait until its script has run."""
        self._ask("Page.navigate", url="about:blank")
        self._ask("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href.startsWith('file:')")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.ask(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def frame(self) -> None:
        """Until what was asked for is drawn."""
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": CODES[key]}
        if key == "Enter":
            text["text"] = "\r"
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mousePressed``, ``mouseReleased``, ``mouseMoved`` or ``mouseWheel`` at a point of the window."""
        held = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseWheel" else {}
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**held, **more})

    def dark(self, on: bool = True) -> None:
        """Prefer dark colours, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot")["data"])

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(given["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value") for a in given["args"]]))
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "about:")):
            self.complaints.append(f"asked for {given['request']['url']}")
