"""Every form of source gives RGB photos; what cannot be read is named."""

import functools
import http.server
import logging
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core import sources
from libreyolo_core.errors import DataError, ImageError, UsageError
from libreyolo_core.sources import iterate

RED = (200, 30, 10)


@pytest.fixture
def folder(tmp_path):
    """``a.png``, ``b.PNG``, ``ü 1.bmp``, a text file and a subfolder with ``deep.png``."""
    root = tmp_path / "photos"
    (root / "sub").mkdir(parents=True)
    for name in ("b.PNG", "a.png", "ü 1.bmp", "sub/deep.png"):
        Image.new("RGB", (6, 4), RED).save(root / name)
    (root / "notes.txt").write_text("no photo")
    return root


def make_video(path: Path, frames: int = 6) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (32, 16))
    for i in range(frames):
        writer.write(np.full((16, 32, 3), 40 * i, np.uint8))
    writer.release()
    return path


def names(source, **options):
    return [Path(p.path).name for p in iterate(source, **options)]


def test_a_file_gives_one_rgb_photo(folder):
    for source in (folder / "a.png", str(folder / "a.png")):
        (photo,) = iterate(source)
        assert photo.image.shape == (4, 6, 3) and tuple(photo.image[0, 0]) == RED
        assert photo.path == str(folder / "a.png") and photo.frame is None and photo.count == 1


def test_a_folder_gives_its_pictures_in_order_whatever_the_case_of_their_suffix(folder):
    assert names(folder) == ["a.png", "b.PNG", "ü 1.bmp"]


def test_globs_lists_and_subfolders(folder):
    assert names(str(folder / "*.png")) == ["a.png"]
    assert names(str(folder / "**/*.png")) == ["a.png", "deep.png"]
    assert names([folder / "b.PNG", [str(folder / "a.png")], folder / "sub"]) == ["b.PNG", "a.png", "deep.png"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(folder):
    (folder / "a.png").rename(folder / "a[1].png")
    assert names(str(folder / "a[1].png")) == ["a[1].png"]


def test_a_photo_is_known_by_its_content_and_not_its_suffix(folder):
    (folder / "a.png").rename(folder / "a")
    assert names(folder / "a") == ["a"]


def test_arrays_are_bgr_as_opencv_gives_them(folder):
    bgr = cv2.imread(str(folder / "a.png"))
    (photo,) = iterate(bgr)
    assert tuple(photo.image[0, 0]) == RED and photo.path == "image0" and photo.kind == "memory"
    alpha = np.dstack([bgr, np.full(bgr.shape[:2], 9, np.uint8)])
    assert tuple(next(iterate(alpha)).image[0, 0]) == RED
    grey = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for form in (grey, grey[..., None]):
        assert (next(iterate(form)).image == grey[..., None]).all()
    assert next(iterate(grey.astype(np.uint16) * 256)).image[3, 5].tolist() == [23] * 3
    assert len(list(iterate(np.stack([bgr, bgr])))) == 2
    assert tuple(next(iterate(bgr[::-1, ::-1])).image[0, 0]) == RED  # negative strides


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 6, 3), np.float32),
        np.zeros((3, 4, 6, 2), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(5, np.uint8),
    ],
)
def test_arrays_that_are_no_image_are_refused(wrong):
    with pytest.raises(UsageError, match="is no image.*BGR"):
        iterate(wrong)


def test_tensors_are_rgb_from_zero_to_one_or_bytes():
    image = torch.tensor(RED, dtype=torch.uint8)[:, None, None].expand(3, 4, 6)
    for form in (image, image.float() / 255, image.half() / 255, (image.double() / 255)[None]):
        (photo,) = iterate(form)
        assert tuple(photo.image[0, 0]) == RED and photo.image.shape == (4, 6, 3)
    assert [p.path for p in iterate(torch.zeros(2, 3, 4, 4))] == ["image0", "image1"]
    assert next(iterate(torch.full((1, 2, 2), 0.5))).image[0, 0].tolist() == [128] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(3, 4, 4) - 1,
        torch.full((3, 4, 4), 255.0),
        torch.full((3, 2, 2), float("nan")),
        torch.zeros(4, 4, 3),
        torch.zeros(3, 4, 4, dtype=torch.int64),
    ],
)
def test_tensors_that_are_no_image_are_refused(wrong):
    with pytest.raises(UsageError, match="is no image.*from 0 to 1"):
        iterate(wrong)


def test_pil_images_of_every_mode_become_rgb(folder):
    for mode in ("RGB", "RGBA", "P", "CMYK", "L"):
        (photo,) = iterate(Image.new("RGB", (6, 4), RED).convert(mode))
        assert photo.image.shape == (4, 6, 3)
    assert next(iterate(Image.open(folder / "a.png"))).path.endswith("a.png")


def test_exif_orientation_is_applied_alike_to_a_file_a_list_and_a_pil_image(tmp_path):
    image = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    exif = image.getexif()
    exif[274] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    path = tmp_path / "turned.png"
    shapes = [next(iterate(s)).image for s in (path, [path], Image.open(path), tmp_path)]
    assert all(s.shape == (5, 4, 3) and (s == shapes[0]).all() for s in shapes)


