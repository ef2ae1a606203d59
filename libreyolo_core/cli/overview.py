"""What ``libreyolo --help`` prints, and the cache that lets it answer without loading the plugins.

Discovery imports every plugin's sheet, which with many families takes longer than everything else together. So the
names and help lines of the commands are kept in a small text file with the modification times of all that they depend
on: the folders of ``sys.path`` (an installation changes one) and the files of the plugins' modules (an edit changes
one). A failed or disputed plugin is never cached, so that it is reported every time.
"""

from __future__ import annotations

import os
import sys

from libreyolo_core import __version__
from libreyolo_core.cachedir import cache_directory

Commands = list[tuple[str, str]]


def installed_commands() -> Commands:
    """Name and help line of every installed command: the core's first, in its own order, then the plugins'."""
    file = _cache_file()
    cached = _read(file)
    if cached is not None:
        return cached
    from libreyolo_core.registry import registry

    found = registry()
    commands = discovered_commands()
    if not found.conflicts() and not any(p.error and "turned off by" not in p.error for p in found.plugins):
        _write(file, commands)
    return commands


def discovered_commands() -> Commands:
    """The same, from the registry."""
    from libreyolo_core.registry import registry

    found = registry()
    helps = found.help_of("commands")
    order = [name for plugin in found.plugins for name in plugin.entries.get("commands", [])]
    return [(name, " ".join(helps[name].split())) for name in dict.fromkeys(order) if name in helps]


def overview(commands: Commands) -> str:
    """The text of ``libreyolo --help``."""
    width = max((len(name) for name, _ in commands), default=0)
    lines = "\n".join(f"  {name:<{width}}  {help}".rstrip() for name, help in commands)
    return f"""\
Usage: libreyolo COMMAND [key=value | --key value]...

Train, measure, run and export vision models. Every model family is a package of its own.

Commands:
{lines}

Options:
  --help       Show this page; after a command: every option of that command.
  --version    Show the version.
  --json       After a command: print one JSON document and nothing else on standard output.
  --traceback  Show where in the code an error arose.

Examples:
  libreyolo demo              Train on the photos that come along.
  libreyolo families          Which models are installed.
  libreyolo train --help      Every training argument, with its range and default."""


def _cache_file() -> str:
    return os.path.join(cache_directory(), f"commands-{__version__}-{sys.implementation.cache_tag}.txt")


def _stamp(path: str) -> str:
    try:
        return f"{os.stat(path).st_mtime_ns}"
    except OSError:
        return "absent"


def _circumstances() -> list[str]:
    """What decides which plugins there are: the search path with its stamps, and the plugins turned off."""
    paths = [f"path\t{p}\t{_stamp(p or '.')}" for p in sys.path]
    return [f"off\t{os.environ.get('LIBREYOLO_DISABLE_PLUGINS', '')}", *paths]


def _read(file: str) -> Commands | None:
    """The cached commands, or ``None`` when there is no cache or anything it depends on has changed."""
    try:
        with open(file, encoding="utf-8") as opened:
            lines = opened.read().split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    expected = _circumstances()
    if lines[: len(expected)] != expected or lines[-1] != "end":
        return None
    commands: Commands = []
    for line in lines[len(expected) : -1]:
        kind, _, rest = line.partition("\t")
        first, _, second = rest.partition("\t")
        if kind == "module" and _stamp(first) == second:
            continue
        if kind != "command":
            return None
        commands.append((first, second))
    return commands


def _write(file: str, commands: Commands) -> None:
    """Write the cache aside and rename it. A cache that cannot be written costs time only, so that is no error."""
    from importlib.metadata import entry_points

    from libreyolo_core.registry import GROUP

    roots = {point.module.partition(".")[0] for point in entry_points(group=GROUP)} | {"libreyolo_core"}
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in roots]
    files = sorted({str(m.__file__) for m in modules if getattr(m, "__file__", None)})
    lines = [
        *_circumstances(),
        *(f"module\t{f}\t{_stamp(f)}" for f in files),
        *(f"command\t{name}\t{help}" for name, help in commands),
        "end",
    ]
    if any("\n" in line for line in lines):
        return
    aside = f"{file}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(aside, "w", encoding="utf-8") as opened:
            opened.write("\n".join(lines))
        os.replace(aside, file)
    except (OSError, UnicodeEncodeError):
        pass
