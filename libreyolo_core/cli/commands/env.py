"""``libreyolo env``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.output import Answer


@command("env", summary="Print versions, devices and folders, for a bug report.")
def env(given: dict[str, Any]) -> Answer:
    """Describe this machine and what is installed on it."""
    from libreyolo_core.cachedir import cache_directory
    from libreyolo_core.engine.rundir import environment

    facts = {**environment(), "memory": _memory(), "cache": cache_directory()}
    width = max(len(name) for name in facts)
    return Answer(facts, tuple(f"{name:<{width}}  {_shown(value)}" for name, value in facts.items()))


def _memory() -> str:
    """The machine's memory, where the system tells."""
    import os

    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
