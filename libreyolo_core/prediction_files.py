"""What ``predict`` writes: annotated pictures and videos, label files, crops, masks.

All of it goes into one run folder, made when the first result arrives: a source that cannot be read leaves nothing.
"""

from __future__ import annotations

import logging
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from libreyolo_core.config import PredictArgs
from libreyolo_core.engine.rundir import new_directory
from libreyolo_core.errors import ConfigError, LibreYOLOError
from libreyolo_core.pictures.grid import write
from libreyolo_core.results import Results
from libreyolo_core.sources import Photo

log = logging.getLogger("libreyolo")
KEPT_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
FPS = 25.0
"""Frame rate of a written video when the source does not tell its own."""


class PredictionFiles:
    """A context that writes the files asked for; leaving it finishes videos and logs where everything is."""

    def __init__(self, args: PredictArgs) -> None:
        self.args = args
        self.wanted = args.save or args.save_txt or args.save_crop or args.save_mask
        self.directory: Path | None = None
        self.written = 0
        self._names: set[str] = set()
        self._name = ""
        self._moving: tuple[str, int] = ("", -1)
        self._video: Any = None
        self._video_size = (0, 0)

    def __enter__(self) -> PredictionFiles:
        return self

    def __exit__(self, *reason: object) -> None:
        self._end_video()
        if self.directory is not None:
            log.info("%d results saved in %s", self.written, self.directory)

    def add(self, photo: Photo, result: Results) -> Path:
        """Write what one result brings; returns the run folder.

        Raises:
            ConfigError: label files, crops or masks of a task that has none.
        """
        if self.args.save_mask and result.semantic_mask is None:
            raise ConfigError("save_mask=true has no meaning without masks", where="predict", mend="Leave it out.")
        if self.args.save_crop and result.boxes is None:
            raise ConfigError("save_crop=true has no meaning without boxes", where="predict", mend="Leave it out.")
        rows = list(label_rows(result, confidence=self.args.save_conf)) if self.args.save_txt else []
        if self.directory is None:
            args = self.args
            self.directory = new_directory(args.project, args.name, exist_ok=args.exist_ok)
        self._advance(photo)
        frame = "" if photo.frame is None else f"_{photo.frame:06d}"
        if self.args.save:
            self._save_picture(photo, result)
        if self.args.save_txt:
            file = self._folder("labels") / f"{self._name}{frame}.txt"
            file.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
        if self.args.save_crop:
            self._save_crops(result, f"{self._name}{frame}")
        if self.args.save_mask:
            mask = np.asarray(result.numpy().semantic_mask).astype(np.uint8)
            write(mask, self._folder("masks") / f"{self._name}{frame}.png")
        self.written += 1
        return self.directory

    def _folder(self, name: str) -> Path:
        assert self.directory is not None
        folder = self.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _advance(self, photo: Photo) -> None:
        """Choose the base name of the files: that of the photo, numbered when two photos share it."""
        path, last = self._moving
        if photo.frame is not None and photo.path == path and photo.frame > last:
            self._moving = (path, photo.frame)
            return
        self._end_video()
        self._moving = ("", -1) if photo.frame is None else (photo.path, photo.frame)
        base = Path(
            urllib.parse.unquote(urllib.parse.urlsplit(photo.path).path) if photo.kind == "url" else photo.path
        ).stem
        base = safe_name(base)
        self._name, number = base, 2
        while self._name.lower() in self._names:
            self._name, number = f"{base}_{number}", number + 1
        self._names.add(self._name.lower())

    def _save_picture(self, photo: Photo, result: Results) -> None:
        assert self.directory is not None
        picture = result.plot()
        if photo.frame is None:
            suffix = Path(photo.path).suffix.lower()
            suffix = suffix if suffix in KEPT_SUFFIXES else ".jpg"
            best = result.restored is not None
            write(picture[..., ::-1], self.directory / f"{self._name}{suffix}", best=best)
            return
        size = (picture.shape[1], picture.shape[0])
        if self._video is None:
            self._video, self._video_size = self._new_video(photo, size), size
        if size != self._video_size:  # a camera may change its size; a file cannot
            picture = cv2.resize(picture, self._video_size)
        self._video.write(np.ascontiguousarray(picture))

    def _new_video(self, photo: Photo, size: tuple[int, int]) -> Any:
        assert self.directory is not None
        for suffix, code in ((".mp4", "mp4v"), (".avi", "MJPG")):
            file = self.directory / f"{self._name}{suffix}"
            video = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*code), photo.fps or FPS, size)
            if video.isOpened():
                return video
            video.release()
            log.warning("This OpenCV cannot write %s videos.", suffix)
        raise LibreYOLOError(
            "This OpenCV can write no video", where="save=true", mend="Use save_txt=true, or install opencv-python."
        )

    def _end_video(self) -> None:
        if self._video is not None:
            self._video.release()
            self._video = None

    def _save_crops(self, result: Results, name: str) -> None:
        assert result.boxes is not None
        h, w = result.orig_shape
        rows = result.boxes.numpy()
        for i, (box, c) in enumerate(zip(np.asarray(rows.xyxy), np.asarray(rows.cls).astype(int), strict=True)):
            x1, y1 = np.floor(np.clip(box[:2], 0, [w, h])).astype(int)
            x2, y2 = np.ceil(np.clip(box[2:], 0, [w, h])).astype(int)
            if x2 > x1 and y2 > y1:
                folder = self._folder("crops") / safe_name(result.names.get(int(c), f"class_{c}"))
                write(result.orig_img[y1:y2, x1:x2, ::-1], folder / f"{name}_{i}.jpg")


def label_rows(result: Results, *, confidence: bool) -> Iterator[str]:
    """Lines of a label file, in shares of the photo; the confidence last when wanted.

    ``class cx cy w h`` for boxes, ``class x y`` for points, ``class`` for the five best classes.

    Raises:
        ConfigError: the task's results are no rows (masks, restored images).
    """
    result = result.numpy()
    if result.boxes is not None:
        place: Any = result.boxes.xywhn
        classes, scores = result.boxes.cls, result.boxes.conf
    elif result.points is not None:
        place, classes, scores = result.points.xyn, result.points.cls, result.points.conf
    elif result.probs is not None:
        classes, scores = np.array(result.probs.top5), result.probs.top5conf
        place = np.zeros((len(classes), 0))
    else:
        raise ConfigError(
            "save_txt=true has no meaning for this task",
            where="predict",
            mend="Leave it out."
            if result.semantic_mask is None
            else "Use save_mask=true for the class of every pixel.",
        )
    for c, at, s in zip(np.asarray(classes), np.asarray(place), np.asarray(scores), strict=True):
        numbers = [f"{v:.6f}" for v in at] + ([f"{s:.6f}"] if confidence else [])
        yield " ".join([str(int(c)), *numbers])


def safe_name(name: str) -> str:
    """``name`` as a file name: no separators, control characters or leading dots, at most 100 characters."""
    return re.sub(r'[\x00-\x1f<>:"/\\|?*]+', "_", name).strip(" .")[:100] or "image"
