"""What is installed: plugins are discovered once, their entries merged by key, conflicts and failures kept to report.

``registry()`` is the one instance. Nothing here imports torch: entries point to code by reference.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import pluggy

from libreyolo_core.errors import LibreYOLOError, PluginError, UnknownNameError, suggestion
from libreyolo_core.family import Family, Loss, Task, resolve
from libreyolo_core.hookspecs import HOOK_VERSION, PROJECT, Hooks, LossEntry, NamedEntry

GROUP = "libreyolo"
DISABLE = "LIBREYOLO_DISABLE_PLUGINS"
KINDS = {
    "families": "libreyolo_families",
    "losses": "libreyolo_losses",
    "capture": "libreyolo_capture_regions",
    "precision": "libreyolo_precision",
    "ranks": "libreyolo_distributed",
    "tasks": "libreyolo_tasks",
    "commands": "libreyolo_commands",
    "datasets": "libreyolo_datasets",
    "loggers": "libreyolo_loggers",
    "exporters": "libreyolo_exporters",
}


@dataclass
class Plugin:
    """One discovered plugin: where it comes from, what it brought, or why it is not there."""

    name: str
    distribution: str
    version: str
    entries: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Claim:
    """An entry and the distribution it came from."""

    entry: Any
    distribution: str


class Registry:
    """Entries of all plugins by kind and key. Make one with ``Registry.discover()``, or from modules in tests."""

    def __init__(self, plugins: Iterable[tuple[Plugin, ModuleType | object]]) -> None:
        self.plugins: list[Plugin] = []
        self._claims: dict[str, dict[Any, list[Claim]]] = {kind: {} for kind in KINDS}
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Hooks)
        for plugin, module in plugins:
            self.plugins.append(plugin)
            if not plugin.error:
                self._register(manager, plugin, module)
        self._conflicts = {
            (kind, key): winners
            for kind, by_key in self._claims.items()
            for key, claims in by_key.items()
            if len(winners := _standing(claims)) > 1
        }

    @classmethod
    def discover(cls) -> Registry:
        """Load the core's own plugin and every entry point of the group ``libreyolo``, in order of name."""
        disabled = {d.strip() for d in os.environ.get(DISABLE, "").split(",") if d.strip()}
        found: list[tuple[Plugin, ModuleType | object]] = [_load_builtin()]
        for point in sorted(set(entry_points(group=GROUP)), key=lambda p: (p.name, p.value)):
            dist = point.dist
            plugin = Plugin(point.name, dist.name if dist else "unknown", dist.version if dist else "")
            if plugin.name in disabled or plugin.distribution in disabled:
                plugin.error = f"turned off by {DISABLE}"
                found.append((plugin, object()))
            else:
                found.append((plugin, _load(point, plugin)))
        return cls(found)

    def _register(self, manager: pluggy.PluginManager, plugin: Plugin, module: object) -> None:
        """Call every hook of one plugin; a plugin whose hooks fail brings nothing."""
        try:
            written_for = getattr(module, "HOOK_VERSION", HOOK_VERSION)
            if written_for != HOOK_VERSION:
                late = "the plugin" if str(written_for) < str(HOOK_VERSION) else "libreyolo-core"
                raise PluginError(
                    f"it was written for hook version {written_for}, this core has {HOOK_VERSION}",
                    mend=f"Update {late}: pip install --upgrade.",
                )
            manager.register(module, name=plugin.name)
            manager.check_pending()
            new: dict[str, list[Any]] = {}
            for kind, hook in KINDS.items():
                others = [p for p in manager.get_plugins() if p is not module]
                answers = manager.subset_hook_caller(hook, others)()
                new[kind] = [e for answer in answers for e in _as_list(answer)]
            keyed = [(kind, _key(kind, entry), entry) for kind, entries in new.items() for entry in entries]
        except Exception as error:  # a stranger's code: whatever it raises must not take the others down
            if module in manager.get_plugins():
                manager.unregister(module)
            plugin.error = _one_line(error)
            return
        for kind, key, entry in keyed:
            self._claims[kind].setdefault(key, []).append(Claim(entry, plugin.distribution))
            label = key if isinstance(key, str) else "/".join(key)
            plugin.entries.setdefault(kind, []).append(label)

    def entries(self, kind: str) -> dict[Any, Claim]:
        """All undisputed entries of a kind by key, sorted by key."""
        by_key = self._claims[kind]
        return {k: _standing(by_key[k])[0] for k in sorted(by_key) if (kind, k) not in self._conflicts}

    def conflicts(self) -> list[str]:
        """One line for every key that two distributions claim."""
        return [_conflict_text(kind, key, claims) for (kind, key), claims in self._conflicts.items()]

    def get(self, kind: str, key: str, *, what: str, where: str = "") -> Claim:
        """One entry; ``PluginError`` when it is disputed, ``UnknownNameError`` with the nearest names when absent."""
        if (kind, key) in self._conflicts:
            raise PluginError(
                _conflict_text(kind, key, self._conflicts[(kind, key)]),
                where=where,
                mend=f"Uninstall one of them, or turn one off with {DISABLE}.",
            )
        found = self.entries(kind)
        if key not in found:
            raise UnknownNameError(
                f"Unknown {what} {key!r}", where=where, mend=suggestion(key, found, what=kind) + self._failed_hint(key)
            )
        return found[key]

    def _failed_hint(self, key: str) -> str:
        for plugin in self.plugins:
            if plugin.error and (plugin.name == key or key in plugin.distribution):
                return f" Its plugin {plugin.distribution} is installed but failed: {plugin.error}"
        return ""

    def families(self) -> dict[str, Family]:
        """All families by key, with the entries others registered for them applied."""
        return {key: self._overlaid(claim.entry) for key, claim in self.entries("families").items()}

    def family(self, key: str) -> Family:
        """One family; the error for an absent one names the package to install."""
        try:
            return self._overlaid(self.get("families", key, what="family").entry)
        except UnknownNameError as error:
            if "failed" in error.mend:
                raise
            raise UnknownNameError(
                error.problem,
                where="installed families",
                mend=f"{error.mend} If it is the name of a family, install it: pip install libreyolo-family-{key}",
            ) from None

    def _overlaid(self, family: Family) -> Family:
        tasks = {}
        for name, task in family.tasks.items():
            overrides = {
                part: getattr(self.entries(part)[(family.key, name)].entry, part)
                for part in ("capture", "precision", "ranks")
                if (family.key, name) in self.entries(part)
            }
            tasks[name] = replace(task, **overrides) if overrides else task
        return replace(family, tasks=tasks)

    def loss(self, family: str, task: str, sheet: Task, name: str) -> Loss:
        """The loss called ``name``; ``default`` is the family's own."""
        if name == "default":
            return sheet.loss
        options = {k[2]: c.entry for k, c in self.entries("losses").items() if k[:2] == (family, task)}
        if name not in options:
            raise UnknownNameError(
                f"Unknown loss {name!r}", where=f"{family} {task}", mend=suggestion(name, [*options, "default"])
            )
        entry: LossEntry = options[name]
        return Loss(entry.code, static=entry.static, **(entry.options or {}))

    def named(self, kind: str, name: str, *, what: str) -> Any:
        """The code behind a task, command, data set, logger or exporter, imported."""
        claim = self.get(kind, name, what=what)
        return resolve(claim.entry.code, declared_by=claim.distribution)

    def task(self, name: str) -> Any:
        """A task object by name."""
        return self.named("tasks", name, what="task")()

    def dataset(self, name: str) -> Callable[[], Any]:
        """The function behind a registered data set."""
        return self.named("datasets", name, what="data set")

    def help_of(self, kind: str) -> dict[str, str]:
        """Name and one-line help of every named entry of a kind."""
        return {str(k): c.entry.help for k, c in self.entries(kind).items() if isinstance(c.entry, NamedEntry)}


