"""Photos of every kind become the same RGB arrays everywhere; damaged and hostile files are one error."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from libreyolo_core.data.decode import MAX_SIDE, check_image, decode_image, image_size, read_image, to_rgb
from libreyolo_core.data.jpeg import exif_orientation, jpeg_header
from libreyolo_core.errors import ImageError

FORMATS = ["jpg", "png", "webp", "tif", "bmp"]


def corners(image: np.ndarray) -> list[str]:
    """Which colour dominates in each corner: top-left, top-right, bottom-left, bottom-right."""
    h, w = image.shape[0] // 4, image.shape[1] // 4
    names = {(1, 0, 0): "red", (0, 1, 0): "green", (0, 0, 1): "blue", (1, 1, 0): "yellow"}
    found = []
    for part in (image[:h, :w], image[:h, -w:], image[-h:, :w], image[-h:, -w:]):
        found.append(names[tuple((part.mean(axis=(0, 1)) > 127).astype(int))])
    return found


@pytest.fixture
def four_colours() -> Image.Image:
    image = np.zeros((48, 80, 3), dtype=np.uint8)
    image[:24, :40], image[:24, 40:], image[24:, :40], image[24:, 40:] = (
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (255, 255, 0),
    )
    return Image.fromarray(image)


UPRIGHT = ["red", "green", "blue", "yellow"]
# what a viewer shows of a stored red, green / blue, yellow image, by EXIF orientation
SHOWN = {
    1: UPRIGHT,
    2: ["green", "red", "yellow", "blue"],
    3: ["yellow", "blue", "green", "red"],
    4: ["blue", "yellow", "red", "green"],
    5: ["red", "blue", "green", "yellow"],
    6: ["blue", "red", "yellow", "green"],
    7: ["yellow", "green", "blue", "red"],
    8: ["green", "yellow", "red", "blue"],
}


@pytest.mark.parametrize("orientation", SHOWN)
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied_once_by_every_reader(tmp_path, four_colours, suffix, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"photo.{suffix}"
    four_colours.save(path, exif=exif)
    image = read_image(path)
    assert corners(image) == SHOWN[orientation]
    assert image_size(path) == check_image(path) == image.shape[:2]
    with Image.open(path) as opened:
        assert np.array_equal(to_rgb(opened), image)
    assert np.array_equal(decode_image(path.read_bytes()), image)


def test_orientation_is_read_in_both_byte_orders():
    def block(order: str) -> bytes:
        mark = b"II*\0" if order == "<" else b"MM\0*"
        return mark + struct.pack(order + "IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)

    assert exif_orientation(block("<")) == exif_orientation(block(">")) == 6
    assert exif_orientation(b"") == exif_orientation(b"II*\0\xff\xff\xff\xff") == 1


@pytest.mark.parametrize("suffix", FORMATS)
def test_upper_case_endings_and_names_that_are_not_ascii_are_read(tmp_path, four_colours, suffix):
    path = tmp_path / "ein Föhn 照片" / f"photo {suffix}.{suffix.upper()}"
    path.parent.mkdir()
    four_colours.save(path)
    assert corners(read_image(path)) == UPRIGHT


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_every_colour_mode_becomes_rgb(tmp_path, four_colours, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    path = tmp_path / f"photo.{suffix}"
    four_colours.convert(mode).save(path)
    image = read_image(path)
    assert image.shape == (48, 80, 3) and image.dtype == np.uint8
    if mode in ("P", "RGBA", "CMYK"):
        assert corners(image) == UPRIGHT
    else:
        assert (image == image[:, :, :1]).all()
    with Image.open(path) as opened:
        assert np.array_equal(to_rgb(opened), image)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_keeps_its_high_byte(tmp_path, suffix):
    values = (np.arange(48 * 80, dtype=np.uint16) * 17).reshape(48, 80)
    Image.fromarray(values).save(tmp_path / f"deep.{suffix}")
    image = read_image(tmp_path / f"deep.{suffix}")
    assert np.array_equal(image, np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_float_pixels_are_refused_because_their_range_is_unknown(tmp_path):
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "deep.tif")
    with pytest.raises(ImageError, match="8 or 16 bits"):
        read_image(tmp_path / "deep.tif")


def test_jpeg_gives_the_same_pixels_by_either_library(tmp_path, smooth_photo):
    path = tmp_path / "a.jpg"
    Image.fromarray(smooth_photo(60, 90)).save(path, quality=90)
    with Image.open(path) as opened:
        assert np.abs(to_rgb(opened).astype(int) - read_image(path)).max() <= 2  # decoders may differ in rounding


def encoded(image: Image.Image, format: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_truncated_files_are_an_error_not_a_half_grey_picture(tmp_path, smooth_photo, format):
    data = encoded(Image.fromarray(smooth_photo(200, 300)), format)
    path = tmp_path / "cut.img"
    for share in (0.4, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        for reader in (read_image, check_image):
            with pytest.raises(ImageError, match="cut.img"):
                reader(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"this is text", b"\0" * 500, b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBP", b"<svg/>", b"GIF89a" + b"\0" * 50],
)
def test_empty_files_and_text_named_jpg_are_an_image_error(tmp_path, data):
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    for reader in (read_image, image_size, check_image):
        with pytest.raises(ImageError) as caught:
            reader(path)
        assert "photo.jpg" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_an_image_error(tmp_path):
    for path in (tmp_path / "none.jpg", tmp_path, "a\0b.jpg"):
        for reader in (read_image, image_size):
            with pytest.raises(ImageError):
                reader(path)


def test_a_huge_image_is_refused_without_allocating_it(tmp_path, smooth_photo):
    files = {"bomb.png": png(100_000, 100_000), "long.png": png(100_000, 10), "wide.png": png(20_000, 20_000)}
    small = bytearray(encoded(Image.fromarray(smooth_photo(20, 30)), "JPEG"))
    frame = small.find(b"\xff\xc0")
    small[frame + 5 : frame + 9] = struct.pack(">HH", MAX_SIDE, MAX_SIDE)
    files["bomb.jpg"] = bytes(small)
    tracemalloc.start()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        for reader in (read_image, image_size, check_image):
            with pytest.raises(ImageError, match="too large"):
                reader(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20  # far below the gigabyte that the smallest of them would take


def test_size_is_found_behind_a_header_longer_than_what_is_read_first(tmp_path, smooth_photo):
    data = encoded(Image.fromarray(smooth_photo(33, 55)), "JPEG")
    filler = b"\xff\xed" + struct.pack(">H", 60_000) + b"\0" * 59_998
    (tmp_path / "a.jpg").write_bytes(data[:2] + filler * 2 + data[2:])
    assert image_size(tmp_path / "a.jpg") == read_image(tmp_path / "a.jpg").shape[:2] == (33, 55)


def test_jpeg_with_bytes_after_its_end_is_complete(tmp_path, smooth_photo):
    data = encoded(Image.fromarray(smooth_photo(33, 55)), "JPEG") + b"\0" * 300
    (tmp_path / "a.jpg").write_bytes(data)
    assert check_image(tmp_path / "a.jpg") == (33, 55)
    assert read_image(tmp_path / "a.jpg").shape == (33, 55, 3)


def test_damaged_jpeg_headers_never_crash_the_parser():
    rng = np.random.default_rng(0)
    good = encoded(Image.fromarray(np.zeros((8, 8, 3), np.uint8)), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0")
    for _ in range(300):
        data = bytearray(good)
        for at in rng.integers(2, len(data), size=4):
            data[at] = int(rng.integers(256))
        jpeg_header(bytes(data))
        jpeg_header(bytes(data[: int(rng.integers(len(data)))]))
