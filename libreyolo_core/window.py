"""Showing results on the screen: in one OpenCV window where OpenCV has windows, else in the system's picture viewer."""

from __future__ import annotations

import os
import sys

import cv2

from libreyolo_core.errors import UsageError
from libreyolo_core.results import Results
from libreyolo_core.sources import Photo

TITLE = "LibreYOLO"


class Window:
    """A context; ``show`` draws, leaving it closes the window."""

    def __init__(self) -> None:
        self.open = False

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *reason: object) -> None:
        if self.open:
            cv2.destroyWindow(TITLE)

    def show(self, photo: Photo, result: Results) -> None:
        """Show a result; a photo of a moving source for as long as the next takes.

        Raises:
            UsageError: a video or camera, and this OpenCV has no windows.
        """
        if self._has_windows():
            cv2.imshow(TITLE, result.plot())
            cv2.waitKey(1)
        elif photo.frame is None:
            result.show()
        else:
            raise UsageError(
                "show=true needs a screen and an OpenCV with windows for moving pictures",
                where=photo.path,
                mend="Use save=true, or install opencv-python in place of opencv-python-headless.",
            )

    def _has_windows(self) -> bool:
        if not self.open:
            # OpenCV's Qt backend ends the process when there is no display, so it is asked first
            screen = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
            try:
                if screen:
                    cv2.namedWindow(TITLE, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
                    self.open = True
            except cv2.error:
                self.open = False
        return self.open
