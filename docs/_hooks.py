"""Fills the generated parts of the documentation when it is built, from the code that they describe.

A page asks for one with a comment of its own line, ``<!-- generated: families -->``, and for a file of the repository,
shown as code, with ``<!-- file: path -->``. Nothing generated is checked in.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from libreyolo_core.cli.command import SECTIONS, Command  # noqa: E402
from libreyolo_core.cli.commands.families import default_size, millions, recipe_in_words  # noqa: E402
from libreyolo_core.cli.group import find_command  # noqa: E402
from libreyolo_core.cli.options import VALUE, Option, options_of  # noqa: E402
from libreyolo_core.cli.subcommands import Subcommands  # noqa: E402
from libreyolo_core.config import TrainArgs  # noqa: E402
from libreyolo_core.family import Family  # noqa: E402
from libreyolo_core.registry import Plugin, Registry  # noqa: E402
from libreyolo_core.support import support  # noqa: E402

MARK = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)
FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for every page."""
    return FILE.sub(lambda found: shown_file(found[1]), MARK.sub(lambda found: PARTS[found[1]](), markdown))


def shown_file(path: str) -> str:
    """A file of the repository as a block of code under its name."""
    file = ROOT / path
    code = file.read_text(encoding="utf-8").rstrip()
    return f'```{LANGUAGES[file.suffix]} title="{file.name}"\n{code}\n```'


@cache
def families() -> dict[str, Family]:
    """The families in ``plugins/`` of this checkout, whether or not they are installed."""
    found = []
    for sheet in sorted(ROOT.glob("plugins/libreyolo-family-*/src/*/plugin.py")):
        source = str(sheet.parent.parent)
        if source not in sys.path:
            sys.path.insert(0, source)
        plugin = Plugin(sheet.parent.name, sheet.parents[2].name, "")
        found.append((plugin, importlib.import_module(f"{sheet.parent.name}.plugin")))
    registry = Registry(found)
    failed = [f"{p.distribution}: {p.error}" for p in registry.plugins if p.error]
    if failed:
        raise RuntimeError(f"a family's sheet cannot be read: {failed}")
    return registry.families()


def training_arguments() -> str:
    """Every training argument, under a heading for each kind."""
    titles = {"Required": "Required", "Recipe": "Recipe", "Augmentation": "Augmentation", "Options": "Run"}
    parts = []
    for section, title in titles.items():
        options = [o for o in options_of(TrainArgs) if o.section == section]
        parts.append(f"### {title}\n\n{_options_table(options)}")
    return "\n\n".join(parts)


def family_list() -> str:
    """One row per family and task: what there is."""
    rows = []
    for family in families().values():
        for name, task in family.tasks.items():
            counts = [s.params for s in task.sizes.values()]
            parameters = f"{millions(min(counts))} to {millions(max(counts))}"
            rows.append((f"[{family.title}](#{family.key})", name, " ".join(task.sizes), parameters))
    return _table(("family", "task", "sizes", "parameters"), rows)


def support_matrix() -> str:
    """One row per family and task: what each feature does for it."""
    found = [(f, name, support(task)) for f in families().values() for name, task in f.tasks.items()]
    head = ("family", "task", *found[0][2])
    return _table(head, [(f"[{f.title}](families.md#{f.key})", name, *facts.values()) for f, name, facts in found])


def family_sheets() -> str:
    """A section per family: its sizes and how it trains."""
    parts = []
    for family in families().values():
        parts.append(f"## {family.title} {{#{family.key}}}")
        parts.append(
            f"`pip install libreyolo-family-{family.key}`. Weights: `{family.weights.pattern}`, "
            f"licence {family.weights.licence or 'not stated'}. Paper: {family.paper or 'not stated'}."
        )
        for name, task in family.tasks.items():
            sizes = [
                (f"`{family.key}-{s}`" + (" (default)" if s == default_size(family) else ""), str(size.imgsz))
                + (f"{size.params:,}",)
                for s, size in task.sizes.items()
            ]
            parts.append(f"Task {name}, {task.classes} classes unless the data says otherwise:")
            parts.append(_table(("size", "input, pixels", "parameters"), sizes))
            augment = ", ".join(a.name for a in task.augment if a.p) or "none"
            facts = {**recipe_in_words(task.recipe), "augmentation": augment}
            parts.append(_table(("recipe", ""), [(k, _code_if_pattern(v)) for k, v in facts.items()]))
    return "\n\n".join(parts)


def commands() -> str:
    """Every command of the core with its options."""
    from libreyolo_core import builtin

    core = Registry([(Plugin("core", "libreyolo-core", ""), builtin)])
    return "\n\n".join(_command(name) for name in core.plugins[0].entries["commands"])


def _command(name: str) -> str:
    command = find_command(name.split())[0]
    if isinstance(command, Subcommands):
        below = [_command(f"{name} {entry}") for entry in command.entries]
        return "\n\n".join([f"## {name}", command.help or "", command.notes, *below])
    assert isinstance(command, Command)
    page = command.to_dict(f"libreyolo {name}")
    parts = [
        f"##{'#' * name.count(' ')} {name}",
        command.help or "",
        f"```text\n{page['usage']}\n{page['example']}\n```",
    ]
    parts.append(command.notes.replace("\n", " "))
    own = [o for o in command.described.values() if o.section != "General"]
    if name == "train":
        own = [o for o in own if o.name not in {t.name for t in options_of(TrainArgs)}]
        parts.append("Besides all [training arguments](training.md#all-arguments):")
    if own:
        parts.append(_options_table(sorted(own, key=lambda o: SECTIONS.index(o.section))))
    return "\n\n".join(p for p in parts if p)


def _options_table(options: list[Option]) -> str:
    rows = []
    for option in options:
        values = option.allowed or ("true or false" if option.takes != VALUE else option.type)
        default = option.default or ("required" if option.required else "")
        rows.append((f"`{option.name}`", option.help, values, default))
    return _table(("argument", "meaning", "values", "default"), rows)


def _code_if_pattern(text: str) -> str:
    return f"`{text}`" if "\\" in text else text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "training-arguments": training_arguments,
    "family-list": family_list,
    "support-matrix": support_matrix,
    "family-sheets": family_sheets,
    "commands": commands,
}
