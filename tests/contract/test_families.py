"""Every family of this repository keeps the contract, each check a test of its own."""

from pathlib import Path

import pytest

from libreyolo_core.testing import check_family, contract
from libreyolo_core.testing.contract import CHECKS

PLUGINS = Path(__file__).parents[2] / "plugins"
FAMILIES = sorted(p.name.removeprefix("libreyolo-family-") for p in PLUGINS.glob("libreyolo-family-*"))
NOT_RUN = {("resnet", "empty"), ("segformer", "empty"), ("nafnet", "empty"), ("nafnet", "classes")}
"""(family, check) that do not apply: every classified image has its label, every pixel its class or its clean value; a
restoration has no classes."""


def references(key):
    return sorted((PLUGINS / f"libreyolo-family-{key}" / "tests" / "reference").glob("*.json"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("key", FAMILIES)
def test_family_keeps_the_contract(key, check, monkeypatch):
    monkeypatch.setattr(contract, "REPLAYED_STEPS", 8)  # check-family itself takes 20
    files = references(key)
    assert files, f"{key} has no reference file"
    for file in files if "parity" in check else files[:1]:
        (row,) = check_family(key, only=[check], reference=file).rows
        expected = "not run" if (key, check) in NOT_RUN else "passed"
        assert row["status"] == expected, row["detail"]


def test_the_core_names_no_family():
    core = Path(__file__).parents[2] / "libreyolo_core"
    for file in core.rglob("*.py"):
        text = file.read_text().lower()
        found = [key for key in FAMILIES if key in text.replace("torchvision.models.resnet", "")]
        assert not found, f"{file} names {found}"


def test_a_family_imports_nothing_private_from_the_core():
    import re

    for file in PLUGINS.glob("*/src/**/*.py"):
        hits = re.findall(r"from libreyolo_core[\w.]* import [^\n]*\b_\w+|libreyolo_core\._\w+", file.read_text())
        assert not hits, f"{file}: {hits}"
