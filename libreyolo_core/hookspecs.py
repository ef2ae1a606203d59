"""Every hook of LibreYOLO, on one page.

All hooks are *collecting*: each is called once, at discovery, without arguments, and returns a list of entries. The
registry merges the entries of all plugins by key. Nothing is decided by installation order: a key claimed twice is
an error that names both distributions, unless one entry says ``replaces="<distribution>"``.

A plugin is a module named by an entry point of the group ``libreyolo``::

    [project.entry-points.libreyolo]
    mine = "my_package.plugin"

and implements hooks with ``hookimpl``. Hook modules must not import torch, numpy or torchvision: they declare, and
name code by reference (``"my_package.network:Mine"``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pluggy

from libreyolo_core.family import Capture, Family, Precision, Ranks

PROJECT = "libreyolo"
HOOK_VERSION = 1
"""Raised when a hook changes incompatibly; a plugin module may state the one it was written for as ``HOOK_VERSION``."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class LossEntry:
    """A loss for (family, task), chosen by the training argument ``loss=NAME``; ``code`` refers to a loss class, and
    ``static`` means what it does in ``libreyolo_core.family.Loss``."""

    family: str
    task: str
    name: str
    code: str
    options: dict[str, Any] | None = None
    replaces: str = ""
    static: bool = False


@dataclass(frozen=True)
class CaptureEntry:
    """The capture region of (family, task)."""

    family: str
    task: str
    capture: Capture
    replaces: str = ""


@dataclass(frozen=True)
class PrecisionEntry:
    """The mixed-precision default of (family, task)."""

    family: str
    task: str
    precision: Precision
    replaces: str = ""


@dataclass(frozen=True)
class RanksEntry:
    """The multi-GPU defaults of (family, task)."""

    family: str
    task: str
    ranks: Ranks
    replaces: str = ""


@dataclass(frozen=True)
class NamedEntry:
    """Something found by name: a task, a command, a data set, a logger, an export format.

    Args:
        name: how users name it.
        code: reference to what it is (see each hook).
        help: one line for listings.
        replaces: the distribution whose entry of the same name this one supersedes, as in every entry.
    """

    name: str
    code: str
    help: str = ""
    replaces: str = ""


class Hooks:
    """The specifications. Return a list (or one entry, or ``None``)."""

    @hookspec
    def libreyolo_families(self) -> list[Family]:
        """Model families: complete data sheets. Most plugins implement this hook alone."""

    @hookspec
    def libreyolo_losses(self) -> list[LossEntry]:
        """Alternative losses for anyone's family; a family's own stands in its sheet, under the name ``default``."""

    @hookspec
    def libreyolo_capture_regions(self) -> list[CaptureEntry]:
        """Capture regions for anyone's family; a family's own stands in its sheet."""

    @hookspec
    def libreyolo_precision(self) -> list[PrecisionEntry]:
        """Mixed-precision defaults for anyone's family; a family's own stands in its sheet."""

    @hookspec
    def libreyolo_distributed(self) -> list[RanksEntry]:
        """Spawn support and ``sync_bn`` defaults for anyone's family; a family's own stands in its sheet."""

    @hookspec
    def libreyolo_tasks(self) -> list[NamedEntry]:
        """Tasks; ``code`` refers to a ``libreyolo_core.tasks.base.BaseTask`` subclass."""

    @hookspec
    def libreyolo_commands(self) -> list[NamedEntry]:
        """Command-line commands; ``code`` refers to a click command or group, ``help`` is the line in ``--help``."""

    @hookspec
    def libreyolo_datasets(self) -> list[NamedEntry]:
        """Named data sets; ``code`` refers to a function that returns the path of a data YAML and may download it."""

    @hookspec
    def libreyolo_loggers(self) -> list[NamedEntry]:
        """Experiment loggers; ``code`` refers to a ``libreyolo_core.engine.callbacks.Callback`` subclass."""

    @hookspec
    def libreyolo_exporters(self) -> list[NamedEntry]:
        """Export formats; ``code`` refers to a function ``export(model, path, options) -> Path``."""
