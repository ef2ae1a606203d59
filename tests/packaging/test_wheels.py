"""Wheels alone, in an environment that has never seen the checkout."""

import json
import zipfile
from pathlib import Path

import pytest

from environments import ROOT, Environment

PLUGINS = sorted((ROOT / "plugins").iterdir())


@pytest.fixture(scope="module")
def wheels(wheel_store):
    """Wheels of the core and every plugin, by import name."""
    return {w.name.split("-")[0]: w for w in wheel_store.of(ROOT, *PLUGINS)}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A new environment."""
    return Environment(tmp_path_factory.mktemp("fresh"))


def keys(environment, folder):
    done = environment.libreyolo("families", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return sorted(row["key"] for row in found["families"])


def test_one_family_trains_from_wheels_and_a_second_appears_when_installed(wheels, fresh, tmp_path, boxes_set):
    fresh.install(wheels["libreyolo_core"], wheels["libreyolo_kit_detr"], wheels["libreyolo_family_rtdetr"])
    assert keys(fresh, tmp_path) == ["rtdetr"]
    arguments = ["model=rtdetr-r18", f"data={boxes_set}", "epochs=1", "imgsz=64", "batch=5", "workers=0", "device=cpu"]
    done = fresh.libreyolo("train", *arguments, "pretrained=false", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert Path(tmp_path, answer["best"]).exists()
    fresh.install(wheels["libreyolo_kit_yolo"], wheels["libreyolo_family_yolox"])
    assert keys(fresh, tmp_path) == ["rtdetr", "yolox"]


def test_the_wheel_of_the_data_set_carries_its_photos_labels_and_licence(wheels):
    names = zipfile.ZipFile(wheels["libreyolo_data_treecrowns"]).namelist()
    assert sum(n.endswith(".jpg") for n in names) == 47
    assert sum("/labels/" in n and n.endswith(".txt") for n in names) >= 40
    assert any(n.endswith("treecrowns/LICENSE") for n in names) and any(
        n.endswith("treecrowns/README.md") for n in names
    )


def test_the_wheel_of_the_core_carries_the_templates_of_a_family(wheels):
    from libreyolo_core.scaffold import FILES

    names = zipfile.ZipFile(wheels["libreyolo_core"]).namelist()
    assert {f"libreyolo_core/scaffold/family/{template}" for template in FILES.values()} <= set(names)


def test_the_wheel_of_the_core_carries_the_parts_of_the_timeline(wheels):
    from libreyolo_core.profiler.timeline import SCRIPTS

    names = set(zipfile.ZipFile(wheels["libreyolo_core"]).namelist())
    assert {f"libreyolo_core/profiler/page/{part}" for part in ("timeline.html", "timeline.css", *SCRIPTS)} <= names


def test_every_package_carries_a_licence_and_its_notice(wheels):
    for package, wheel in wheels.items():
        names = [n.rsplit("/", 1)[-1] for n in zipfile.ZipFile(wheel).namelist()]
        assert "LICENSE" in names, package
        if "family" in package:
            assert "NOTICE" in names, package
