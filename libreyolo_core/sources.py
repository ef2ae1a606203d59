"""Whatever a user may point a model at, as a stream of RGB photos.

``iterate`` looks at the source at once (so a path that does not exist is an error before anything is computed) and
reads photos one by one. A file that cannot be read among several is named in the log and left out.
"""

from __future__ import annotations

import glob
import logging
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

from libreyolo_core.data.decode import SUFFIXES, decode_image, read_image, to_rgb
from libreyolo_core.errors import DataError, ImageError, UsageError, nearest

log = logging.getLogger("libreyolo")

VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"})
FORMS = (
    "an image or video file, a folder, a glob such as 'photos/*.jpg', an http(s) URL, a webcam index such as 0, "
    "a PIL image, a numpy array (BGR, as OpenCV gives it), a torch tensor (RGB), or a list of these"
)
DOWNLOAD_LIMIT = 512 * 2**20
DOWNLOAD_WAIT_S = 20.0
DOWNLOAD_TOTAL_S = 600.0


@dataclass(frozen=True)
class Photo:
    """One photo to predict on.

    Args:
        image: uint8 [H, W, 3], RGB.
        path: file or URL, ``image0``, ``image1``, ... for what came from memory, ``webcam0`` for a camera.
        kind: ``file``, ``url``, ``memory``, ``video`` or ``webcam``.
        frame: number of the frame in its video, counted from 0; ``None`` for single photos.
        fps: frames per second of the stream of photos (after ``vid_stride``), 0 when unknown.
        count: how many photos the whole source has, 0 when unknown.
    """

    image: np.ndarray
    path: str
    kind: str = "file"
    frame: int | None = None
    fps: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class _Entry:
    """One item of a source, checked but not read: a path, a URL, an array or a camera index."""

    kind: str
    value: Any
    path: str


def iterate(source: Any, *, vid_stride: int = 1) -> Iterator[Photo]:
    """Photos of a source.

    Args:
        source: see ``FORMS``. Arrays are [H, W], [H, W, 3] BGR or [H, W, 4] BGRA, uint8 or uint16; tensors [3, H, W]
            or [N, 3, H, W], uint8 or float from 0 to 1.
        vid_stride: use every n-th frame of a video or camera.

    Raises:
        UsageError: a source of another type, or an array of another shape or type.
        DataError: a path that does not exist, an empty folder, a URL that cannot be fetched.
        ImageError: the only file of the source cannot be read.
    """
    entries = _expand(source)
    if vid_stride < 1:
        raise UsageError(f"vid_stride={vid_stride!r} is below 1", where="source", mend="Use 1 for every frame.")
    return _read_all(entries, vid_stride)


def _read_all(entries: list[_Entry], vid_stride: int) -> Iterator[Photo]:
    single = len(entries) == 1
    moving = any(e.kind in ("video", "webcam") or (e.kind == "url" and _is_video(e.path)) for e in entries)
    count = 0 if moving else len(entries)
    good = 0
    for entry in entries:
        try:
            for photo in _read(entry, vid_stride, count):
                good += 1
                yield photo
        except DataError as error:
            if single:
                raise
            log.warning("Left out %s: %s", entry.path, error)
    if not good:
        raise DataError(
            f"None of the {len(entries)} items of the source could be read",
            where=f"first: {entries[0].path}",
            mend="See the log lines above for each reason.",
        )


def _read(entry: _Entry, vid_stride: int, count: int) -> Iterator[Photo]:
    if entry.kind == "memory":
        yield Photo(entry.value, entry.path, "memory", count=count)
    elif entry.kind == "file":
        yield Photo(read_image(entry.value), entry.path, count=count)
    elif entry.kind in ("video", "webcam"):
        yield from _frames(entry.value, entry.path, entry.kind, vid_stride)
    else:
        with tempfile.TemporaryDirectory(prefix="libreyolo-") as folder:
            file = download(entry.value, Path(folder))
            if _is_video(str(file)):
                yield from _frames(str(file), entry.path, "video", vid_stride)
            else:
                yield Photo(decode_image(file.read_bytes(), entry.path), entry.path, "url", count=count)


