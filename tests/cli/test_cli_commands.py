"""Each command is a thin translation: what it hands to the model, and what it prints."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from libreyolo_core.family import Size
from libreyolo_core.hookspecs import LossEntry, NamedEntry, hookimpl
from libreyolo_core.registry import Plugin


def test_train_hands_what_was_typed_to_the_model_as_text(run, model):
    out = run("train", "model=toy-a", "data=my.yaml", "--epochs", "3", "--no-amp", "device=0,1")
    assert out.exit_code == 0, out.stderr
    assert model.made == [("toy-a", {"pretrained": True, "task": None})]
    assert model.asked == [("train", {"data": "my.yaml", "epochs": "3", "amp": "false", "device": "0,1"})]
    assert "metrics/mAP50            0.2500" in out.stdout
    assert str(model.folder / "weights" / "best.pt") in out.stdout


def test_both_notations_train_the_same(run, model):
    run("train", "model=toy-a", "data=my.yaml", "lr0=0.1", "plots=false")
    run("train", "--model", "toy-a", "--data", "my.yaml", "--lr0", "0.1", "--no-plots")
    assert model.made[0] == model.made[1]
    assert model.asked[0] == model.asked[1]


def test_train_without_pretrained_starts_the_model_without_weights(run, model):
    run("train", "model=toy-a", "data=my.yaml", "--no-pretrained")
    assert model.made == [("toy-a", {"pretrained": False, "task": None})]


def test_a_cfg_file_may_hold_the_data_set_and_whether_to_start_from_weights(run, model, tmp_path):
    cfg = tmp_path / "cfg.yaml"
    cfg.write_text("data: my.yaml\npretrained: false\n")
    out = run("train", "model=toy-a", f"cfg={cfg}")
    assert out.exit_code == 0, out.stderr
    assert model.made[0][1]["pretrained"] is False
    assert model.asked == [("train", {"cfg": str(cfg)})]


def test_dry_run_shows_every_argument_with_value_and_origin_and_trains_nothing(run, model):
    out = run("train", "model=toy-a", "data=my.yaml", "lr0=0.5", "--dry-run")
    assert out.exit_code == 0, out.stderr
    assert [verb for verb, _ in model.asked] == ["plan"]
    rows = {
        line.split()[0]: line.split()[1:] for line in out.stdout.splitlines() if line.startswith(("lr0", "ep", "se"))
    }
    assert rows == {"lr0": ["0.5", "user"], "epochs": ["7", "family"], "seed": ["0", "core"]}


def test_resume_needs_neither_model_nor_data(run, model, tmp_path):
    last = tmp_path / "exp" / "weights" / "last.pt"
    last.parent.mkdir(parents=True)
    last.touch()
    cfg = tmp_path / "cfg.yaml"
    cfg.write_text(f"resume: true\nproject: {tmp_path}\n")
    project, run_folder = f"project={tmp_path}", f"resume={tmp_path / 'exp'}"
    for arguments in (["resume=true", project], [run_folder], [f"resume={last}"], [f"cfg={cfg}"]):
        out = run("train", *arguments)
        assert out.exit_code == 0, out.stderr
        assert model.made[-1][0] == str(last)
        assert model.asked[-1][1]["resume"] == str(last)


def test_resume_without_any_run_says_where_it_looked(run, model, tmp_path):
    out = run("train", "resume=true", f"project={tmp_path}")
    assert (out.exit_code, model.made) == (1, [])
    assert f"finds no run under {tmp_path}" in out.stderr


def test_val_prints_figures_and_classes(run, model):
    out = run("val", "model=best.pt", "data=my.yaml", "split=test")
    assert out.exit_code == 0, out.stderr
    assert model.asked == [("val", {"data": "my.yaml", "split": "test"})]
    assert "metrics/mAP50            0.5000" in out.stdout
    assert "tree   7       0.5000  -" in out.stdout


def test_predict_streams_and_says_where_the_files_are(run, model):
    out = run("predict", "model=best.pt", "source=photos", "conf=0.3", "--save")
    assert out.exit_code == 0, out.stderr
    assert model.asked == [("predict", {"source": "photos", "conf": "0.3", "save": "true", "stream": True})]
    assert "2 images" in out.stdout
    assert f"files in {model.folder}" in out.stdout


def test_predict_that_writes_nothing_says_so(run, model):
    assert "nothing was written: add --save" in run("predict", "model=best.pt", "source=a.jpg").stdout


def test_export_prints_the_file(run, model):
    out = run("export", "model=best.pt", "--dynamic", "opset=18")
    assert model.asked == [("export", {"dynamic": "true", "opset": "18"})]
    assert str(model.folder / "toy.onnx") in out.stdout


def fake_module(monkeypatch, name, **content):
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("arguments", "usable", "harmless", "code"),
    [
        ([], True, False, 0),
        ([], False, False, 1),
        (["--strict"], True, True, 0),
        (["--strict"], True, False, 1),
    ],
)
def test_check_fails_for_data_that_cannot_be_used_and_when_strict_for_what_is_lost(
    run, monkeypatch, arguments, usable, harmless, code
):
    asked = []

    def check(data, task, progress=None):
        asked.append((data, task))
        faults = {"clipped": {"count": 1, "harmless": harmless}}
        return {"data": data, "report": "the report", "usable": usable, "splits": {"train": {"faults": faults}}}

    fake_module(monkeypatch, "libreyolo_core.data.scan", check=check)
    out = run("check", "my.yaml", "task=classify", *arguments)
    assert (out.exit_code, asked) == (code, [("my.yaml", "classify")])
    assert out.stdout == f"the report\nmy.yaml: {'usable' if usable else 'cannot be used'}\n"


def test_families_lists_what_a_sheet_says(run):
    out = run("families")
    row = next(line for line in out.stdout.splitlines() if line.startswith("toy"))
    assert row.split("  ")[0] == "toy"
    for fact in ("Toy", "detect", "a b", "1.2M to 34M", "network", "no", "yes", "libreyolo-family-toy 2.5"):
        assert fact in row


def test_families_shows_one_sheet(run):
    out = run("families", "toy")
    for fact in (
        "a *",
        "96",
        "34M",
        "LibreToy{size}.pt, licence MIT",
        "7, batch 4",
        "no: it says so",
        "mosaic, flip",
    ):
        assert fact in out.stdout


class LossPlugin:
    """A loss for a family that is not its own."""

    @hookimpl
    def libreyolo_losses(self):
        return [LossEntry("toy", "detect", "sharp", "nowhere:Sharp")]


def test_a_sheet_without_added_losses_has_the_default_alone(run):
    assert run("families", "toy").stdout.splitlines()[-1].split() == ["loss", "default"]


def test_a_sheet_names_the_losses_that_other_packages_added(run, plugins):
    plugins.append((Plugin("sharp", "stranger-losses", "1"), LossPlugin()))
    assert "default, sharp (of stranger-losses)" in run("families", "toy").stdout


def test_a_sheet_says_that_nothing_was_released_and_what_exists_in_training_only(run, plugins):
    (toy,) = plugins[1][1].libreyolo_families()
    task = replace(toy.tasks["detect"], training={"auxiliary": True}, classes=1, sizes={"a": Size(64, params=15_962)})
    family = replace(toy, weights=replace(toy.weights, organisation=""), tasks={"detect": task})
    plugins[1] = (plugins[1][0], type("Unreleased", (), {"libreyolo_families": hookimpl(lambda self: [family])})())
    text = run("families", "toy").stdout
    for fact in ("weights   none released", "1 class unless", "auxiliary=True", "16k"):
        assert fact in text


def test_without_families_the_list_says_how_to_get_one(run, plugins):
    del plugins[1]
    assert "pip install libreyolo-family-" in run("families").stdout


def test_an_unknown_family_names_the_nearest_and_the_package(run):
    out = run("families", "toi")
    assert out.exit_code == 2
    assert "Did you mean 'toy'?" in out.stderr
    assert "pip install libreyolo-family-toi" in out.stderr


def test_plugins_shows_what_came_from_where_and_what_failed(run, plugins):
    plugins.append((Plugin("ill", "libreyolo-ill", "1", error="ImportError: no module named x"), object()))
    out = run("plugins")
    assert out.exit_code == 0
    assert "libreyolo-family-toy  2.5" in out.stdout
    assert "families: toy" in out.stdout
    assert "FAILED: ImportError: no module named x" in out.stdout


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_check_family_exits_0_only_when_all_that_ran_passed(run, monkeypatch, ok, code):
    asked = []

    def check_family(key, **options):
        asked.append((key, options))
        return SimpleNamespace(ok=ok, rows=[{"check": "split", "status": "passed", "detail": "fine"}])

    fake_module(monkeypatch, "libreyolo_core.testing", check_family=check_family)
    out = run("check-family", "toy", "--only", "split", "only=parity", "reference=r.json")
    assert out.exit_code == code
    assert asked == [("toy", {"only": ["split", "parity"], "reference": "r.json"})]
    assert "split  passed  fine" in out.stdout


class DemoPlugin:
    """A data set with demo settings."""

    @hookimpl
    def libreyolo_datasets(self):
        return [NamedEntry("treecrowns", "toy_photos:photos", "photos")]


@pytest.fixture
def demo_data(monkeypatch, plugins):
    settings = {"model": "toy-a", "settings": {"epochs": 30, "lr0": 0.01}, "use": {"imgsz": 96}}
    fake_module(monkeypatch, "toy_photos", DEMO=settings, photos=lambda: "photos.yaml")
    plugins.append((Plugin("photos", "libreyolo-data-treecrowns", "1"), DemoPlugin()))
    monkeypatch.setattr("libreyolo_core.cli.commands.demo.validation_photos", lambda model: ["a.jpg", "b.jpg"])


def test_demo_trains_validates_and_predicts_with_the_settings_of_the_data_set(run, model, demo_data, tmp_path):
    out_folder = tmp_path / "runs" / "demo"
    out = run("demo", "epochs=2", f"out={out_folder}")
    assert out.exit_code == 0, out.stderr
    assert [name for name, _ in model.made] == ["toy-a", str(tmp_path / "weights" / "best.pt")]
    (_, trained), (_, measured), (_, predicted) = model.asked
    common = {"data": "treecrowns", "project": str(out_folder)}
    assert trained == {**common, "epochs": "2", "lr0": 0.01, "name": "train"}
    assert measured == {**common, "imgsz": 96, "name": "val"}
    files = {"save": True, "project": str(out_folder), "name": "predict"}
    assert predicted == {"source": ["a.jpg", "b.jpg"], "conf": None, "imgsz": 96, **files}


def test_demo_with_another_model_uses_that_familys_recipe_and_says_so(run, model, demo_data, tmp_path):
    out = run("demo", "model=toy-b", f"out={tmp_path / 'demo'}")
    assert "lr0" not in model.asked[0][1]
    assert "the demo's settings are for toy-a" in out.stderr


def test_demo_never_writes_into_a_folder_that_exists(run, model, demo_data, tmp_path):
    (tmp_path / "demo").mkdir()
    run("demo", f"out={tmp_path / 'demo'}")
    assert model.asked[0][1]["project"] == str(tmp_path / "demo2")


def test_demo_without_its_data_set_says_what_to_install(run, model):
    out = run("demo")
    assert (out.exit_code, model.made) == (1, [])
    assert "pip install libreyolo-data-treecrowns" in out.stderr


def test_env_names_versions_and_folders(run, tmp_path):
    facts = json.loads(run("env", "--json").stdout)
    assert {"python", "torch", "torchvision", "numpy", "opencv", "cores", "memory", "cuda devices"} <= set(facts)
    assert facts["cache"] == str(tmp_path / "cache")
