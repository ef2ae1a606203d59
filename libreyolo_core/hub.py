"""Released weights: which names there are, and fetching one, once, from the Hugging Face hub into its cache.

Torch-free: names can be looked up without loading anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from libreyolo_core.errors import CheckpointError, nearest
from libreyolo_core.family import Family

log = logging.getLogger("libreyolo")
SUFFIXES = (".pt", ".pth", ".safetensors")
TIMEOUT_S = 5.0
"""How long the hub may take to answer whether it has a file."""


@dataclass(frozen=True)
class Released:
    """One released weight file.

    Args:
        stem: its name without suffix, also the name of its repository.
        organisation: owner of the repository.
        family, task, size, variant: what it holds; ``variant`` is "" for the plain one.
        licence: of the weights, shown before they are fetched.
    """

    stem: str
    organisation: str
    family: str
    task: str
    size: str
    variant: str = ""
    licence: str = ""

    @property
    def filename(self) -> str:
        """The file inside the repository."""
        return f"{self.stem}.pt"

    @property
    def repository(self) -> str:
        """``organisation/stem``."""
        return f"{self.organisation}/{self.stem}"


def released(families: Mapping[str, Family]) -> dict[str, Released]:
    """Every released name of the installed families by stem."""
    out = {}
    for key, family in families.items():
        task = family.tasks[family.default_task]
        for size in task.sizes:
            stem = _stem(family.weights.pattern.format(size=size))
            for variant in ("", *task.variants):
                name = f"{stem}-{variant}" if variant else stem
                weights = family.weights
                out[name] = Released(
                    name, weights.organisation, key, family.default_task, size, variant, weights.licence
                )
    return out


def find(name: str, families: Mapping[str, Family]) -> Released | None:
    """The released weights that ``name`` means, whether or not they were ever fetched: a file name or stem such as
    ``LibreABCs.pt``, one of the family's aliases, or family key and size such as ``abc-s`` or ``abcs``. Upper and lower
    case are the same. ``None`` when no installed family has it."""
    wanted = _stem(name).lower()
    for stem, item in released(families).items():
        family = families[item.family]
        names = {stem, *(a.format(size=item.size) for a in family.weights.aliases)} if not item.variant else {stem}
        if not item.variant:
            names |= {f"{family.key}{joint}{item.size}" for joint in ("", "-", "_")}
        if wanted in {_stem(n).lower() for n in names}:
            return item
    return None


def named_by_file(filename: str, families: Mapping[str, Family]) -> list[tuple[str, str, str]]:
    """Families (key, size, variant) that a file name points to: best match only. A released name, possibly with
    something after it (``LibreABCs-mine.pt``), beats a family's key as a word of the name (``abc_s.pth``); sizes and
    variants that the name does not tell are ""."""
    stem = _stem(Path(filename).name).lower()
    hits = [
        (len(s), r) for s, r in released(families).items() if re.match(re.escape(s.lower()) + r"(?![a-z0-9])", stem)
    ]
    if not hits and (exact := find(stem, families)):
        hits = [(len(stem), exact)]
    if hits:
        longest = max(length for length, _ in hits)
        return [(r.family, r.size, r.variant) for length, r in hits if length == longest]
    return [(key, _size_word(stem, family), "") for key, family in families.items() if _has_word(stem, key.lower())]


def _size_word(stem: str, family: Family) -> str:
    sizes = [s for s in family.tasks[family.default_task].sizes if _has_word(stem, s.lower())]
    return sizes[0] if len(sizes) == 1 else ""


def _has_word(stem: str, word: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", stem) is not None


def locate(name: str | Path, families: Mapping[str, Family], *, cache_dir: str | Path | None = None) -> Path:
    """The file behind ``name``: a path that exists wins; else a released name, fetched once into the cache.

    One request asks whether the hub has the file; if that fails nothing is tried again and nothing is left behind.
    What has arrived of a download that breaks off is kept, and the next attempt goes on from there. The content is
    compared with the SHA-256 that the hub states. ``HF_ENDPOINT`` names another hub, ``HF_HUB_OFFLINE=1`` forbids
    asking.

    Args:
        cache_dir: another cache than huggingface_hub's own.

    Raises:
        CheckpointError: unknown name, nothing released, no connection, or a download that failed or was altered.
    """
    path = Path(name)
    if path.is_file():
        return path
    item = find(str(name), families) if path.name == str(name) else None
    if item is None:
        raise _unknown(str(name), families)
    if not item.organisation:
        raise CheckpointError(
            f"No weights of {item.stem} were released",
            where=f"the sheet of {item.family}",
            mend=f"Give the path of a file, or start without weights: {_without_weights(item.stem)}",
        )
    return _cached(item, cache_dir) or _fetch(item, cache_dir)


def _cached(item: Released, cache_dir: str | Path | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(item.repository, item.filename, cache_dir=cache_dir)
    return Path(found) if isinstance(found, str) else None


def _fetch(item: Released, cache_dir: str | Path | None) -> Path:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import EntryNotFoundError, RepositoryNotFoundError

    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    endpoint = endpoint.rstrip("/")
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    url = hf_hub_url(item.repository, item.filename, endpoint=endpoint)
    try:
        # hf_hub_download asks again, patiently, when the first answer fails; asking once here is what makes it brief
        facts = get_hf_file_metadata(url, timeout=TIMEOUT_S)
    except (EntryNotFoundError, RepositoryNotFoundError) as error:
        raise CheckpointError(
            f"{item.filename} is not among the weights at {endpoint}/{item.repository}",
            mend=f"Start without weights: {_without_weights(item.stem)}",
        ) from error
    except Exception as error:  # whatever HTTP library huggingface_hub uses in this version raises its own types
        raise _unreachable(item, endpoint, error) from error
    terms = f" (licence of these weights: {item.licence})" if item.licence else ""
    log.info("fetching %s from %s/%s%s", item.filename, endpoint, item.repository, terms)
    try:
        if facts.etag and "/" not in facts.etag:
            _fill_blob(item, cache / _folder(item) / "blobs" / facts.etag, url, facts)
        # finds its content there already, and adds what makes it an entry of the cache
        return Path(
            hf_hub_download(item.repository, item.filename, cache_dir=cache, etag_timeout=TIMEOUT_S, endpoint=endpoint)
        )
    except CheckpointError:
        raise
    except Exception as error:
        raise _unreachable(item, endpoint, error) from error
    finally:
        _tidy(item, cache)


def _fill_blob(item: Released, blob: Path, url: str, facts: Any) -> None:
    """Download into the cache's own place for the content, going on where an earlier attempt stopped.

    huggingface_hub starts again from nothing in every process; a large file on a bad line would never arrive.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    part = _part(blob)
    lock = blob.parents[2] / ".locks" / _folder(item) / f"{blob.name}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return
        headers = build_hf_headers()
        if urlsplit(facts.location).netloc != urlsplit(url).netloc:  # a content server is not told who asks
            headers.pop("authorization", None)
        with part.open("ab") as file:
            there = file.tell()
            if facts.size and there > facts.size:
                there = file.truncate(0)
            if there:
                log.info("%s: going on after the %.1f MB that are there already", item.filename, there / 1e6)
            http_get(facts.location, file, resume_size=there, headers=headers, expected_size=facts.size)
        _check(item, part, blob.name)
        part.replace(blob)


