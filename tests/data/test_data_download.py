"""Data sets are fetched into the cache directory only, and an archive is never trusted."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
import yaml

from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.download import CONSENT, cache_dir, download_file, unpack
from libreyolo_core.data.scan import scan_detect
from libreyolo_core.errors import DataError


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder with ranges; breaks off after ``server.break_after`` bytes when that is set."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        path = Path(self.directory) / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404, "Not Found")
            return
        data, start = path.read_bytes(), 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.break_after] if self.server.break_after else body)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    found.asked, found.break_after, found.folder = [], 0, folder
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def test_the_cache_is_where_the_variable_says_else_where_the_platform_does(tmp_path, monkeypatch):
    assert cache_dir() != Path.home()
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("LIBREYOLO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_dir() == tmp_path / "libreyolo"


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    data = bytes(range(256)) * 2000
    (server.folder / "a.bin").write_bytes(data)
    server.break_after = 100_000
    with pytest.raises(DataError, match="a.bin cannot be fetched.*broke after 100,000"):
        download_file(f"{server.url}/a.bin", tmp_path / "down")
    assert [p.suffix for p in (tmp_path / "down").iterdir()] == [".part"]
    server.break_after = 0
    digest = hashlib.sha256(data).hexdigest()
    path = download_file(f"{server.url}/a.bin#sha256={digest}", tmp_path / "down")
    assert path.read_bytes() == data and server.asked[-1][1] == "bytes=100000-"
    assert list((tmp_path / "down").iterdir()) == [path]


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server, tmp_path):
    (server.folder / "a.bin").write_bytes(b"other")
    with pytest.raises(DataError, match="SHA-256"):
        download_file(f"{server.url}/a.bin#sha256={'0' * 64}", tmp_path / "down")
    assert not list((tmp_path / "down").iterdir())


def test_an_address_that_does_not_answer_is_one_line(server, tmp_path):
    for url in (f"{server.url}/none.zip", "http://127.0.0.1:9/none.zip"):
        with pytest.raises(DataError, match="none.zip cannot be fetched") as caught:
            download_file(url, tmp_path / "down")
        assert "\n" not in str(caught.value) and not list((tmp_path / "down").iterdir())


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def tarred(path: Path, members: list[tarfile.TarInfo], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as file:
        for member in members:
            file.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def info(name: str, **values) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for key, value in {"size": 3, **values}.items():
        setattr(found, key, value)
    return found


@pytest.mark.parametrize("name", ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:\\evil.txt"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_that_leads_out_of_its_folder_is_refused_as_a_whole(tmp_path, kind, name):
    if kind == "zip":
        archive = zipped(tmp_path / "a.zip", {"good.txt": b"x", name: b"x"})
    else:
        archive = tarred(tmp_path / "a.tar", [info("good.txt"), info(name)])
    with pytest.raises(DataError, match="not safe.*evil"):
        unpack(archive, tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir()) and not list(tmp_path.rglob("evil*"))


def test_links_and_devices_in_an_archive_are_refused(tmp_path):
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        archive = tarred(tmp_path / "a.tar", [info("link", type=kind, linkname="/etc/passwd", size=0)])
        with pytest.raises(DataError, match="'link' is a link or device"):
            unpack(archive, tmp_path / "out")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(entry, "/etc/passwd")
    with pytest.raises(DataError, match="'link' is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_files_and_files_that_are_no_archive_are_one_line(tmp_path):
    good = zipped(tmp_path / "good.zip", {"a.txt": b"x" * 5000}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(good[:200] + b"\0" * 50 + good[250:])
    (tmp_path / "none.zip").write_text("hello")
    for name in ("cut.zip", "none.zip"):
        with pytest.raises(DataError, match=name) as caught:
            unpack(tmp_path / name, tmp_path / "out")
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_zip_and_tar_archives_are_unpacked_into_one_folder(tmp_path):
    unpack(zipped(tmp_path / "a.zip", {"set/a.txt": b"1", "set/sub/": b""}), tmp_path / "out")
    unpack(tarred(tmp_path / "b.tgz", [info("set/b.txt"), info("set/sub/c.txt")], "w:gz"), tmp_path / "out")
    names = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert names == ["set/a.txt", "set/b.txt", "set/sub/c.txt"]


@pytest.fixture
def remote_set(detect_set, server, tmp_path):
    """A YAML whose photos are in an archive on the server, wrapped in a folder."""
    root = detect_set(folder="origin").parent
    members = {
        f"wrapped/{p.relative_to(root)}": p.read_bytes() for p in root.rglob("*") if p.suffix in (".png", ".txt")
    }
    zipped(server.folder / "set.zip", members)
    path = tmp_path / "remote.yaml"
    values = {"path": "not-here", "train": "images/train", "val": "images/val", "names": ["cat", "dog"]}
    path.write_text(yaml.safe_dump(values | {"download": f"{server.url}/set.zip"}))
    return path


def test_a_missing_set_is_downloaded_once_into_the_cache_and_nowhere_else(remote_set, server, cache_folder):
    before = sorted(remote_set.parent.rglob("*"))
    spec = load_data(remote_set, "detect")
    assert spec.path.is_relative_to(cache_folder / "datasets") and spec.path.name == "wrapped"
    assert scan_detect(spec, "train").counts["boxes"] == 1
    assert load_data(remote_set, "detect").path == spec.path and len(server.asked) == 1
    assert sorted(remote_set.parent.rglob("*")) == before
    assert not list((cache_folder / "downloads").iterdir())


def test_a_download_that_lacks_the_split_says_where_it_looked(remote_set, server):
    zipped(server.folder / "set.zip", {"else.txt": b""})
    with pytest.raises(DataError, match="train split.*images/train"):
        load_data(remote_set, "detect")


def test_scripts_run_only_with_consent(detect_set, tmp_path, monkeypatch, cache_folder):
    origin = detect_set(folder="origin").parent
    path = tmp_path / "scripted.yaml"
    script = f"import shutil\nshutil.copytree({str(origin)!r}, 'copy')\n"
    values = {"path": "not-here", "train": "images/train", "names": ["cat", "dog"], "download": script}
    path.write_text(yaml.safe_dump(values))
    monkeypatch.delenv(CONSENT, raising=False)
    with pytest.raises(DataError, match=f"script.*import shutil.*{CONSENT}=1") as caught:
        load_data(path, "detect")
    assert "\n" not in str(caught.value) and not (cache_folder / "datasets").exists()
    monkeypatch.setenv(CONSENT, "1")
    assert load_data(path, "detect").path.name == "copy"
    path.write_text(yaml.safe_dump(values | {"download": "sh -c 'exit 3'"}))
    with pytest.raises(DataError, match="status 3"):
        load_data(path, "detect")


@pytest.mark.parametrize("download", [7, [], ["", "x"], {"a": 1}])
def test_a_download_that_is_no_address_is_one_line(detect_set, tmp_path, download):
    path = tmp_path / "d.yaml"
    path.write_text(yaml.safe_dump({"path": "nowhere", "train": "t", "names": ["a"], "download": download or [""]}))
    with pytest.raises(DataError, match="download is"):
        load_data(path, "detect")
