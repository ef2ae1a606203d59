"""Fetching data sets: into the cache directory and nowhere else, with resume, and without trusting the archive."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from libreyolo_core.cachedir import cache_directory
from libreyolo_core.errors import DataError

log = logging.getLogger("libreyolo")

CONSENT = "LIBREYOLO_RUN_DATA_SCRIPTS"
TIMEOUT_S = 30.0
CHUNK = 1 << 20
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def cache_dir() -> Path:
    """The cache folder as a path; see ``libreyolo_core.cachedir``."""
    return Path(cache_directory())


def fetch_data_set(download: Any, name: str, where: str) -> Path:
    """Do what a YAML's ``download`` says, once; returns the folder of the data set in the cache.

    Args:
        download: a URL of an archive (optionally with ``#sha256=...``), a list of those, or a script.
        name: the data set's name, which its folder takes.
        where: file and line, for errors.

    Raises:
        DataError: no network, a wrong checksum, an unsafe archive, or a script without consent.
    """
    steps = download if isinstance(download, list) else [download]
    if not steps or not all(isinstance(s, str) and s.strip() for s in steps):
        raise DataError(
            f"download is {download!r}", where=where, mend="Give the URL of an archive, or a list of those."
        )
    steps = [s.strip() for s in steps]
    key = hashlib.blake2b("\0".join(steps).encode(), digest_size=6).hexdigest()
    folder = cache_dir() / "datasets" / f"{name}-{key}"
    finished = folder / ".complete"
    if finished.exists():
        return folder
    scripts = [s for s in steps if not _is_url(s)]
    if scripts and os.environ.get(CONSENT) != "1":
        first = scripts[0].splitlines()[0][:80]
        raise DataError(
            f"download is a script ({first!r}), which is not run without consent",
            where=where,
            mend=f"Read it, then set {CONSENT}=1 to run it, or fetch the data by hand and correct 'path'.",
        )
    for step in steps:
        if _is_url(step):
            archive = download_file(step, cache_dir() / "downloads")
            unpack(archive, folder)
            archive.unlink()
        else:
            _run_script(step, folder, where)
    finished.touch()
    return folder


def download_file(url: str, folder: Path) -> Path:
    """Fetch one file into ``folder``; a broken download continues where it stopped, and the file appears complete.

    Args:
        url: ``http(s)://`` or ``file://``; a fragment ``#sha256=<hex>`` is verified.

    Raises:
        DataError: it cannot be fetched, or its checksum is another one.
    """
    address, _, fragment = url.partition("#")
    expected = fragment.removeprefix("sha256=").lower() if fragment.startswith("sha256=") else ""
    leaf = PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(address).path)).name or "download"
    tag = hashlib.blake2b(address.encode(), digest_size=6).hexdigest()
    target = folder / f"{tag}-{leaf}"
    part = target.with_name(target.name + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(address, part)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if part.exists() and part.stat().st_size == 0:
            part.unlink()
        raise DataError(
            f"{address} cannot be fetched: {reason}", where="download", mend="Check the network and try again."
        ) from None
    if expected and (found := _sha256(part)) != expected:
        part.unlink()
        raise DataError(
            f"{address} has SHA-256 {found}, not {expected}", where="download", mend="Do not use it; check the source."
        )
    os.replace(part, target)
    return target


def _fetch(address: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "libreyolo"})
    if have and not address.startswith("file:"):
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # everything is here already
            return
        raise
    with answer:
        goes_on = getattr(answer, "status", None) == 206
        log.info("downloading %s%s", address, f", continuing at {have:,} bytes" if goes_on else "")
        length = answer.headers.get("Content-Length")
        with part.open("ab" if goes_on else "wb") as file:
            got = _copy(answer, file)
        if length is not None and length.isdecimal() and got != int(length):
            raise OSError(
                f"the connection broke after {got:,} of {int(length):,} bytes; trying again goes on from there"
            )


def _copy(source: Any, target: IO[bytes]) -> int:
    total = 0
    while chunk := source.read(CHUNK):
        target.write(chunk)
        total += len(chunk)
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive under ``folder``, all of it or nothing.

    Raises:
        DataError: no archive, damaged, or a member that would leave the folder (``..``, absolute) or is a link or
            device; names the member.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for name, is_folder, opener in _members(archive):
            target = aside / _safe(name, archive)
            if is_folder:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with opener() as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        _move_into(aside, folder)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{archive.name} cannot be unpacked: {error}", where=str(archive), mend="Delete it and fetch it again."
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _members(archive: Path) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
    """Name, whether it is a folder, and how to open each member; links and devices are refused."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise _refused(info.filename, archive, "is a link")
                yield info.filename, info.is_dir(), lambda info=info: packed.open(info)  # type: ignore[misc]
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as packed_tar:
            for member in packed_tar:
                if not (member.isfile() or member.isdir()):
                    raise _refused(member.name, archive, "is a link or device")
                yield member.name, member.isdir(), lambda member=member: packed_tar.extractfile(member)  # type: ignore[misc]
    else:
        raise DataError(
            f"{archive.name} is no archive", where=str(archive), mend=f"Readable are {', '.join(ARCHIVES)}."
        )


def _safe(name: str, archive: Path) -> Path:
    plain = name.replace("\\", "/")
    parts = PurePosixPath(plain).parts
    if plain.startswith("/") or (len(plain) > 1 and plain[1] == ":"):
        raise _refused(name, archive, "has an absolute path")
    if ".." in parts or "\0" in plain:
        raise _refused(name, archive, "leads out of the folder")
    return Path(*parts) if parts else Path(".")


def _refused(name: str, archive: Path, why: str) -> DataError:
    return DataError(
        f"The archive is not safe: member {name!r} {why}",
        where=str(archive),
        mend="Nothing was unpacked; do not trust it.",
    )


def _move_into(aside: Path, folder: Path) -> None:
    """Merge a complete tree into the data set's folder, which may hold other archives of the same data set."""
    if not folder.exists():
        os.replace(aside, folder)
        return
    for source in sorted(aside.rglob("*")):
        target = folder / source.relative_to(aside)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            os.replace(source, target)


def _run_script(script: str, folder: Path, where: str) -> None:
    """Run what the user consented to, in the data set's folder: a shell command, or Python statements."""
    folder.mkdir(parents=True, exist_ok=True)
    shell = script.split(None, 1)[0] in ("bash", "sh", "curl", "wget", "python", "python3")
    command = ["sh", "-c", script] if shell else [sys.executable, "-c", script]
    log.warning("running the download script of %s in %s (%s=1)", where, folder, CONSENT)
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False)
    if done.returncode:
        raise DataError(
            f"The download script ended with status {done.returncode}", where=where, mend="Its output is above."
        )


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://", "file://")) and not any(c.isspace() for c in text)
