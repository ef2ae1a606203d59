"""A package from outside, installed as a wheel, adds a task, a family, a command, and a loss for another family."""

import json
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "packages" / "orchard-vision"
SMALL = ("epochs=1", "workers=0", "device=cpu", "pretrained=false", "amp=false", "plots=false", "--json")


@pytest.fixture(scope="module")
def orchard(environment, wheel_store):
    """The environment with the stranger's package."""
    environment.install(*wheel_store.of(PACKAGE))
    return environment


@pytest.fixture
def class_folders(tmp_path):
    """A classification set of two colours, five pictures each to train and to validate."""
    import numpy as np
    from PIL import Image

    for split in ("train", "val"):
        for label, name in enumerate(("red", "green")):
            folder = tmp_path / "colours" / split / name
            folder.mkdir(parents=True)
            for i in range(5):
                image = np.full((32, 32, 3), 20 * i, np.uint8)
                image[..., label] = 230
                Image.fromarray(image).save(folder / f"{i}.png")
    return tmp_path / "colours"


def answer(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_it_brings_is_listed(orchard, tmp_path):
    found = answer(orchard.libreyolo("plugins", "--json", folder=tmp_path))
    (row,) = (p for p in found["plugins"] if p["distribution"] == "orchard-vision")
    assert (row["version"], row["error"]) == ("0.3.0", "")
    assert row["entries"] == {
        "families": ["tally"],
        "losses": ["resnet/classify/focal"],
        "tasks": ["count"],
        "commands": ["density"],
    }
    families = answer(orchard.libreyolo("families", "--json", folder=tmp_path))["families"]
    assert {f["key"]: list(f["tasks"]) for f in families} == {"resnet": ["classify"], "tally": ["count"]}
    assert "focal (of orchard-vision)" in orchard.libreyolo("families", "resnet", folder=tmp_path).stdout
    assert "density" in orchard.libreyolo("--help", folder=tmp_path).stdout


def test_its_command_runs_with_the_manners_of_the_others(orchard, tmp_path, boxes_set):
    counts = answer(orchard.libreyolo("density", f"data={boxes_set}", "--json", folder=tmp_path))["objects"]
    assert (len(counts["train"]), len(counts["val"])) == (10, 4)
    assert min(counts["train"]) >= 1
    refused = orchard.libreyolo("density", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: data= is missing (density).")


def test_its_loss_trains_a_family_of_somebody_else(orchard, tmp_path, class_folders):
    done = orchard.libreyolo(
        "train",
        "model=resnet-18",
        f"data={class_folders}",
        "loss=focal",
        "imgsz=32",
        "batch=10",
        *SMALL,
        folder=tmp_path,
    )
    folder = Path(tmp_path, answer(done)["save_dir"])
    header = (folder / "results.csv").read_text().splitlines()[0]
    assert "train/focal" in header and "train/ce" not in header


def test_its_task_trains_predicts_and_keeps_the_contract(orchard, tmp_path, boxes_set):
    done = orchard.libreyolo(
        "train", "model=tally-s", f"data={boxes_set}", "imgsz=64", "batch=5", *SMALL, folder=tmp_path
    )
    trained = answer(done)
    assert {"metrics/agreement", "metrics/MAE"} <= set(trained["metrics"])
    best = Path(tmp_path, trained["best"])
    photo = sorted((boxes_set.parent / "images" / "val").iterdir())[0]
    found = answer(orchard.libreyolo("predict", f"model={best}", f"source={photo}", "--json", folder=tmp_path))
    (result,) = found["results"]
    assert [row["name"] for row in result["counts"]] == ["red", "green"]
    checks = ("registration", "empty", "classes")
    checked = orchard.libreyolo("check-family", "tally", *(f"only={c}" for c in checks), "--json", folder=tmp_path)
    assert {row["status"] for row in answer(checked)["checks"]} == {"passed"}
