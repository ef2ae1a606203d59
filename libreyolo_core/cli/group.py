"""The group of all commands, which come from the registry and are imported when called, and the one place where errors
become lines and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from libreyolo_core.cli.options import asks
from libreyolo_core.cli.output import print_json
from libreyolo_core.cli.overview import discovered_commands, overview
from libreyolo_core.errors import LibreYOLOError, PluginError, UnknownNameError, UsageError

PROGRAM = "libreyolo"
LEADING = ("--help", "-h", "--version", "--json", "--traceback")
"""Options that may stand before the command."""


class LazyGroup(click.Group):
    """Commands by name from the hook ``libreyolo_commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, the core's first."""
        return [name for name, _ in discovered_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; ``None`` when nothing provides it."""
        try:
            return load_command(cmd_name)
        except UnknownNameError:
            return None

    def get_help(self, ctx: click.Context) -> str:
        """The overview."""
        return overview(discovered_commands())

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run the command line and exit with the code of the outcome. Of click's arguments only ``args`` counts."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = _outcome(self, given)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 1
        sys.exit(code)


def load_command(name: str) -> click.Command:
    """Import the command ``name``.

    Raises:
        UnknownNameError: nothing provides it; the message holds the nearest names.
        PluginError: two plugins claim it, or what one registered is no click command.
    """
    from libreyolo_core.registry import registry

    found = registry()
    command = found.named("commands", name, what="command")
    if not isinstance(command, click.Command):
        raise PluginError(
            f"The command {name!r} is of type {type(command).__name__}, not a click command",
            where=found.entries("commands")[name].distribution,
            mend="Ask its author to mend it.",
        )
    return command


def find_command(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, through commands below others, and the words after its name.

    Raises:
        What ``load_command`` raises.
    """
    from libreyolo_core.cli.subcommands import Subcommands

    command, rest = load_command(words[0]), list(words[1:])
    while isinstance(command, Subcommands) and rest and not rest[0].startswith("-"):
        command = command.load(rest.pop(0))
    return command, rest


def _outcome(group: LazyGroup, given: list[str]) -> int:
    """Run, and turn whatever is raised into a line and an exit code."""
    try:
        return _run(group, given)
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, click.Abort) as error:
        said = str(error) if isinstance(error, KeyboardInterrupt) else ""
        return _report("KeyboardInterrupt", said or "interrupted", "", "", 130, given)
    except LibreYOLOError as error:
        return _report(type(error).__name__, error.problem, error.where, error.mend, error.exit_code, given)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        return _report("UsageError", error.format_message(), where, f"See {where} --help.", 2, given)
    except click.ClickException as error:
        return _report(type(error).__name__, error.format_message(), "", "", error.exit_code, given)
    except Exception as error:  # whatever else is raised is a fault of the program, not of the user
        mend = "This is a fault of the program; run it again with --traceback to see where."
        return _report(type(error).__name__, f"{type(error).__name__}: {error}", "", mend, 1, given)


def _run(group: LazyGroup, given: list[str]) -> int:
    first = next((i for i, g in enumerate(given) if not g.startswith("-")), len(given))
    leading, name, rest = given[:first], given[first : first + 1], given[first + 1 :]
    for token in leading:
        if token not in LEADING:
            raise UsageError(
                f"Unknown option {token!r}", where=PROGRAM, mend="Options follow a command: libreyolo --help."
            )
    asked = "--help" in leading or "-h" in leading
    if "--version" in leading and not asked:
        return _show_version(as_json="--json" in leading)
    if asked or not name:
        return _show_overview(as_json="--json" in leading, asked=asked)
    command = load_command(name[0])
    ours = hasattr(command, "described")
    above = click.Context(group, info_name=PROGRAM)
    passed = [g for g in leading if g == "--json"] + rest
    if not ours:  # a plain click command of a plugin knows nothing of this one
        passed = [p for p in passed if p != "--traceback"]
    with above, command.make_context(name[0], passed, parent=above) as ctx:
        code = command.invoke(ctx)
    return int(code) if ours else 0


def _show_overview(*, as_json: bool, asked: bool) -> int:
    """The overview; without being asked for it goes to standard error, as it stands for a missing command."""
    commands = discovered_commands()
    if as_json:
        print_json({"commands": [{"name": name, "help": help} for name, help in commands]})
    else:
        print(overview(commands), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _show_version(*, as_json: bool) -> int:
    from libreyolo_core import __version__

    if as_json:
        print_json({"libreyolo-core": __version__})
    else:
        print(f"libreyolo-core {__version__}")
    return 0


def _report(kind: str, problem: str, where: str, mend: str, code: int, given: list[str]) -> int:
    """One line on standard error, with ``--json`` also one document on standard output; returns ``code``."""
    if asks(given, "traceback"):
        traceback.print_exc()
    place = f" ({where})" if where else ""
    line = f"{problem.rstrip('.')}{place}. {mend}"
    print(f"error{_rank()}: " + " ".join(line.split()), file=sys.stderr)
    if asks(given, "json"):
        print_json({"error": {"type": kind, "message": problem, "where": where, "mend": mend, "exit_code": code}})
    return code


def _rank() -> str:
    """Which process of a launched run says it, as each of them ends with a line of its own."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    return f" on rank {rank} of {size}" if rank and size != "1" else ""


cli = LazyGroup(PROGRAM)
