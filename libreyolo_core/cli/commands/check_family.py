"""``libreyolo check-family``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import Positional, command
from libreyolo_core.cli.options import Option
from libreyolo_core.cli.output import Answer, Table

OPTIONS = (
    Option("only", "Run this check; may be given several times.", default="all", example="parity", repeatable=True),
    Option("size", "Which size.", default="the reference's, else the first"),
    Option("task", "Which task.", default="the reference's, else the first"),
    Option("reference", "Reference file to compare with.", default="none", example="reference.json"),
)


@command(
    "check-family",
    summary="Prove that a family keeps the contract.",
    options=OPTIONS,
    positional=Positional("family", "The family's key."),
    example=lambda: f"{_example_family()} only=registration only=split",
    notes="Exit code 0 means that every check that ran passed. A check that could not run is listed as 'not run'.",
)
def check_family(given: dict[str, Any]) -> Answer:
    """Run the checks."""
    from libreyolo_core.registry import registry

    registry().family(given["family"])
    from libreyolo_core.testing import check_family as run_checks

    chosen = {k: given[k] for k in ("size", "task", "reference") if k in given}
    report = run_checks(given["family"], only=given.get("only", ()), **chosen)
    rows = tuple((r["check"], r["status"], r["detail"]) for r in report.rows)
    document = {"family": given["family"], "ok": report.ok, "checks": report.rows}
    return Answer(document, (Table(("check", "status", "detail"), rows),), exit_code=0 if report.ok else 1)


def _example_family() -> str:
    from libreyolo_core.registry import registry

    return next(iter(registry().families()), "my-family")
