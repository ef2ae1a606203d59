"""``libreyolo new-family``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import Positional, command
from libreyolo_core.cli.options import Option
from libreyolo_core.cli.output import Answer

OPTIONS = (
    Option("path", "Folder that the package's folder is made in.", default=".", example="plugins"),
    Option("title", "The family's name for people.", default="NAME in capitals", example="RiverScout"),
    Option("author", "Who holds the copyright.", default="the package's authors", example="Ada"),
)


@command(
    "new-family",
    summary="Write the package of a new family, ready to install.",
    options=OPTIONS,
    positional=Positional("name", "Lower-case letters and digits, words joined by - or _."),
    example="river-scout author=Ada",
    notes="The package trains and passes check-family as written; what you change from there is yours.\n"
    "Nothing that exists is overwritten.",
)
def new_family(given: dict[str, Any]) -> Answer:
    """Write the files and say how to go on."""
    from libreyolo_core.scaffold import names_of, write_family

    key = names_of(given["name"]).key
    options = {k: given[k] for k in ("title", "author") if k in given}
    folder = write_family(given["name"], folder=given.get("path", "."), **options)
    written = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    steps = [
        f"cd {folder}",
        'pip install -e ".[dev]"',
        f"libreyolo check-family {key}",
        f"libreyolo train model={key}-n data=my.yaml pretrained=false",
    ]
    document = {"family": key, "folder": folder, "files": written, "next": steps}
    return Answer(
        document, (f"wrote {folder}", *(f"  {name}" for name in written), "next:", *(f"  {s}" for s in steps))
    )
