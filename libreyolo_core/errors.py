"""Every error a user can meet, with one shape: what is wrong, where, and the mend.

To add one, subclass the type whose exit code fits and raise it with those three parts::

    raise ConfigError("epochs=0 is below 1", where="train argument epochs", mend="Use epochs=1 or more.")
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LibreYOLOError(Exception):
    """The base of all errors that are the user's to mend; the command line prints it as one line.

    Args:
        problem: what is wrong, naming the value.
        where: the file, argument or place it was found in.
        mend: what to do about it, one sentence.
    """

    exit_code = 1

    def __init__(self, problem: str, *, where: str = "", mend: str = "") -> None:
        self.problem, self.where, self.mend = problem, where, mend
        text = problem.rstrip(".")
        if where:
            text += f" ({where})"
        super().__init__(f"{text}. {mend}".strip() if mend else f"{text}.")

    def __reduce__(self):  # exceptions cross process borders (loader workers, spawned ranks)
        return _rebuild, (type(self), self.problem, self.where, self.mend)


def _rebuild(kind: type[LibreYOLOError], problem: str, where: str, mend: str) -> LibreYOLOError:
    return kind(problem, where=where, mend=mend)


class UsageError(LibreYOLOError):
    """A call or command that cannot mean anything: unknown option, wrong type, missing argument."""

    exit_code = 2


class ConfigError(UsageError):
    """An argument with an unknown name, a wrong type or a value out of range."""


class UnknownNameError(UsageError):
    """A name (family, size, task, data set, command) that nothing provides."""


class DeviceError(UsageError):
    """A device that does not exist, or a form of ``device=`` that means nothing."""


class DataError(LibreYOLOError):
    """A data set that is missing, empty, hostile or, under ``strict=True``, has faults."""


class ImageError(DataError):
    """One image that cannot be read, or is too large to decode safely."""


class CheckpointError(LibreYOLOError):
    """A weight file that is missing, unsafe, damaged, or belongs to no known family."""


class PluginError(LibreYOLOError):
    """A plugin that failed to import, is too old, or claims a key another one holds."""


class TrainingError(LibreYOLOError):
    """A run that cannot go on: a loss that is not finite, overflow after overflow, a full disk."""


class ExportError(LibreYOLOError):
    """A model that cannot be written in the wanted format, or a missing export dependency."""


class ProfileError(LibreYOLOError):
    """A profile or trace that is missing, damaged, of another kind, or written by a later version."""


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """The known names most like ``name``, best first (none when nothing is alike)."""
    by_lower = {str(k).lower(): str(k) for k in known}
    hits = difflib.get_close_matches(str(name).lower(), by_lower, n=count, cutoff=0.5)
    return [by_lower[h] for h in hits]


def suggestion(name: str, known: Iterable[str], *, what: str = "names") -> str:
    """``Did you mean 'epochs'?`` when something is close, else the whole list of known names."""
    known = sorted(str(k) for k in known)
    close = nearest(name, known)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    return f"Known {what}: {', '.join(known) or 'none'}."