def _check(item: Released, part: Path, etag: str) -> None:
    """Compare with the SHA-256 by which the hub names a large file."""
    if not re.fullmatch(r"[0-9a-f]{64}", etag):
        return
    digest = hashlib.sha256()
    with part.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != etag:
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"{item.filename} arrived altered: its SHA-256 is {digest.hexdigest()[:12]}..., not {etag[:12]}...",
            where=item.repository,
            mend="It was deleted; try again, and distrust the connection if it happens twice.",
        )


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.part")


def _tidy(item: Released, cache: Path) -> None:
    """Remove locks, empty part files, and the folders of a download that came to nothing."""
    folder = cache / _folder(item)
    for part in (folder / "blobs").glob("*.part"):
        if not part.stat().st_size:
            part.unlink(missing_ok=True)
    shutil.rmtree(cache / ".locks" / _folder(item), ignore_errors=True)
    if folder.is_dir() and not any((folder / "blobs").glob("*")) and not any(folder.glob("snapshots/*/*")):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # others may use the cache at the same moment
        (cache / ".locks").rmdir()


def _folder(item: Released) -> str:
    return "models--" + item.repository.replace("/", "--")


def _unreachable(item: Released, endpoint: str, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return CheckpointError(
        f"{item.filename} is not on this machine and could not be fetched: {reason}",
        where=f"{endpoint}/{item.repository}",
        mend=f"Connect and try again, give the path of a file, or start without weights: {_without_weights(item.stem)}",
    )


def _unknown(name: str, families: Mapping[str, Family]) -> CheckpointError:
    known = released(families)
    looks_like_path = Path(name).name != name or Path(name).suffix.lower() not in ("", *SUFFIXES)
    mends: list[str] = []
    near: list[str] = []
    if looks_like_path:
        folder = Path(name).parent
        with contextlib.suppress(OSError):
            near = nearest(Path(name).name, [p.name for p in folder.iterdir() if p.is_file()])
        mends.append(f"Did you mean {folder / near[0]}?" if near else "Check the path.")
    else:
        near = nearest(_stem(name), known)
        if near:
            mends.append("Nearest known names: " + ", ".join(f"{n}.pt" for n in near) + ".")
        elif known:
            mends.append("Known names are such as " + ", ".join(f"{n}.pt" for n in list(known)[:3]) + ".")
        if guess := _family_in(name):
            mends.append(f"If its family is not installed: pip install libreyolo-family-{guess}.")
        mends.append(f"To start without weights: {_without_weights(near[0] if near else 'NAME')}")
    what = (
        "no such file" if looks_like_path else "no such file, and no installed family has released weights of that name"
    )
    installed = ", ".join(families) or "none"
    where = "" if looks_like_path else f"installed families: {installed}"
    return CheckpointError(f"{name!r}: {what}", where=where, mend=" ".join(mends))


_SIZES = (  # how sizes end a name: r18 or b0 after a capital or digit, words, 50, b0, s
    r"(.+[A-Z0-9])[a-z]\d{1,3}[a-z]?",
    r"(.+?)(?:atto|femto|pico|nano|tiny|small|base|large)",
    r"(.+[A-Za-z])\d{2,3}",
    r"(.+)[a-z]\d",
    r"(.+)[a-z]",
)


def _family_in(name: str) -> str:
    """The family that a released name such as ``LibreABC9s-seg.pt`` seems to belong to (``abc9``), "" when none."""
    body = re.fullmatch(r"(?i:libre)([A-Za-z0-9]+?)(?:-[a-z0-9-]+)?", _stem(name))
    if body is None:
        return ""
    found = next((m for pattern in _SIZES if (m := re.fullmatch(pattern, body[1]))), body)
    return found[1].lower() if len(found[1]) > 1 else ""


def _without_weights(name: str) -> str:
    return f'LibreYOLO("{name}", pretrained=False)'


def _stem(name: Any) -> str:
    text = str(name)
    for suffix in SUFFIXES:
        if text.lower().endswith(suffix):
            return text[: -len(suffix)]
    return text
