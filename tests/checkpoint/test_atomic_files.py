"""A file that is being replaced is either the old one or the new one, never half of either."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
import torch

from libreyolo_core.checkpoint import replacing, write
from libreyolo_core.errors import CheckpointError, TrainingError

posix = pytest.mark.skipif(os.name != "posix", reason="resource limits, modes and signals of POSIX")


def listing(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    write(path, {"model": {"w": torch.zeros(3)}})
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match="No space left on device.*Free some space") as caught:
        write(path, {"model": {"w": torch.ones(3)}})
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert listing(tmp_path) == ["last.pt"]


@posix
def test_a_write_that_the_kernel_refuses_half_way_leaves_the_old_file(tmp_path):
    import resource

    path = tmp_path / "last.pt"
    write(path, {"model": {"w": torch.zeros(3)}})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(TrainingError, match="last.pt cannot be written: File too large") as caught:
            write(path, {"model": {"w": torch.zeros(1_000_000)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert listing(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_an_interruption_leaves_the_old_file_and_no_temporary(interruption, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with pytest.raises(interruption), replacing(path) as sink:
        sink.write(b"new, but unfinished")
        raise interruption
    assert path.read_bytes() == b"old"
    assert listing(tmp_path) == ["a.txt"]


@posix
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_mode_of_a_file_follows_the_umask(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        write(tmp_path / "a.pt", {"model": {}})
    finally:
        os.umask(before)
    assert (tmp_path / "a.pt").stat().st_mode & 0o777 == mode


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(
        CheckpointError, match="cannot be written: No such file or directory.*Choose a folder"
    ) as caught:
        write(tmp_path / "nowhere" / "a.pt", {"model": {}})
    assert "\n" not in str(caught.value)


@posix
def test_a_link_keeps_pointing_to_the_file_that_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_bytes(b"old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    with replacing(tmp_path / "link.txt") as sink:
        sink.write(b"new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_bytes() == b"new"


KILLED = """
import sys, time
sys.path.insert(0, {root!r})
from libreyolo_core.checkpoint import replacing
with replacing({path!r}) as sink:
    sink.write(b"half of the new file")
    sink.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@posix
def test_a_writer_killed_half_way_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path):
    path = tmp_path / "last.pt"
    path.write_bytes(b"old")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(root=root, path=str(path))], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "writing"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert path.read_bytes() == b"old"
    assert len(listing(tmp_path)) == 2
    with replacing(path) as sink:
        sink.write(b"new")
    assert path.read_bytes() == b"new"
    assert listing(tmp_path) == ["last.pt"]


@posix
def test_the_temporary_of_a_writer_that_is_alive_is_left_alone(tmp_path):
    with replacing(tmp_path / "a") as first:
        first.write(b"first")
        with replacing(tmp_path / "a") as second:
            second.write(b"second")
        assert (tmp_path / "a").read_bytes() == b"second"
    assert (tmp_path / "a").read_bytes() == b"first"
    assert listing(tmp_path) == ["a"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0" * 1000)
    with replacing(path) as sink:
        for _ in range(10):
            sink.write(b"1" * 100)
            sink.flush()
            assert path.read_bytes() == b"0" * 1000
    assert path.read_bytes() == b"1" * 1000
