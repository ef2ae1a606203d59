"""The one folder outside of run directories that anything is written to. Light, as the command line reads it first."""

from __future__ import annotations

import os
import sys

CACHE = "LIBREYOLO_CACHE"


def cache_directory() -> str:
    """Absolute path: ``LIBREYOLO_CACHE``, else ``libreyolo`` in the platform's folder for caches. It need not exist."""
    given = os.environ.get(CACHE, "").strip()
    if given:
        return os.path.abspath(os.path.expanduser(given))
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
        return os.path.join(local, "libreyolo", "cache")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "libreyolo")
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "libreyolo")
