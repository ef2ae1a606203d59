"""``command``: turns a function into a click command with the manners of this command line.

The function receives what was typed, as text by option name, and returns an ``Answer``::

    @command("hello", summary="Say hello.", options=(Option("name", "Whom to greet."),), example="name=Ada")
    def hello(given):
        return Answer({"greeting": given["name"]}, (f"Hello {given['name']}",))

It gets ``key=value`` and ``--key value``, ``--help``, ``--json``, ``--traceback`` and nearest-name suggestions.
"""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from libreyolo_core.cli.options import SWITCH, VALUE, Option, asks, options_of, read
from libreyolo_core.cli.output import Answer, plain, print_json, setup_logging, stdout_goes_to_stderr
from libreyolo_core.errors import UsageError

Run = Callable[[dict[str, Any]], Answer]
SECTIONS = ("Argument", "Required", "Recipe", "Augmentation", "Options", "General")
"""Headings of a help page, in order."""
GENERAL = (
    Option("json", "Print one JSON document and nothing else on standard output.", SWITCH, section="General"),
    Option("traceback", "Show where in the code an error arose.", SWITCH, section="General"),
    Option("help", "Show this page.", SWITCH, section="General"),
)


@dataclass(frozen=True)
class Positional:
    """A plain word that a command takes; ``name=value`` means the same."""

    name: str
    help: str
    required: bool = True


class Command(click.Command):
    """A click command whose options are ``Option`` descriptions. Made by ``command``."""

    def __init__(
        self,
        name: str,
        run: Run,
        *,
        summary: str,
        options: tuple[Option, ...],
        positional: Positional | tuple[Positional, ...] | None,
        arguments: type | None,
        example: str | Callable[[], str],
        notes: str,
    ) -> None:
        described = {o.name: o for o in (*options, *GENERAL)}
        words = positional if isinstance(positional, tuple) else (positional,) if positional else ()
        plain_words = {w.name: Option(w.name, w.help, required=w.required, section="Argument") for w in words}
        described = {**plain_words, **described}
        super().__init__(
            name,
            callback=run,
            params=[_click_option(o) for o in described.values() if o.name != "help"],
            help=summary,
            short_help=summary,
            add_help_option=False,
        )
        self.described, self.positional, self.arguments = described, words, arguments
        self._example, self.notes = example, notes

    @property
    def example(self) -> str:
        """What to type after the command's name."""
        return self._example() if callable(self._example) else self._example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read both notations; ``--help`` is answered here, whatever else is wrong."""
        verb = ctx.command_path
        if "-h" in args or asks(args, "help"):
            print_json(self.to_dict(verb)) if asks(args, "json") else click.echo(self.get_help(ctx))
            ctx.exit()
        given, words = read(args, self.described, verb=verb)
        for word in self.positional:
            if words and word.name not in given:
                given[word.name] = words.pop(0)
        if words:
            raise self._stray(words[0], verb)
        for option in self.described.values():
            if option.required and option.section == "Argument" and option.name not in given:
                raise UsageError(
                    f"{option.name.upper()} is missing", where=verb, mend=f"For example: {verb} {self.example}"
                )
        ctx.obj = given
        return super().parse_args(ctx, [])

    def invoke(self, ctx: click.Context) -> int:
        """Run and print; returns the exit code."""
        given = dict(ctx.obj)
        as_json = is_on(given.pop("json", "false"), "json")
        for name in ("traceback", "help"):
            is_on(given.pop(name, "false"), name)
        setup_logging()
        assert self.callback is not None
        with stdout_goes_to_stderr() if as_json else contextlib.nullcontext():
            answer: Answer = self.callback(given)
            answer = replace(answer, document=plain(answer.document)) if as_json else answer
        answer.show(as_json=as_json)
        return answer.exit_code

    def _stray(self, word: str, verb: str) -> UsageError:
        if self.positional:
            return UsageError(f"{word!r} is one word too many", where=verb, mend=f"See {verb} --help.")
        key = next((o.name for o in self.described.values() if o.required and o.name != "model"), "name")
        return UsageError(f"{word!r} belongs to no option", where=verb, mend=f"Write {key}={word}, if that is meant.")

    def get_help(self, ctx: click.Context) -> str:
        """The whole help page."""
        verb = ctx.command_path
        parts = [f"Usage: {self._usage(verb)}", self.help or ""]
        if len(self.described) > len(GENERAL) + len(self.positional):
            switches = any(o.takes != VALUE and o.section != "General" for o in self.described.values())
            also = " A switch is on with --key or key=true,\nand off with --no-key or key=false." if switches else ""
            parts.append(f"Options are written key=value or --key value; both mean the same.{also}")
        parts += [self.notes, f"Example:\n  {verb} {self.example}".rstrip()]
        place = {section: i for i, section in enumerate(SECTIONS)}
        sections = dict.fromkeys(o.section for o in self.described.values())
        for section in sorted(sections, key=lambda s: place.get(s, place["Options"])):
            listed = [o for o in self.described.values() if o.section == section]
            parts.append(f"{section}:\n" + "\n".join(_help_lines(o) for o in listed))
        return "\n\n".join(p for p in parts if p)

    def _usage(self, verb: str) -> str:
        required = [f"{o.name}={o.name.upper()}" for o in self.described.values() if o.section == "Required"]
        words = [w.name.upper() if w.required else f"[{w.name.upper()}]" for w in self.positional]
        return " ".join((verb, *words, *required, "[key=value | --key value]..."))

    def to_dict(self, verb: str) -> dict[str, Any]:
        """The help page as data: the answer to ``--help --json``."""
        return {
            "command": self.name,
            "help": self.help,
            "usage": self._usage(verb),
            "example": f"{verb} {self.example}".rstrip(),
            "options": [asdict(o) for o in self.described.values()],
        }


def command(
    name: str,
    *,
    summary: str,
    arguments: type | None = None,
    options: tuple[Option, ...] = (),
    positional: Positional | tuple[Positional, ...] | None = None,
    example: str | Callable[[], str] = "",
    notes: str = "",
) -> Callable[[Run], Command]:
    """Turn ``run(given) -> Answer`` into a command.

    Args:
        summary: one line for the help.
        arguments: an argument dataclass of ``libreyolo_core.config`` whose fields become options.
        options: further options, listed first.
        positional: the plain word the command takes, or several in their order.
        example: what to type after the command's name, or a function that says it.
        notes: a paragraph for the help page.
    """
    described = (*options, *(options_of(arguments) if arguments else ()))
    return lambda run: Command(
        name,
        run,
        summary=summary,
        options=described,
        positional=positional,
        arguments=arguments,
        example=example,
        notes=notes,
    )


def is_on(text: str, name: str) -> bool:
    """The meaning of a switch's text; raises ``UsageError`` when it has none."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise UsageError(f"{name}={text!r} is not true or false", where=name, mend=f"Write --{name} or {name}=true.")