def _expand(source: Any) -> list[_Entry]:
    entries = _entries(source, [0])
    if not entries:
        raise DataError("The source is an empty list", where="source", mend=f"Give {FORMS}.")
    return entries


def _entries(source: Any, counter: list[int]) -> list[_Entry]:
    """``counter`` numbers what comes from memory, over nested lists."""
    if isinstance(source, (list, tuple)):
        return [entry for item in source for entry in _entries(item, counter)]
    if isinstance(source, bool):
        raise _unknown(source)
    if isinstance(source, (int, np.integer)):
        return [_Entry("webcam", int(source), f"webcam{int(source)}")]
    if isinstance(source, (str, Path)):
        return _named_entries(str(source))
    if isinstance(source, Image.Image):
        return [_memory(to_rgb(source), counter, getattr(source, "filename", "") or "")]
    if isinstance(source, np.ndarray):
        return [_memory(_array_to_rgb(image), counter) for image in (source if source.ndim == 4 else [source])]
    if isinstance(source, torch.Tensor):
        return [_memory(_tensor_to_rgb(image), counter) for image in (source if source.dim() == 4 else source[None])]
    raise _unknown(source)


def _memory(image: np.ndarray, counter: list[int], name: str = "") -> _Entry:
    path = name or f"image{counter[0]}"
    counter[0] += 1
    return _Entry("memory", image, path)


def _named_entries(text: str) -> list[_Entry]:
    if text.lower().startswith(("http://", "https://")):
        try:
            urllib.parse.urlsplit(text)
        except ValueError as error:
            raise DataError(f"{text} is no address: {error}", where="source", mend="Check it.") from error
        return [_Entry("url", text, text)]
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return _folder(path)
        if path.exists():
            return [_file(path)]
        found = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(text) else []
    except (OSError, ValueError) as error:  # a name too long, a null byte
        raise DataError(f"{text[:80]!r} is no usable path: {error}", where="source", mend=f"Give {FORMS}.") from error
    if glob.has_magic(text):
        files = [Path(f) for f in found if Path(f).suffix.lower() in SUFFIXES | VIDEO_SUFFIXES]
        if not files:
            raise DataError(f"No image or video matches {text!r}", where="source", mend="Check folder and pattern.")
        return [_file(f) for f in files]
    if text.isdecimal():
        return [_Entry("webcam", int(text), f"webcam{int(text)}")]
    beside = path.parent
    near = nearest(path.name, [f.name for f in beside.iterdir()]) if beside.is_dir() else []
    mend = f"Did you mean {str(beside / near[0])!r}?" if near else f"Give {FORMS}."
    raise DataError(f"{text!r} does not exist", where="source", mend=mend)


def _folder(path: Path) -> list[_Entry]:
    known = SUFFIXES | VIDEO_SUFFIXES
    files = sorted(f for f in path.iterdir() if f.suffix.lower() in known and f.is_file())
    if not files:
        deeper = next((f for f in path.rglob("*") if f.suffix.lower() in known), None)
        mend = f"For subfolders use a glob: '{path}/**/*{deeper.suffix}'." if deeper else "Check the path."
        raise DataError(f"{str(path)!r} holds no image and no video", where="source", mend=mend)
    return [_file(f) for f in files]


def _file(path: Path) -> _Entry:
    return _Entry("video" if _is_video(str(path)) else "file", str(path), str(path))


def _is_video(path: str) -> bool:
    return Path(urllib.parse.urlsplit(path).path if "://" in path else path).suffix.lower() in VIDEO_SUFFIXES


def _unknown(source: Any) -> UsageError:
    return UsageError(f"A source of type {type(source).__name__} cannot be read", where="source", mend=f"Give {FORMS}.")


def _array_to_rgb(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint16:
        image = (image >> 8).astype(np.uint8)
    channels = 1 if image.ndim == 2 else image.shape[-1] if image.ndim == 3 else 0
    if image.dtype != np.uint8 or channels not in (1, 3, 4) or image.size == 0:
        raise UsageError(
            f"An array of shape {image.shape} and type {image.dtype} is no image",
            where="source",
            mend="Give uint8 or uint16 [H, W], [H, W, 3] in BGR order, or [H, W, 4] in BGRA order.",
        )
    image = np.ascontiguousarray(image.reshape(*image.shape[:2], channels))
    codes = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGB}
    return cv2.cvtColor(image, codes[channels])


