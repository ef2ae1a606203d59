"""``libreyolo plugins``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.output import Answer, Table


@command(
    "plugins",
    summary="List plugins, what they brought and what failed.",
    notes="LIBREYOLO_DISABLE_PLUGINS=a,b turns plugins off, by plugin or distribution name.",
)
def plugins(given: dict[str, Any]) -> Answer:
    """List what discovery found."""
    from libreyolo_core.registry import registry

    found = registry()
    rows = tuple(
        (p.name, p.distribution, p.version, f"FAILED: {p.error}" if p.error else _brought(p.entries))
        for p in found.plugins
    )
    conflicts = tuple(f"conflict: {line}" for line in found.conflicts())
    document = {"plugins": [vars(p) for p in found.plugins], "conflicts": found.conflicts()}
    return Answer(document, (Table(("plugin", "distribution", "version", "brought"), rows), *conflicts))


def _brought(entries: dict[str, list[str]]) -> str:
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in entries.items()) or "nothing"
