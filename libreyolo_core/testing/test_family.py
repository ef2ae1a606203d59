"""Every check of the contract, each a test, on the family that ``--family`` names; see ``pytest_plugin``.

A check that cannot be judged here (no reference file, a task to which it does not apply) is skipped with its reason.
"""

from __future__ import annotations

import pytest

from libreyolo_core.testing.contract import CHECKS, check_family


@pytest.mark.parametrize("check", CHECKS)
def test_family(check: str, request: pytest.FixtureRequest) -> None:
    """One check."""
    option = request.config.option
    (row,) = check_family(
        option.family, only=[check], reference=option.reference, size=option.size, task=option.task
    ).rows
    if row["status"] == "not run":
        pytest.skip(f"not run: {row['detail']}")
    if row["status"] != "passed":
        pytest.fail(row["detail"], pytrace=False)
