"""Pages that show files of the repository show them whole."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks_of_files", ROOT / "docs" / "_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_that_a_page_asks_for_is_in_it(hooks):
    asked = 0
    for page in (ROOT / "docs").glob("**/*.md"):
        text = page.read_text(encoding="utf-8")
        for path in hooks.FILE.findall(text):
            built = hooks.on_page_markdown(text)
            assert (ROOT / path).read_text(encoding="utf-8").rstrip() in built
            assert "<!-- file" not in built
            asked += 1
    assert asked >= 6


def test_the_page_about_adding_shows_the_whole_package_that_the_tests_install(hooks):
    shown = set(hooks.FILE.findall((ROOT / "docs" / "adding.md").read_text(encoding="utf-8")))
    package = ROOT / "tests" / "third_party" / "packages" / "orchard-vision"
    files = [package / "pyproject.toml", *(package / "src" / "orchard_vision").glob("*.py")]
    assert {str(f.relative_to(ROOT)) for f in files if f.name != "__init__.py"} == shown
