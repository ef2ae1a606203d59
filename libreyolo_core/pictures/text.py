"""Fonts and text that fits. DejaVu Sans, which comes with matplotlib, covers Latin, Greek, Cyrillic and more; for other
scripts a font of the system is looked for, and a log line says so when there is none."""

from __future__ import annotations

import importlib.util
import logging
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

log = logging.getLogger("libreyolo")
EAST_ASIAN = (
    "Noto Sans CJK",
    "Noto Sans SC",
    "Source Han Sans",
    "WenQuanYi",
    "Microsoft YaHei",
    "PingFang",
    "Hiragino",
)


def font(size: int, text: str = "") -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """A font of ``size`` pixels that shows ``text``."""
    return _load(font_file(text), size)


def font_file(text: str = "") -> str:
    """Path of a font file that shows ``text``; "" for Pillow's built-in one."""
    return _system_font() or _dejavu() if any(_beyond_dejavu(c) for c in text) else _dejavu()


def width(text: str, size: int) -> int:
    """Width of one line of text in pixels."""
    return int(font(size, text).getlength(text) + 0.999)


def shorten(text: str, size: int, room: int) -> str:
    """``text``, or as much of its start as fits into ``room`` pixels with an ellipsis; "" when nothing fits."""
    if width(text, size) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if width(text[:middle].rstrip() + "…", size) <= room else (low, middle - 1)
    return text[:low].rstrip() + "…" if low else ""


def shorten_middle(text: str, size: int, room: int) -> str:
    """As ``shorten``, keeping both ends: file names differ at the end."""
    if width(text, size) <= room:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = kept // 2
        short = text[:head] + "…" + text[len(text) - (kept - head) :]
        if width(short, size) <= room:
            return short
    return shorten(text, size, room)


def _beyond_dejavu(character: str) -> bool:
    return 0x2E80 <= ord(character) <= 0xFFDC and not 0xE000 <= ord(character) <= 0xF8FF or ord(character) >= 0x20000


@lru_cache(maxsize=256)
def _load(path: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)


@lru_cache(maxsize=1)
def _dejavu() -> str:
    spec = importlib.util.find_spec("matplotlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if file.is_file():
            return str(file)
    return ""


@lru_cache(maxsize=1)
def _system_font() -> str:
    from matplotlib import font_manager

    for entry in font_manager.fontManager.ttflist:
        if entry.name.startswith(EAST_ASIAN):
            return entry.fname
    log.warning(
        "Class names hold characters that no installed font shows; pictures will have boxes in their place. "
        "Install a font for them, e.g. the package fonts-noto-cjk."
    )
    return ""
