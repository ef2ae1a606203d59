"""What ``new-family`` writes and what it refuses; that it installs, trains and passes is for ``test_tutorial``."""

import ast
import re
import subprocess
import sys

import pytest

from environments import ROOT
from libreyolo_core.errors import ConfigError
from libreyolo_core.scaffold import FILES, LONGEST, names_of, write_family

LONG = "a-name-of-exactly-thirty-signs"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return write_family("river-scout", folder=tmp_path_factory.mktemp("family"), author="Ada Lovelace")


def test_all_names_follow_from_one():
    names = names_of("river-scout")
    assert (names.key, names.distribution) == ("river_scout", "libreyolo-family-river-scout")
    assert (names.module, names.weights, names.title) == ("libreyolo_family_river_scout", "RiverScout", "River Scout")
    assert names_of("river_scout") == names


def test_every_file_is_written_and_nothing_in_it_is_left_to_fill_in(package):
    written = {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
    assert written == {path.replace("{{module}}", "libreyolo_family_river_scout") for path in FILES}
    for path in written:
        text = (package / path).read_text(encoding="utf-8")
        assert "{{" not in text.replace("{{}}", "") and not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert "Ada Lovelace" in (package / "LICENSE").read_text()
    assert not list(package.parent.glob(".*"))


def test_the_sheet_is_short_and_declares_only(package):
    text = (package / "src" / "libreyolo_family_river_scout" / "plugin.py").read_text()
    assert len(text.splitlines()) < 90
    logic = (ast.For, ast.While, ast.If, ast.Try, ast.ListComp, ast.DictComp, ast.Lambda)
    assert not any(isinstance(node, logic) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize("name", ["a", "river-scout", LONG])
def test_the_code_is_clean_whatever_the_name(name, tmp_path):
    assert len(LONG) == LONGEST
    folder = write_family(name, folder=tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_types_are_clean(package):
    # Run in the checkout: its own type check, which comes before the tests, has left a warm cache there.
    command = [sys.executable, "-m", "mypy", str(package / "src")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_title_and_author_stand_where_people_look(tmp_path):
    folder = write_family("river", folder=tmp_path, title="Río Scout 2", author="Ада и др.")
    assert '"Río Scout 2",' in (folder / "src" / "libreyolo_family_river" / "plugin.py").read_text(encoding="utf-8")
    for file in ("LICENSE", "NOTICE", "pyproject.toml"):
        assert "Ада и др." in (folder / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("River Scout", "'River Scout' is no name for a family .* a letter first: river-scout"),
        ("9lives", "'9lives' is no name for a family .* a letter first: lives"),
        ("a--b", "'a--b' is no name for a family .* a-b"),
        ("../up", "'../up' is no name for a family"),
        ("", "'' is no name for a family"),
        ("ё", "'ё' is no name for a family"),
        (LONG + "s", "has 31 characters .* at most 30"),
        ("toy", "'toy' is taken by the family 'toy' of .* my-toy"),
        ("toys", "'toys' is taken by the model toy-s, which 'toys' means too"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_the_mend(name, says, tmp_path, entry_points):
    entry_points(toy="toy_family")
    with pytest.raises(ConfigError, match=says):
        write_family(name, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_that_exists_is_overwritten(tmp_path):
    folder = write_family("river", folder=tmp_path)
    (folder / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match="exists already .* path=DIR"):
        write_family("river", folder=tmp_path)
    assert (folder / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: .* path=DIR"):
        write_family("river", folder=tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "{{key}}", "  "])
def test_a_title_that_would_break_a_file_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match="title=.* cannot stand in a file"):
        write_family("river", folder=tmp_path, title=text)
    assert not list(tmp_path.iterdir())


def test_writing_one_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; from libreyolo_core.scaffold import write_family; write_family('river')\n"
        "print([m for m in ('torch', 'numpy', 'cv2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