@cache
def registry() -> Registry:
    """The installed plugins, discovered at the first call; failures are reported once, on stderr."""
    found = Registry.discover()
    for plugin in found.plugins:
        if plugin.error and "turned off by" not in plugin.error:
            print(
                f"libreyolo: plugin {plugin.name} ({plugin.distribution}) is left out: {plugin.error}", file=sys.stderr
            )
    for line in found.conflicts():
        print(f"libreyolo: {line}", file=sys.stderr)
    return found


def _load_builtin() -> tuple[Plugin, ModuleType]:
    from libreyolo_core import __version__, builtin

    return Plugin("core", "libreyolo-core", __version__), builtin


def _load(point: EntryPoint, plugin: Plugin) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(point.value)
    except Exception as error:  # a stranger's module: reported by name and cause, the others go on
        plugin.error = _one_line(error)
        return object()


def _standing(claims: list[Claim]) -> list[Claim]:
    """The claims that no other claim says it replaces."""
    replaced = {c.entry.replaces for c in claims if c.entry.replaces}
    return [c for c in claims if c.distribution not in replaced]


def _key(kind: str, entry: Any) -> Any:
    if isinstance(entry, Family):
        return entry.key
    if isinstance(entry, NamedEntry):
        return entry.name
    if kind == "losses":
        return (entry.family, entry.task, entry.name)
    return (entry.family, entry.task)


def _as_list(answer: Any) -> list[Any]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def _conflict_text(kind: str, key: Any, claims: list[Claim]) -> str:
    label = key if isinstance(key, str) else "/".join(key)
    return f"{kind} key {label!r} is claimed by {' and '.join(c.distribution for c in claims)}"


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, LibreYOLOError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
