"""``Subcommands``: a command whose first word names another, as in ``libreyolo profile kernels``.

Like the commands themselves, each is a reference that is imported when it is called::

    profile = Subcommands("profile", summary="...", commands=(NamedEntry("kernels", "module:kernels", "..."),))
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from libreyolo_core.cli.command import GENERAL, is_on
from libreyolo_core.cli.options import asks, read
from libreyolo_core.cli.output import print_json
from libreyolo_core.errors import UnknownNameError, UsageError, suggestion
from libreyolo_core.family import resolve
from libreyolo_core.hookspecs import NamedEntry

SWITCHES = {o.name: o for o in GENERAL}


class Subcommands(click.Group):
    """Commands by name below one word."""

    def __init__(
        self, name: str, *, summary: str, commands: tuple[NamedEntry, ...], example: str, notes: str = ""
    ) -> None:
        super().__init__(name, help=summary, short_help=summary, add_help_option=False)
        self.entries = {entry.name: entry for entry in commands}
        self.example, self.notes = example, notes
        self.described, self.positional, self.arguments = SWITCHES, (), None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in the order they were given."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one; ``None`` when there is none of that name."""
        return self.load(cmd_name) if cmd_name in self.entries else None

    def load(self, name: str, *, verb: str = "") -> click.Command:
        """Import the command ``name``.

        Raises:
            UnknownNameError: there is none; the message holds the nearest names.
        """
        if name not in self.entries:
            mend = suggestion(name, self.entries, what="commands")
            raise UnknownNameError(f"Unknown command {name!r}", where=verb or str(self.name), mend=mend)
        command = resolve(self.entries[name].code)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the word that names the command; switches that every command knows may stand before it."""
        verb = ctx.command_path
        first = next((i for i, a in enumerate(args) if not a.startswith("-") and "=" not in a), len(args))
        leading, named, rest = args[:first], args[first : first + 1], args[first + 1 :]
        if not named:
            if "-h" in leading or asks(leading, "help"):
                print_json(self.to_dict(verb)) if asks(leading, "json") else click.echo(self.get_help(ctx))
                ctx.exit()
            read(leading, SWITCHES, verb=verb)
            known = ", ".join(self.entries)
            raise UsageError(f"{verb} needs one of {known}", where=verb, mend=f"For example: {verb} {self.example}")
        given, _ = read(leading, SWITCHES, verb=verb)
        ctx.obj = (named[0], [f"--{name}" for name, value in given.items() if is_on(value, name)] + rest)
        return []

    def invoke(self, ctx: click.Context) -> int:
        """Run the command that was named; returns its exit code."""
        name, args = ctx.obj
        command = self.load(name, verb=ctx.command_path)
        with command.make_context(name, args, parent=ctx) as below:
            return int(command.invoke(below))

    def get_help(self, ctx: click.Context) -> str:
        """The whole help page."""
        verb = ctx.command_path
        width = max(map(len, self.entries))
        listed = "\n".join(f"  {entry.name:<{width}}  {entry.help}" for entry in self.entries.values())
        general = "\n".join(f"  {'--' + o.name:<{max(width, 11)}}  {o.help}" for o in GENERAL)
        usage = f"Usage: {self._usage(verb)}"
        parts = (usage, self.help, self.notes, f"Example:\n  {verb} {self.example}", f"Commands:\n{listed}")
        return "\n\n".join(p for p in (*parts, f"After a command:\n{general}") if p)

    def to_dict(self, verb: str) -> dict[str, Any]:
        """The help page as data: the answer to ``--help --json``."""
        return {
            "command": self.name,
            "help": self.help,
            "usage": self._usage(verb),
            "example": f"{verb} {self.example}",
            "commands": [{"name": e.name, "help": e.help} for e in self.entries.values()],
            "options": [asdict(o) for o in GENERAL],
        }

    def _usage(self, verb: str) -> str:
        return f"{verb} COMMAND [key=value | --key value]..."
