"""The few facts of a JPEG header that decide how a file is read (ITU-T T.81, annex B; Exif 2.3, section 4.5)."""

from __future__ import annotations

from dataclasses import dataclass

END_OF_IMAGE = b"\xff\xd9"
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # tables and an extension that share the frame markers' range


@dataclass(frozen=True)
class JpegHeader:
    """What stands before the first scan.

    Args:
        height, width: in pixels as stored, before orientation.
        components: 1 grey, 3 colour, 4 CMYK.
        precision: bits per component.
        orientation: Exif orientation, 1 to 8.
        scan: position of the first scan in the file.
    """

    height: int
    width: int
    components: int
    precision: int
    orientation: int
    scan: int


def jpeg_header(data: bytes) -> JpegHeader | None:
    """The header of a JPEG file, or ``None`` if it is damaged or goes on beyond ``data``."""
    position, end, orientation, frame = 2, len(data), 0, None
    while position + 4 <= end:
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a body
            position += 2
            continue
        body, after = position + 4, position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == 0xDA and frame:
            height, width, components, precision = frame
            return JpegHeader(height, width, components, precision, orientation or 1, position)
        if marker in (0xD9, 0xDA) or after <= position + 2:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME and body + 6 <= end:
            size = int.from_bytes(data[body + 1 : body + 3], "big"), int.from_bytes(data[body + 3 : body + 5], "big")
            frame = (*size, data[body + 5], data[body])
        elif marker == 0xE1 and not orientation and data[body : body + 6] == b"Exif\0\0":
            orientation = exif_orientation(data[body + 6 : after])
        position = after
    return None


def exif_orientation(tiff: bytes) -> int:
    """The orientation 1 to 8 in an Exif block (which begins with ``II`` or ``MM``); 1 where there is none."""
    if tiff[:2] not in (b"II", b"MM") or len(tiff) < 8:
        return 1
    order = "little" if tiff[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, min(first + 2 + 12 * number(first, 2), len(tiff) - 11), 12):
        if number(entry, 2) == 0x0112:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1
