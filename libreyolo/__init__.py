"""The front door: ``from libreyolo import LibreYOLO``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libreyolo_core import __version__

__all__ = ["LibreYOLO", "__version__"]

if TYPE_CHECKING:
    from libreyolo_core import LibreYOLO


def __getattr__(name: str) -> Any:
    if name == "LibreYOLO":
        from libreyolo_core import LibreYOLO

        return LibreYOLO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
