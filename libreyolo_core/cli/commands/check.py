"""``libreyolo check``."""

from __future__ import annotations

import sys
from typing import Any

from libreyolo_core.cli.command import Positional, command, is_on
from libreyolo_core.cli.options import SWITCH, Option
from libreyolo_core.cli.output import Answer

OPTIONS = (
    Option("task", "What the labels are for, e.g. detect or semantic.", default="detect", example="classify"),
    Option("strict", "Exit with code 1 when there is a fault that loses something.", SWITCH, default="false"),
)


@command(
    "check",
    summary="Check a data set and report every fault.",
    options=OPTIONS,
    positional=Positional("data", "Data set: YAML file, registered name, folder, or COCO JSON pair."),
    example="my.yaml",
    notes="The same scan runs before every training. Faulty labels are left out of training and reported.\n"
    "Exit code 1 means that the data set cannot be used.",
)
def check(given: dict[str, Any]) -> Answer:
    """Scan and report."""
    strict = is_on(given.get("strict", "false"), "strict")
    from libreyolo_core.data.scan import check as scan

    found = scan(given["data"], given.get("task", "detect"), progress=_progress if sys.stderr.isatty() else None)
    faults = [kind for split in found["splits"].values() for kind in split["faults"].values()]
    serious = any(not kind["harmless"] for kind in faults)
    verdict = "usable" if found["usable"] else "cannot be used"
    code = 1 if not found["usable"] or (strict and serious) else 0
    return Answer(found, (found["report"], f"{found['data']}: {verdict}"), exit_code=code)


def _progress(done: int, total: int) -> None:
    """A counter on the terminal that erases itself."""
    sys.stderr.write(f"\r{done:,} of {total:,} images" if done < total else "\r\x1b[K")
    sys.stderr.flush()
