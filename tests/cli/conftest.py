"""A command line with a registry of its own and a model that trains nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from libreyolo_core import builtin
from libreyolo_core.augment import Flip, Mosaic
from libreyolo_core.config import resolve_training
from libreyolo_core.family import Capture, Family, Loss, Precision, Ranks, Recipe, Size, Task, Weights
from libreyolo_core.hookspecs import NamedEntry, hookimpl
from libreyolo_core.registry import Plugin, Registry

SHEET = Task(
    sizes={"a": Size(64, params=1_200_000), "b": Size(96, params=34_000_000)},
    loss=Loss("nowhere:Nothing"),
    recipe=Recipe(epochs=7, batch=4),
    augment=(Mosaic(p=0.5), Flip()),
    capture=Capture("network"),
    precision=Precision(amp=False, why="it says so"),
    ranks=Ranks(sync_bn=True),
)
TOY = Family("toy", "Toy", "nowhere:Toy", {"detect": SHEET}, Weights("LibreToy{size}.pt", "MIT"), default_size="a")


class ToyPlugin:
    """One family, nothing else."""

    @hookimpl
    def libreyolo_families(self):
        return [TOY]


class CommandPlugin:
    """Commands of a stranger, in a module made for the test."""

    @hookimpl
    def libreyolo_commands(self):
        return [
            NamedEntry("plain", "toy_commands:plain", "A click command as anyone writes it."),
            NamedEntry("answer", "toy_commands:answer", "A command made with ours."),
            NamedEntry("broken", "toy_commands:broken", "No click command at all."),
            NamedEntry("missing", "toy_commands:missing", "Code that is not there."),
        ]


@dataclass
class Outcome:
    """What one call of the command line left."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def plugins():
    """The plugins of the test's registry; append to it before the first call."""
    return [
        (Plugin("core", "libreyolo-core", "0.1.0"), builtin),
        (Plugin("toy", "libreyolo-family-toy", "2.5"), ToyPlugin()),
    ]


@pytest.fixture(autouse=True)
def registry_of_the_test(monkeypatch, plugins, tmp_path):
    """Commands see only the test's plugins and keep their cache in its folder."""
    made = []

    def registry():
        if not made:
            made.append(Registry(plugins))
        return made[0]

    monkeypatch.setattr("libreyolo_core.registry.registry", registry)
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run():
    """``run("train", "epochs=3")`` calls the command line in this process."""
    from libreyolo_core.cli.group import cli

    def call(*arguments: str) -> Outcome:
        result = CliRunner().invoke(cli, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return call


@dataclass
class ToyModel:
    """Stands for ``LibreYOLO``: notes what it is asked and answers at once."""

    folder: Path
    made: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    raises: BaseException | None = None

    def __call__(self, model, **options):
        print("a library prints")
        self.made.append((model, options))
        return self

    def note(self, verb, arguments):
        print("a library prints")
        self.asked.append((verb, arguments))
        if self.raises:
            raise self.raises

    def train(self, **arguments):
        self.note("train", arguments)
        best = self.folder / "weights" / "best.pt"
        plain = {"metrics": {"metrics/mAP50": 0.25, "metrics/mAP50-95": float("nan")}, "best": str(best)}
        return SimpleNamespace(metrics=plain["metrics"], best=best, save_dir=self.folder, to_dict=lambda: plain)

    def plan(self, **arguments):
        self.note("plan", arguments)
        return resolve_training(SHEET.for_size("a"), {k: v for k, v in arguments.items() if k != "cfg"})

    def val(self, **arguments):
        self.note("val", arguments)
        values = {"metrics/mAP50": 0.5}
        rows = [{"class": "tree", "images": 7, "AP50": 0.5, "AP50-95": None}]
        return SimpleNamespace(
            values=values,
            per_class=rows,
            speed={"inference": 1.25},
            save_dir=self.folder,
            to_dict=lambda: {"metrics": values, "per_class": rows, "save_dir": str(self.folder)},
        )

    def predict(self, source, **arguments):
        self.note("predict", {"source": source, **arguments})
        found = [{"path": name, "detections": []} for name in ("a.jpg", "b.jpg")]
        return [SimpleNamespace(save_dir=str(self.folder), to_dict=lambda plain=plain: plain) for plain in found]

    def export(self, **arguments):
        self.note("export", arguments)
        path = self.folder / "toy.onnx"
        path.write_bytes(b"1234")
        return path


@pytest.fixture
def model(monkeypatch, tmp_path):
    """The stand-in for ``LibreYOLO``."""
    toy = ToyModel(tmp_path)
    api = ModuleType("libreyolo_core.api")
    api.LibreYOLO = toy
    monkeypatch.setitem(sys.modules, "libreyolo_core.api", api)
    return toy
