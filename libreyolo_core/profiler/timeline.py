"""``timeline.html``: a profile as one page that opens without a network or a server.

The page is put together from the files in ``page/``, and holds what it shows as JSON. Its address holds the view:
``timeline.html#zoom=1200,3400&find=conv`` shows 1.2 to 3.4 ms and highlights what has conv in its name.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from libreyolo_core.profiler.wording import duration, facts, on_cpu, share, title, window

SCRIPTS = ("lanes.js", "drawing.js", "controls.js")
"""Parts of the page's script, in the order in which they run, as one function."""
ROWS = 12
"""Kernels and operators listed below the timeline."""


def write_timeline(path: str | Path, profile: Mapping[str, Any]) -> None:
    """Write a profile's timeline.

    Args:
        path: the HTML file to write.
        profile: as ``reading.load_profile`` returns it; one without lanes gives a page without a timeline's events.
    """
    Path(path).write_text(page(profile), encoding="utf-8")


def page(profile: Mapping[str, Any]) -> str:
    """The text of ``timeline.html``."""
    filled = {
        "@TITLE@": html.escape(f"Timeline: {title(profile)}"),
        "@STYLE@": _part("timeline.css"),
        "@PROFILE@": _embedded(contents(profile)),
        "@SCRIPT@": "\n\n".join(_part(name) for name in SCRIPTS),
    }
    done, rest = "", _part("timeline.html")
    for mark, value in filled.items():  # in the order of the page, so that no value is searched for a mark
        head, _, rest = rest.partition(mark)
        done += head + value
    return done + rest


def contents(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows, in words wherever it shows words."""
    verdict = profile["verdict"]
    operators = sorted(profile["ops"], key=lambda row: -row["self_us"])
    dropped = profile.get("lanes_dropped") or 0
    kernels = [] if on_cpu(profile["run"]) else profile["kernels"][:ROWS]  # there they are operators, listed below
    return {
        "title": title(profile),
        "window": window(profile),
        "verdict": {"name": verdict["name"], "reason": verdict.get("reason", ""), "levers": verdict.get("levers", [])},
        "facts": facts(profile),
        "kernels": [
            (row["name"], duration(row["total_us"]), f"{row['count']:,}", duration(row["mean_us"])) for row in kernels
        ],
        "ops": [
            (row["name"], duration(row["self_us"]), duration(row["total_us"]), f"{row['count']:,}")
            for row in operators[:ROWS]
        ],
        "phases": [(p["name"], duration(p["us_per_step"]), share(p["share"])) for p in profile["phases"]],
        "made": _made(profile) + (f" {dropped:,} of the shortest events are left out." if dropped else ""),
        "lanes": profile.get("lanes", []),
        "names": profile.get("names", []),
    }


def _part(name: str) -> str:
    return files("libreyolo_core.profiler").joinpath("page").joinpath(name).read_text(encoding="utf-8").rstrip()


def _made(profile: Mapping[str, Any]) -> str:
    programs = [
        f"{name} {profile[key]}" for name, key in (("LibreYOLO", "libreyolo"), ("torch", "torch")) if key in profile
    ]
    return f"Recorded {profile.get('created', '')} with {', '.join(programs)}.".replace("  ", " ")


def _embedded(value: Any) -> str:
    """JSON that nothing in it can end: no character that HTML or JavaScript gives a meaning stands as itself."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