def test_a_bad_file_among_several_is_named_and_left_out(folder, caplog):
    (folder / "c.jpg").write_bytes(b"\xff\xd8\xff broken")
    assert names(folder) == ["a.png", "b.PNG", "ü 1.bmp"]
    assert "c.jpg" in caplog.text and caplog.records[0].levelno == logging.WARNING


def test_a_bad_file_alone_is_an_error(tmp_path):
    (tmp_path / "c.jpg").write_bytes(b"no image at all")
    with pytest.raises(ImageError, match=r"c\.jpg"):
        list(iterate(tmp_path / "c.jpg"))
    with pytest.raises(ImageError, match=r"c\.jpg"):
        list(iterate(tmp_path))
    (tmp_path / "d.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="None of the 2 items"):
        list(iterate(tmp_path))


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("no/such/file.jpg", DataError, r"'no/such/file.jpg' does not exist.*webcam index"),
        ("no/such/*.jpg", DataError, r"No image or video matches 'no/such/\*.jpg'"),
        ([], DataError, "empty list"),
        (None, UsageError, "type NoneType.*a folder"),
        ({"a": 1}, UsageError, "type dict"),
        (True, UsageError, "type bool"),
        (1.5, UsageError, "type float"),
        (["no/such.jpg"], DataError, "no/such.jpg"),
        ("x" * 5000, DataError, "no usable path|does not exist"),
        ("a\0b", DataError, "no usable path|does not exist"),
        ("http://[broken/a.png", DataError, r"http://\[broken/a.png is no address"),
    ],
)
def test_a_source_that_means_nothing_is_an_error_at_once(source, kind, words):
    with pytest.raises(kind, match=words):
        iterate(source)


def test_a_misspelt_file_gets_its_neighbour_named(folder):
    with pytest.raises(DataError, match=r"Did you mean '.*a\.png'"):
        iterate(folder / "aa.png")


def test_a_folder_without_pictures_points_to_those_below(folder, tmp_path):
    with pytest.raises(DataError, match=r"use a glob: '.*\*\*/\*\.\w+'"):
        iterate(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image and no video"):
        iterate(tmp_path / "empty")


def test_videos_give_numbered_frames_and_every_nth(tmp_path):
    video = make_video(tmp_path / "clip.avi")
    photos = list(iterate(video))
    assert [p.frame for p in photos] == [0, 1, 2, 3, 4, 5] and photos[0].fps == 10 and photos[0].count == 0
    assert photos[3].image.shape == (16, 32, 3) and abs(int(photos[3].image.mean()) - 120) < 4
    assert [(p.frame, p.fps) for p in iterate(video, vid_stride=4)] == [(0, 2.5), (4, 2.5)]
    with pytest.raises(UsageError, match="vid_stride=0"):
        iterate(video, vid_stride=0)


def test_a_video_that_is_none_is_an_error(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"not a video")
    with pytest.raises(ImageError, match="clip.mp4"):
        list(iterate(tmp_path / "clip.mp4"))


@pytest.mark.parametrize("index", [97, "97"])
def test_a_camera_that_is_not_there_is_an_error(index):
    with pytest.raises(ImageError, match="webcam97: camera cannot be opened"):
        list(iterate(index))


@pytest.fixture
def server(folder, monkeypatch):
    """A web server on loopback that serves ``folder``."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    class Web(http.server.ThreadingHTTPServer):
        def handle_error(self, *arguments):  # a client that hangs up early is one of the tests
            pass

    with Web(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as web:
        threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()


def test_urls_are_fetched_and_nothing_is_left(server, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    make_video(folder / "clip.avi", frames=3)
    for url in (f"{server}/a.png", f"{server}/ü 1.bmp", f"{server}/%C3%BC%201.bmp", f"{server}/a.png?size=1#x"):
        (photo,) = iterate(url)
        assert tuple(photo.image[0, 0]) == RED and photo.path == url and photo.kind == "url"
    assert [p.frame for p in iterate(f"{server}/clip.avi")] == [0, 1, 2]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_urls_that_fail_or_hold_no_image_are_errors_that_name_them(server):
    with pytest.raises(DataError, match=r"missing\.png cannot be fetched: HTTP 404"):
        list(iterate(f"{server}/missing.png"))
    with pytest.raises(ImageError, match=r"http://.*notes\.txt"):
        list(iterate(f"{server}/notes.txt"))
    with pytest.raises(DataError, match="cannot be fetched"):
        list(iterate("http://127.0.0.1:9/a.png"))


def test_a_download_stops_at_its_limit(server, folder, tmp_path):
    (folder / "large.png").write_bytes(bytes(3 << 20))
    with pytest.raises(DataError, match="larger than 2 MB"):
        sources.download(f"{server}/large.png", tmp_path, limit=2 << 20)


def test_other_schemes_are_no_source():
    with pytest.raises(DataError, match="does not exist"):
        iterate("ftp://example.com/a.png")
    with pytest.raises(DataError, match="does not exist"):
        iterate("file:///etc/passwd")
