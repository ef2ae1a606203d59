"""``pytest --pyargs libreyolo_core.testing --family KEY``: the options, for that call alone.

pytest loads this module in every run of an environment that has the core installed (entry point ``pytest11``), because
options of a ``conftest.py`` inside an installed package come too late. So it imports nothing heavy, and in a run that
does not name ``libreyolo_core.testing`` it adds no option and changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
PACKAGE = "libreyolo_core.testing"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options where the run names this package."""
    config = pluginmanager.get_plugin("pytestconfig")
    assert config is not None
    if not any(str(a).startswith((PACKAGE, str(HERE))) for a in config.invocation_params.args):
        return
    group = parser.getgroup("libreyolo", "the contract of a model family")
    group.addoption("--family", metavar="KEY", help="key of the installed family to examine")
    group.addoption("--reference", metavar="FILE", help="numeric reference file, for the parity checks")
    group.addoption("--size", default="", metavar="SIZE", help="default: the reference's, else the family's first")
    group.addoption("--task", default="", metavar="TASK", help="default: the reference's, else the family's first")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a family, a task, a size or a file that is not there before anything is collected."""
    import pytest

    from libreyolo_core.errors import LibreYOLOError

    if not hasattr(config.option, "family"):
        return
    if config.option.collectonly and not config.option.family:
        return
    try:
        _check(config.option.family, config.option.task, config.option.size, config.option.reference)
    except LibreYOLOError as error:
        raise pytest.UsageError(str(error)) from None
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"  # why a check was not run belongs to the answer


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run that merely passes by this folder has no family to examine."""
    if collection_path.parent == HERE and not getattr(config.option, "family", None):
        return True
    return None


def _check(key: str | None, task: str, size: str, reference: str | None) -> None:
    from libreyolo_core.errors import UnknownNameError, UsageError, suggestion
    from libreyolo_core.registry import registry

    if not key:
        known = ", ".join(registry().families()) or "none"
        raise UsageError("--family is missing", where=f"installed families: {known}", mend="Give it: --family KEY.")
    family = registry().family(key)
    if task and task not in family.tasks:
        raise UnknownNameError(f"{key} has no task {task!r}", where="--task", mend=suggestion(task, family.tasks))
    sizes = {s for name, t in family.tasks.items() if task in ("", name) for s in t.sizes}
    if size and size not in sizes:
        raise UnknownNameError(f"{key} has no size {size!r}", where="--size", mend=suggestion(size, sizes))
    if reference and not Path(reference).is_file():
        raise UsageError(f"{reference}: no such file", where="--reference", mend="Check the path.")
