"""Released names are looked up without a network and fetched once, from a hub that a local server stands in for."""

from __future__ import annotations

import hashlib
import http.server
import socket
import sys
import threading
from pathlib import Path

import pytest
from checkpoint_toys import family

from libreyolo_core import hub
from libreyolo_core.errors import CheckpointError

TOYS = {"toy": family(), "toy9_e2e": family("toy9_e2e", pattern="LibreTOY9E2E{size}.pt")}
DATA = bytes(range(256)) * 800  # 200 kB


class FakeHub(http.server.ThreadingHTTPServer):
    """Answers HEAD and GET of ``/<owner>/<repository>/resolve/main/<file>`` as the hub does, ranges included."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/LibreYOLO/LibreTOYs/resolve/main/LibreTOYs.pt": DATA}
        self.etag = hashlib.sha256(DATA).hexdigest()
        self.requests: list[tuple[str, str, str]] = []
        self.break_off_after = 0
        self.breaks_for_good = False
        self.alter = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """Clients may hang up; that is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append((self.command, self.path, wanted))
        data = self.server.files.get(self.path)
        if data is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if "LibreTOY" in self.path else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.server.alter:
            data = b"X" + data[1:]
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if body and self.server.breaks_for_good and not self.server.break_off_after:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{self.server.etag}"')
        self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if body:
            rest = data[start:]
            if self.server.break_off_after:
                rest = rest[: self.server.break_off_after]
                self.server.break_off_after = 0
                self.close_connection = True
            self.wfile.write(rest)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    fake = FakeHub()
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    yield fake
    fake.shutdown()
    fake.server_close()


def left(cache: Path) -> list[str]:
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.name != "CACHEDIR.TAG")


def test_a_released_name_is_fetched_once(server, tmp_path):
    first = hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    assert first.read_bytes() == DATA
    asked = len(server.requests)
    assert hub.locate("libretoys", TOYS, cache_dir=tmp_path) == first
    assert len(server.requests) == asked
    assert not [p for p in left(tmp_path) if "incomplete" in p or "lock" in p]


def test_a_path_that_exists_wins_over_a_released_name(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("LibreTOYs.pt").write_bytes(b"mine")
    assert hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path / "cache") == Path("LibreTOYs.pt")
    assert server.requests == []


def test_a_connection_that_breaks_off_goes_on_where_it_stopped(server, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # only whole chunks are kept for going on
    server.break_off_after = 70_000
    assert hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path).read_bytes() == DATA
    assert any(wanted.startswith("bytes=") for _, _, wanted in server.requests)
    assert not [p for p in left(tmp_path) if "incomplete" in p or "lock" in p]


def test_what_has_arrived_is_kept_for_the_next_attempt(server, tmp_path, monkeypatch, caplog):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    server.break_off_after, server.breaks_for_good = 70_000, True
    with pytest.raises(CheckpointError, match="could not be fetched"):
        hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    (part,) = tmp_path.rglob("*.part")
    assert 0 < part.stat().st_size <= 70_000
    kept = part.stat().st_size
    server.breaks_for_good = False
    server.requests.clear()
    caplog.set_level("INFO", "libreyolo")
    assert hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path).read_bytes() == DATA
    assert [wanted for command, _, wanted in server.requests if command == "GET"] == [f"bytes={kept}-"]
    assert "going on after the" in caplog.text
    assert not [p for p in left(tmp_path) if "part" in p or "lock" in p]


@pytest.mark.parametrize("rubbish", [b"X" * 1000, b"X" * 300_000], ids=["shorter", "longer"])
def test_a_part_that_is_not_of_this_file_never_becomes_weights(server, tmp_path, rubbish):
    blobs = tmp_path / "models--LibreYOLO--LibreTOYs" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{server.etag}.part").write_bytes(rubbish)
    try:
        path = hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    except CheckpointError as error:  # a longer part is seen at once, a shorter one by the checksum
        assert len(rubbish) < len(DATA) and "arrived altered" in str(error)
        path = hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    assert path.read_bytes() == DATA


def test_the_cache_is_the_one_of_huggingface_hub(server, tmp_path):
    from huggingface_hub import hf_hub_download

    path = hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    same = hf_hub_download("LibreYOLO/LibreTOYs", "LibreTOYs.pt", cache_dir=tmp_path, local_files_only=True)
    assert Path(same) == path