def _click_option(option: Option) -> click.Option:
    """What tools that look at click commands (shell completion, documentation) see of an option."""
    dashed = f"--{option.name.replace('_', '-')}"
    if option.takes == VALUE:
        return click.Option([dashed], help=option.help, multiple=option.repeatable)
    return click.Option([dashed], help=option.help, is_flag=True)


def _help_lines(option: Option) -> str:
    shown = f"{option.name}={_placeholder(option)}"
    if option.section == "General":
        shown = f"--{option.name}"
    elif option.section == "Argument":
        shown = option.name.upper()
    elif option.takes == SWITCH:
        shown = f"--[no-]{option.name}"
    facts = f"[{option.facts()}]" if option.facts() and option.section != "General" else ""
    column, width = 26, min(shutil.get_terminal_size().columns, 100)
    text = textwrap.wrap(f"{option.help} {facts}".strip(), width - column, break_on_hyphens=False)
    lead = f"  {shown}"
    head = [f"{lead:<{column}}{text[0]}"] if len(lead) < column - 1 else [lead, " " * column + text[0]]
    return "\n".join([*head, *(" " * column + t for t in text[1:])])


def _placeholder(option: Option) -> str:
    if option.example:
        return option.example
    return {"whole number": "N", "number": "X", "two numbers such as 0.5,1.5": "LOW,HIGH"}.get(option.type, "...")
