"""Writing a new family's package from the templates in ``family/``: whole files with ``{{names}}`` to fill in.

To change what strangers start from, edit a template; to add a file, add it and name it in ``FILES``. Torch-free.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from libreyolo_core import __version__, hub
from libreyolo_core.errors import ConfigError
from libreyolo_core.registry import Registry

LONGEST = 30
"""Characters in a name; the generated lines that hold it stay within the usual 120 then."""
FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "LICENSE": "LICENSE.tmpl",
    "NOTICE": "NOTICE.tmpl",
    ".gitignore": "gitignore.tmpl",
    "src/{{module}}/__init__.py": "__init__.py.tmpl",
    "src/{{module}}/plugin.py": "plugin.py.tmpl",
    "src/{{module}}/network.py": "network.py.tmpl",
    "src/{{module}}/loss.py": "loss.py.tmpl",
    "tests/test_contract.py": "test_contract.py.tmpl",
    "tests/test_loss.py": "test_loss.py.tmpl",
}
"""Path inside the package, and the template it comes from."""
SIZES = ("n", "s")
"""Sizes of the generated family, as in the template of its sheet."""


@dataclass(frozen=True)
class Names:
    """Every name that follows from a family's name.

    Args:
        key: the family's key, ``river_scout``.
    """

    key: str

    @property
    def distribution(self) -> str:
        """What is installed: ``libreyolo-family-river-scout``."""
        return f"libreyolo-family-{self.key.replace('_', '-')}"

    @property
    def module(self) -> str:
        """What is imported: ``libreyolo_family_river_scout``."""
        return f"libreyolo_family_{self.key}"

    @property
    def weights(self) -> str:
        """The beginning of its weight files' names: ``RiverScout``."""
        return "".join(part.capitalize() for part in self.key.split("_"))

    @property
    def title(self) -> str:
        """For people: ``River Scout``."""
        return " ".join(part.capitalize() for part in self.key.split("_"))


def names_of(name: str) -> Names:
    """The names for a new family called ``name``: lower-case words of letters and digits, joined by ``-`` or ``_``.

    Raises:
        ConfigError: not such a name, too long, or one that an installed family, package or model already has.
    """
    from libreyolo_core.registry import registry

    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:LONGEST].strip("-")
        raise ConfigError(
            f"{name!r} is no name for a family",
            where="new-family NAME",
            mend="Use lower-case letters and digits, words joined by - or _, a letter first"
            + (f": {better}." if better else "."),
        )
    if len(name) > LONGEST:
        raise ConfigError(
            f"{name!r} has {len(name)} characters",
            where="new-family NAME",
            mend=f"Use at most {LONGEST}; title= may be longer.",
        )
    names = Names(name.replace("-", "_"))
    holder = _holder(names, registry())
    if holder:
        raise ConfigError(
            f"{name!r} is taken by {holder}",
            where="new-family NAME",
            mend=f"Choose another name, for example my-{name[: LONGEST - 3]}.",
        )
    return names


def _holder(names: Names, found: Registry) -> str:
    """Who has one of the names already, in words; "" when nobody has."""
    for plugin in found.plugins:
        if names.key in plugin.entries.get("families", ()):
            return f"the family {names.key!r} of {plugin.distribution}"
        if re.sub(r"[-_.]+", "-", plugin.distribution.lower()) == names.distribution:
            return f"the installed package {plugin.distribution}"
    families = found.families()
    for model in (names.key, *(f"{names.key}{size}" for size in SIZES)):
        released = hub.find(model, families)
        if released is not None:
            return f"the model {released.family}-{released.size}, which {model!r} means too"
    return ""


def write_family(name: str, *, folder: str | Path = ".", title: str = "", author: str = "") -> Path:
    """Write the package of a new family: it installs, trains and passes ``check_family`` as it is.

    Args:
        name: as in ``names_of``.
        folder: where the package's folder is made, with parents where they are missing.
        title: the family's name for people; default: ``name`` in capitals.
        author: who holds the copyright; default: "the NAME authors".

    Returns:
        The new folder, ``folder/libreyolo-family-NAME``. It appears complete or not at all.

    Raises:
        ConfigError: a wrong or taken name, a title or author that cannot stand in a file, a folder that exists.
    """
    names = names_of(name)
    values = {
        "key": names.key,
        "distribution": names.distribution,
        "module": names.module,
        "weights": names.weights,
        "title": _one_line(title or names.title, "title"),
        "author": _one_line(author or f"the {names.distribution} authors", "author"),
        "year": str(datetime.date.today().year),
        "core": __version__,
    }
    target = Path(folder).expanduser() / names.distribution
    if target.exists() or target.is_symlink():
        raise ConfigError(
            f"{target} exists already", where="new-family path", mend="Remove it, or give another folder: path=DIR."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{names.distribution}-") as aside:
            made = Path(aside) / names.distribution
            for path, template in FILES.items():
                file = made / _fill(path, values)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_fill(_template(template), values), encoding="utf-8")
            made.rename(target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error.strerror or error}",
            where="new-family path",
            mend="Give a folder that can be written to: path=DIR.",
        ) from error
    return target


def _template(name: str) -> str:
    return (files(__package__) / "family" / name).read_text(encoding="utf-8")


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


def _one_line(text: str, what: str) -> str:
    """``text``, which will stand between double quotes in Python and TOML."""
    if not text.isprintable() or '"' in text or "\\" in text or "{{" in text or not text.strip():
        raise ConfigError(
            f"{what}={text!r} cannot stand in a file",
            where=f"new-family {what}",
            mend="Use one line without double quotes, backslashes and double braces.",
        )
    return text.strip()