def _tensor_to_rgb(image: torch.Tensor) -> np.ndarray:
    image = image.detach().cpu()
    mend = "Give RGB [3, H, W] or [N, 3, H, W], uint8, or float from 0 to 1."
    if image.dim() != 3 or image.shape[0] not in (1, 3) or image.numel() == 0:
        raise UsageError(f"A tensor of shape {tuple(image.shape)} is no image", where="source", mend=mend)
    if image.is_floating_point():
        image = image.float()
        low, high = image.aminmax()
        if not (low >= 0 and high <= 1):  # also false for NaN
            raise UsageError(
                f"A float tensor with values from {float(low):.3g} to {float(high):.3g} is no image",
                where="source",
                mend=mend,
            )
        image = (image * 255).round().to(torch.uint8)
    elif image.dtype != torch.uint8:
        raise UsageError(f"A tensor of type {image.dtype} is no image", where="source", mend=mend)
    return np.ascontiguousarray(image.expand(3, -1, -1).permute(1, 2, 0).numpy())


def _frames(source: str | int, path: str, kind: str, vid_stride: int) -> Iterator[Photo]:
    stream = cv2.VideoCapture(source)
    with closing(_Released(stream)):
        if not stream.isOpened():
            what = "camera cannot be opened" if kind == "webcam" else "video cannot be opened"
            mend = "Check the index and permissions." if kind == "webcam" else "Check that it is a complete video file."
            raise ImageError(f"{path}: {what}", where="source", mend=mend)
        fps = float(stream.get(cv2.CAP_PROP_FPS) or 0.0) / vid_stride
        number = -1
        while stream.grab():
            number += 1
            if number % vid_stride:
                continue
            good, image = stream.retrieve()
            if not good:
                log.warning("%s: frame %d cannot be decoded, left out", path, number)
                continue
            yield Photo(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), path, kind, number, fps)
        if number < 0:
            raise ImageError(f"{path}: no frame can be read", where="source", mend="Check that it is a video file.")


@dataclass(frozen=True)
class _Released:
    stream: Any

    def close(self) -> None:
        self.stream.release()


def download(url: str, folder: Path, *, limit: int = DOWNLOAD_LIMIT) -> Path:
    """Fetch ``url`` (http or https) into ``folder`` and return the file, named as the URL's last part.

    Raises:
        DataError: not reachable, an HTTP error, slower than 20 s per answer or 10 minutes in all, or above ``limit``
            bytes.
    """
    parts = urllib.parse.urlsplit(url)
    name = Path(urllib.parse.unquote(parts.path)).name or "download"
    file = folder / name[-100:].replace("\0", "")
    quoted = urllib.parse.quote(parts.path, safe="/%:@!$&'()*+,;=~-._")
    address = urllib.parse.urlunsplit((parts.scheme, parts.netloc, quoted, parts.query, ""))
    request = urllib.request.Request(address, headers={"User-Agent": "libreyolo"})
    deadline = time.monotonic() + DOWNLOAD_TOTAL_S
    try:
        with urllib.request.urlopen(request, timeout=DOWNLOAD_WAIT_S) as answer, open(file, "wb") as out:
            stated = answer.headers.get("Content-Length", "")
            size = int(stated) if stated.isdecimal() else 0
            while size <= limit and time.monotonic() < deadline:
                block = answer.read(1 << 20)
                if not block:
                    return file
                out.write(block)
                size = max(size, out.tell())
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        reason = f"HTTP {error.code} {reason}" if isinstance(error, urllib.error.HTTPError) else reason
        raise DataError(
            f"{url} cannot be fetched: {reason}", where="source", mend="Check address and network."
        ) from error
    problem = f"is larger than {limit >> 20} MB" if size > limit else f"takes longer than {DOWNLOAD_TOTAL_S:.0f} s"
    raise DataError(f"{url} {problem}", where="source", mend="Download it yourself and give the file.")
