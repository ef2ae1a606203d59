"""Wheels alone, in an environment that has never seen the checkout."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("libreyolo", "__editable__")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels of the core and every plugin."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(ROOT), *map(str, sorted((ROOT / "plugins").iterdir()))]
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        *sources,
    ]
    subprocess.run(command, check=True, cwd=folder)
    return {w.name.split("-")[0]: w for w in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A new environment that has the third-party packages of this one, and nothing of ours.

    Links stand in for an installation: copying torch would take gigabytes.
    """
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home / "env", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "env" / "lib" / version / "site-packages"
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if not entry.name.startswith(OURS) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return home / "env" / "bin" / "python"


def install(python, *wheels):
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        *map(str, wheels),
    ]
    subprocess.run(command, check=True, env=clean())


def clean():
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def libreyolo(python, *arguments, folder):
    command = [str(Path(python).parent / "libreyolo"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=clean(), check=False)


def keys(python, folder):
    done = libreyolo(python, "families", "--json", folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return sorted(row["key"] for row in found["families"])


def test_one_family_trains_from_wheels_and_a_second_appears_when_installed(wheels, fresh, tmp_path, boxes_set):
    core = [wheels["libreyolo_core"], wheels["libreyolo_kit_detr"], wheels["libreyolo_family_rtdetr"]]
    install(fresh, *core)
    assert keys(fresh, tmp_path) == ["rtdetr"]
    arguments = ["model=rtdetr-r18", f"data={boxes_set}", "epochs=1", "imgsz=64", "batch=5", "workers=0", "device=cpu"]
    done = libreyolo(fresh, "train", *arguments, "pretrained=false", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert Path(tmp_path, answer["best"]).exists()
    install(fresh, wheels["libreyolo_kit_yolo"], wheels["libreyolo_family_yolox"])
    assert keys(fresh, tmp_path) == ["rtdetr", "yolox"]


def test_the_wheel_of_the_data_set_carries_its_photos_labels_and_licence(wheels):
    import zipfile

    names = zipfile.ZipFile(wheels["libreyolo_data_treecrowns"]).namelist()
    assert sum(n.endswith(".jpg") for n in names) == 47
    assert sum("/labels/" in n and n.endswith(".txt") for n in names) >= 40
    assert any(n.endswith("treecrowns/LICENSE") for n in names) and any(
        n.endswith("treecrowns/README.md") for n in names
    )


def test_every_package_carries_a_licence_and_its_notice(wheels):
    import zipfile

    for package, wheel in wheels.items():
        names = [n.rsplit("/", 1)[-1] for n in zipfile.ZipFile(wheel).namelist()]
        assert "LICENSE" in names, package
        if "family" in package:
            assert "NOTICE" in names, package