def test_a_family_that_released_nothing_says_so_without_asking_anybody(server, tmp_path):
    from dataclasses import replace

    toy = family()
    unreleased = {"toy": replace(toy, weights=replace(toy.weights, organisation=""))}
    with pytest.raises(CheckpointError, match="No weights of LibreTOYs were released.*pretrained=False"):
        hub.locate("LibreTOYs.pt", unreleased, cache_dir=tmp_path)
    assert server.requests == []
    assert left(tmp_path) == []


def test_a_file_that_was_altered_on_the_way_is_deleted_and_refused(server, tmp_path):
    server.alter = True
    with pytest.raises(CheckpointError, match="arrived altered: its SHA-256 is") as caught:
        hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []
    server.alter = False
    assert hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path).read_bytes() == DATA


def test_a_file_that_the_hub_has_not_is_one_line_and_leaves_nothing(server, tmp_path):
    with pytest.raises(CheckpointError, match="LibreTOYm.pt is not among the weights") as caught:
        hub.locate("toy-m", TOYS, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert 'LibreYOLO("LibreTOYm", pretrained=False)' in str(caught.value)
    assert left(tmp_path) == []


def test_without_a_connection_one_attempt_is_made_and_nothing_is_left(tmp_path, monkeypatch):
    with socket.socket() as unused:  # a port where nobody listens
        unused.bind(("127.0.0.1", 0))
        attempts = []
        connect = socket.socket.connect
        monkeypatch.setattr(socket.socket, "connect", lambda s, to: (attempts.append(to), connect(s, to))[1])
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(CheckpointError, match="could not be fetched") as caught:
            hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert 'LibreYOLO("LibreTOYs", pretrained=False)' in text
    assert len(attempts) == 1
    assert left(tmp_path) == []


def test_a_hub_that_never_answers_is_given_up_after_the_stated_time(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(CheckpointError, match="could not be fetched"):
            hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    assert left(tmp_path) == []


def test_forbidding_the_network_is_respected_and_said(server, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="could not be fetched.*offline"):
        hub.locate("LibreTOYs.pt", TOYS, cache_dir=tmp_path)
    assert server.requests == []


def refusal(name: str, families=TOYS) -> str:
    with pytest.raises(CheckpointError) as caught:
        hub.locate(name, families)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_name_names_the_nearest_the_package_and_the_way_without_weights():
    text = refusal("LibreTOYx.pt")
    assert "Nearest known names: LibreTOY" in text
    assert "installed families: toy, toy9_e2e" in text
    assert "pretrained=False" in text


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("LibreWIDGET9s.pt", "widget9"),
        ("LibreWIDGETr18.pt", "widget"),
        ("LibreWidgetNet50-cls.pt", "widgetnet"),
        ("LibreWidgetV2b0-cls", "widgetv2"),
        ("LibreWIDGETn-seg.pt", "widget"),
        ("LibreWidgetv2atto.pt", "widgetv2"),
        ("LibreWidgetb0-sem.pt", "widget"),
    ],
)
def test_the_package_of_a_family_that_is_not_installed_is_guessed_from_the_name(name, package):
    assert f"pip install libreyolo-family-{package}." in refusal(name)
    assert f"pip install libreyolo-family-{package}." in refusal(name, {})


@pytest.mark.parametrize("name", ["banana.pt", "model", "Libre.pt"])
def test_a_name_unlike_any_released_one_suggests_no_package(name):
    text = refusal(name)
    assert "pip install" not in text
    assert "Known names are such as LibreTOYs.pt" in text or "Nearest known names" in text


def test_a_path_that_does_not_exist_is_not_looked_up(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"x")
    text = refusal(str(tmp_path / "bset.pt"))
    assert "no such file" in text
    assert f"Did you mean {tmp_path / 'best.pt'}" in text
    assert "pip install" not in text


@pytest.mark.parametrize("name", ["LibreTOYm.pt", "LibreTOYm", "libretoym.PT", "toy-m", "toym", "toy_m", "TOY-M"])
def test_every_form_of_a_name_is_understood(name):
    found = hub.find(name, TOYS)
    assert found is not None
    assert (found.family, found.task, found.size, found.filename) == ("toy", "detect", "m", "LibreTOYm.pt")
    assert found.repository == "LibreYOLO/LibreTOYm"


def test_variants_are_released_names_too():
    found = hub.find("LibreTOYs-aerial.pt", TOYS)
    assert found is not None
    assert (found.variant, found.repository) == ("aerial", "LibreYOLO/LibreTOYs-aerial")


def test_names_can_be_looked_up_without_torch_or_a_network():
    import subprocess

    code = "import sys, libreyolo_core.hub; sys.exit(bool({'torch', 'numpy', 'huggingface_hub'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
