"""Reading photos: files and PIL images become uint8 RGB arrays, alike everywhere.

What decides how a file is read is its content, never its name or the caller: baseline and progressive JPEG go through
OpenCV, everything else through Pillow, so that training, validation and prediction see the same pixels. EXIF
orientation is read by one function and applied exactly once. Sizes are checked before anything is allocated.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps

from libreyolo_core.data.jpeg import END_OF_IMAGE, exif_orientation, jpeg_header
from libreyolo_core.errors import ImageError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
MAX_PIXELS = 178_956_970
"""Larger photos are refused: half a gigabyte as RGB, and the limit that Pillow itself refuses at."""
MAX_SIDE = 65_535
"""The longest side that any of the formats but PNG and TIFF can have."""
HEAD_BYTES = 1 << 16
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "TIFF")

_RGB_FLAG = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV 4.11 and later
_JPEG = b"\xff\xd8\xff"
_TURNED = (5, 6, 7, 8)


@dataclass(frozen=True)
class _Found:
    """What the header of a file says: (height, width) as stored, and the EXIF orientation 1 to 8."""

    size: tuple[int, int]
    orientation: int = 1

    @property
    def shown(self) -> tuple[int, int]:
        """(height, width) once the orientation is applied."""
        return self.size[::-1] if self.orientation in _TURNED else self.size


def read_image(path: str | os.PathLike[str]) -> np.ndarray:
    """A photo as uint8 RGB [H, W, 3], EXIF orientation applied.

    Raises:
        ImageError: missing, empty, truncated, no image, or larger than ``MAX_PIXELS``.
    """
    return decode_image(_read(path), os.fspath(path))


def decode_image(data: bytes, name: str = "image data") -> np.ndarray:
    """As ``read_image``, from the bytes of a file; ``name`` is used in errors."""
    if not data:
        raise ImageError("The file is empty", where=name, mend=_MEND)
    if data.startswith(_JPEG) and (photo := _decode_jpeg(data, name)) is not None:
        return photo
    with _opened(data, name) as image:
        found = _pil_header(image, data)
        _check_size(found.size, name)
        try:
            image.load()
            return _orient(_rgb(image), 1 if image.format == "TIFF" else found.orientation)
        except ImageError:
            raise
        except Exception as error:  # Pillow's decoders raise many types on damaged files
            raise ImageError(f"The image is damaged: {_reason(error)}", where=name, mend=_MEND) from None


def to_rgb(image: Image.Image) -> np.ndarray:
    """A PIL image as uint8 RGB [H, W, 3]: EXIF orientation applied; grey, 16-bit, alpha, palette and CMYK converted.

    Raises:
        ImageError: a mode whose values have no fixed range (float), or a damaged file behind the image.
    """
    name = getattr(image, "filename", "") or "PIL image"
    _check_size(image.size[::-1], name)
    try:
        found = _pil_header(image, b"")
        image.load()
        return _orient(_rgb(image), 1 if image.format == "TIFF" else found.orientation)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"The image is damaged: {_reason(error)}", where=name, mend=_MEND) from None


def open_raw(path: str | os.PathLike[str]) -> Image.Image:
    """An image file as Pillow holds it, loaded, with the values that stand in it: palette indices, 16 bits; for masks.

    Raises:
        ImageError: as ``read_image``.
    """
    data, name = _read(path), os.fspath(path)
    if not data:
        raise ImageError("The file is empty", where=name, mend=_MEND)
    image = _opened(data, name)
    _check_size(_pil_header(image, data).size, name)
    try:
        image.load()
    except Exception as error:  # as above
        raise ImageError(f"The image is damaged: {_reason(error)}", where=name, mend=_MEND) from None
    return image


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """(height, width) of a photo as it is shown, from its header alone; errors as ``read_image``."""
    name = os.fspath(path)
    head = _read(path, HEAD_BYTES)
    if not head:
        raise ImageError("The file is empty", where=name, mend=_MEND)
    if head.startswith(_JPEG):
        header = jpeg_header(head)
        if header is None and len(head) == HEAD_BYTES:  # colour profiles and thumbnails can be longer
            header = jpeg_header(_read(path))
        if header is not None:
            _check_size((header.height, header.width), name)
            return _Found((header.height, header.width), header.orientation).shown
    with _opened(path, name) as image:
        found = _pil_header(image, b"")
        _check_size(found.size, name)
        return found.shown


def check_image(path: str | os.PathLike[str]) -> tuple[int, int]:
    """As ``image_size``, and the file must be complete. Looks at both ends, decodes only where they leave a doubt."""
    size = image_size(path)
    name = os.fspath(path)
    length = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(16)
        file.seek(max(0, length - 64))
        tail = file.read()
    if head.startswith(_JPEG):
        complete = END_OF_IMAGE in tail
    elif head.startswith(b"\x89PNG"):
        complete = b"IEND" in tail
    elif head.startswith(b"RIFF"):
        complete = length >= 8 + int.from_bytes(head[4:8], "little")
    elif head.startswith(b"BM"):
        complete = length >= int.from_bytes(head[2:6], "little") > 0
    else:
        complete = False
    if not complete:
        decode_image(_read(path), name)
    return size


_MEND = "Replace or remove the file."


def _read(path: str | os.PathLike[str], count: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"The file cannot be read: {reason}", where=os.fspath(path), mend=_MEND) from None


def _decode_jpeg(data: bytes, name: str) -> np.ndarray | None:
    """An ordinary JPEG; ``None`` for one that Pillow must judge (CMYK, no end marker, odd header)."""
    header = jpeg_header(data)
    if header is None:
        return None
    _check_size((header.height, header.width), name)
    ordinary = header.components in (1, 3) and header.precision == 8
    if not ordinary or data.rfind(END_OF_IMAGE, header.scan) < 0:
        return None
    buffer = np.frombuffer(data, np.uint8)
    try:
        if _RGB_FLAG is not None:
            image = cv2.imdecode(buffer, _RGB_FLAG | cv2.IMREAD_IGNORE_ORIENTATION)
        else:
            image = cv2.imdecode(buffer, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
            image = image if image is None else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    except cv2.error:
        image = None
    return None if image is None else _orient(image, header.orientation)


def _opened(file: bytes | str | os.PathLike[str], name: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(file) if isinstance(file, bytes) else Path(file), formats=FORMATS)
    except Image.DecompressionBombError:
        raise _too_large("The image", name) from None
    except Exception as error:  # as above
        problem = "The file is no readable image"
        if isinstance(error, OSError) and error.errno:
            problem = f"The file cannot be read: {error.strerror}"
        raise ImageError(problem, where=name, mend=f"{_MEND} Read are JPEG, PNG, BMP, WEBP and TIFF.") from None


def _pil_header(image: Image.Image, data: bytes) -> _Found:
    """Size and orientation before decoding; later chunks of a file do not count, so header and decoder agree."""
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        size = int(tags.get(257, image.size[1])), int(tags.get(256, image.size[0]))
        return _Found(size, int(tags.get(274, 1)))
    exif = image.info.get("exif", b"")
    exif = exif.removeprefix(b"Exif\0\0") if isinstance(exif, bytes) else b""
    return _Found((image.size[1], image.size[0]), exif_orientation(exif))


def _check_size(size: tuple[int, int], name: str) -> None:
    height, width = size
    if height < 1 or width < 1:
        raise ImageError(f"The image is {width} x {height} pixels", where=name, mend=_MEND)
    if height > MAX_SIDE or width > MAX_SIDE or height * width > MAX_PIXELS:
        raise _too_large(f"The image of {width} x {height} pixels", name)


def _too_large(subject: str, name: str) -> ImageError:
    return ImageError(
        f"{subject} is too large to decode; the limit is {MAX_PIXELS // 10**6} million pixels, {MAX_SIDE} a side",
        where=name,
        mend="Cut it into tiles.",
    )


def _rgb(image: Image.Image) -> np.ndarray:
    if image.format == "TIFF":
        image = ImageOps.exif_transpose(image)
    mode = image.mode
    if mode.startswith("I;16"):
        return _grey16(np.asarray(image))
    if mode == "I" and image.format == "PNG":  # how older Pillow opens 16-bit grey
        return _grey16(np.asarray(image))
    if mode in ("I", "F"):
        raise ImageError(
            f"Its pixels are 32-bit values without a fixed range (mode {mode})",
            where=getattr(image, "filename", "") or "image",
            mend="Save it with 8 or 16 bits per channel.",
        )
    if mode in ("P", "PA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))


def _grey16(values: np.ndarray) -> np.ndarray:
    return np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2)


def _orient(image: np.ndarray, orientation: int) -> np.ndarray:
    """Undo what an EXIF orientation says (TIFF 6.0, tag 274), giving a contiguous array."""
    if orientation == 2:
        return cv2.flip(image, 1)
    if orientation == 3:
        return cv2.rotate(image, cv2.ROTATE_180)
    if orientation == 4:
        return cv2.flip(image, 0)
    if orientation == 5:
        return cv2.transpose(image)
    if orientation == 6:
        return cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE)
    if orientation == 7:
        return cv2.flip(cv2.transpose(image), -1)
    if orientation == 8:
        return cv2.rotate(image, cv2.ROTATE_90_COUNTERCLOCKWISE)
    return image


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:160]
