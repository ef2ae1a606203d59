"""The documentation says what the code does: examples run or parse, generated parts are complete, links hold."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10, where pytest itself brings the same under another name
    import tomli as tomllib

from libreyolo_core.cli.command import Command
from libreyolo_core.cli.group import find_command, load_command
from libreyolo_core.cli.options import check_values, read
from libreyolo_core.config import TrainArgs
from libreyolo_core.support import support

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    p
    for pattern in ("docs/**/*.md", "*.md", "plugins/*/*.md")
    for p in ROOT.glob(pattern)
    if p.name not in ("LICENSE.md", "NOTICE.md")
)
FENCE = re.compile(r"^(<!-- run -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, whether it is to be run."""

    page: str
    line: int
    language: str
    text: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[2], match[3], bool(match[1])))
    return found


BLOCKS = blocks()
COMMANDS = [
    (f"{block}: {line}", line)
    for block in BLOCKS
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.startswith("libreyolo ") and block.language in ("", "bash", "sh", "console")
]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_every_python_example_compiles_and_imports_what_exists(block):
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (
            "libreyolo",
            "libreyolo_core",
        ):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.runs], ids=str)
def test_every_example_marked_to_run_does(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(block.text, str(block), "exec"), names)
    assert len(names) > 2


@pytest.mark.parametrize("line", [line for _, line in COMMANDS], ids=[name for name, _ in COMMANDS])
def test_every_command_line_in_the_documentation_is_understood(line):
    words = shlex.split(line, comments=True)[1:]
    if words[0] in ("--help", "--version"):
        return
    command, after = find_command(words)
    assert isinstance(command, Command)
    given, rest = read([w for w in after if w != "..."], command.described, verb=words[0])
    assert len(rest) <= len(command.positional), rest
    if command.arguments and "help" not in given:
        given = {k: v for k, v in given.items() if k in {f.name for f in fields(command.arguments)}}
        check_values(command.arguments, given, verb=words[0], complete="..." not in words and "resume" not in given)


def test_there_are_examples_of_every_kind():
    assert len(COMMANDS) > 20
    assert sum(b.runs for b in BLOCKS) >= 3


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(hooks):
    """A page of ``docs/`` as it is built."""
    return lambda name: hooks.on_page_markdown((ROOT / "docs" / name).read_text(encoding="utf-8"))


def test_nothing_is_left_to_generate_and_no_generator_is_unused(hooks):
    texts = {p: p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("**/*.md")}
    asked = {name for text in texts.values() for name in hooks.MARK.findall(text)}
    assert asked == set(hooks.PARTS)
    assert not any("<!-- generated" in hooks.on_page_markdown(text) for text in texts.values())


def test_the_training_page_lists_every_argument_with_its_help(page):
    text = page("training.md")
    for f in fields(TrainArgs):
        if not f.metadata["python_only"]:
            assert f"| `{f.name}` | {f.metadata['help']}".replace("|", "\\|")[2:] in text.replace("|", "\\|")


def test_the_families_page_has_a_row_and_a_section_for_every_family_of_the_repository(page, hooks):
    text = page("families.md")
    keys = {p.name.removeprefix("libreyolo-family-") for p in ROOT.glob("plugins/libreyolo-family-*")}
    assert set(hooks.families()) == keys
    for family in hooks.families().values():
        assert f"[{family.title}](#{family.key})" in text
        for task in family.tasks.values():
            for name, size in task.sizes.items():
                assert f"`{family.key}-{name}`" in text
                assert f"{size.params:,}" in text
            assert task.precision.why in text
            assert f"| {' | '.join(support(task).values())} |" in text


def test_the_command_page_has_a_section_for_every_command_of_the_core(page):
    from libreyolo_core import builtin

    text = page("cli.md")
    for entry in builtin.libreyolo_commands():
        assert f"## {entry.name}\n" in text


def test_the_help_line_of_a_command_is_the_one_it_is_listed_with():
    from libreyolo_core import builtin

    for entry in builtin.libreyolo_commands():
        assert load_command(entry.name).help == entry.help


def test_every_dependency_has_a_line_with_its_reason():
    table = (ROOT / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([^`]+)` \| \S", table, re.MULTILINE))
    declared = set()
    for file in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        project = content["project"]
        extras = project.get("optional-dependencies", {}).values()
        listed = [
            *content["build-system"]["requires"],
            *project.get("dependencies", []),
            *(d for e in extras for d in e),
        ]
        declared |= {re.match(r"[\w-]+", requirement)[0] for requirement in listed}
    declared = {name for name in declared if not name.startswith("libreyolo")}
    assert "torch" in declared
    assert declared - explained == set()
    assert explained - declared == set()


def test_the_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "site" / "families" / "index.html").is_file()
    assert not list((tmp_path / "site").glob("**/_hooks*"))


def test_links_of_pages_outside_the_documentation_lead_somewhere():
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("plugins/*/README.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (file.parent / target).exists(), f"{file.name}: {target}"
