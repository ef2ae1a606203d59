"""The photos and labels are complete wherever the package is, and the crops to classify are always the same."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import libreyolo_data_treecrowns as treecrowns
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.decode import read_image
from libreyolo_core.data.masks import read_mask
from libreyolo_core.data.scan import ImageRecord, check, scan_classify, scan_detect, scan_restore, scan_semantic
from libreyolo_core.registry import Plugin, Registry
from libreyolo_data_treecrowns import made, plugin, tiles

PACKAGE = Path(treecrowns.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("LIBREYOLO_CACHE", str(folder))
        yield folder


def test_every_data_set_is_registered_by_name():
    found = Registry([(Plugin("treecrowns", "libreyolo-data-treecrowns", "0"), plugin)])
    assert found.dataset("treecrowns") is treecrowns.path
    assert found.dataset("treecrowns-classify") is treecrowns.classify_path
    assert found.dataset("treecrowns-semantic") is treecrowns.semantic_path
    assert found.dataset("treecrowns-restore") is treecrowns.restore_path
    assert all(found.help_of("datasets").values())


def test_the_plugin_imports_neither_torch_nor_numpy():
    heavy = ("torch", "numpy", "cv2")
    code = f"import sys, libreyolo_data_treecrowns.plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_photos_are_47_with_918_boxes_and_no_fault():
    spec = load_data(treecrowns.path(), "detect")
    train, val = (scan_detect(spec, s, strict=True) for s in ("train", "val"))
    assert (train.counts, val.counts) == (
        {"images": 40, "boxes": 672, "backgrounds": 2},
        {"images": 7, "boxes": 246, "backgrounds": 0},
    )
    assert train.names == {0: "tree"} and max(len(r.boxes) for r in val.images) == 61
    assert all(max(r.size) <= 400 for r in train.images + val.images)


def test_licence_and_note_lie_beside_the_photos():
    assert "MIT License" in (treecrowns.path().parent / "LICENSE").read_text()
    assert "deepforest" in (treecrowns.path().parent / "README.md").read_text()


def digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.png")):
        total.update(file.relative_to(folder).as_posix().encode())
        total.update(read_image(file).tobytes())
    return total.hexdigest()


def test_crops_are_balanced_split_by_photo_and_always_the_same(cache_folder):
    folder = treecrowns.classify_path()
    assert folder.is_relative_to(cache_folder)
    found = check(folder, "classify")
    assert found["usable"] and found["names"] == {"0": "background", "1": "tree"}
    photos = {s: {p.stem.rsplit("_", 1)[0] for p in (folder / s).rglob("*.png")} for s in ("train", "val")}
    assert not photos["train"] & photos["val"]
    for split, least in (("train", 300), ("val", 80)):
        per_class = found["splits"][split]["per_class"]
        assert per_class["tree"] == per_class["background"] >= least
    first, stamp = digest(folder), folder.stat().st_mtime_ns
    assert treecrowns.classify_path() == folder and folder.stat().st_mtime_ns == stamp
    shutil.rmtree(folder)
    assert digest(treecrowns.classify_path()) == first
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # nothing unfinished lies beside it


def test_background_crops_touch_no_tree_and_tree_crops_show_one():
    folder = treecrowns.classify_path()
    spec = load_data(treecrowns.path(), "detect")
    photos = {Path(r.path).stem: r for s in ("train", "val") for r in scan_detect(spec, s).images}
    for record in scan_classify(load_data(folder, "classify"), "val").images[::3]:
        name = Path(record.path).stem.rsplit("_", 1)[0]
        crop, photo = read_image(record.path), read_image(photos[name].path)
        side = crop.shape[0]
        assert crop.shape == (side, side, 3) and 64 <= side <= 96
        x, y = place_of(crop, photo)
        boxes = photos[name].boxes
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        if "background" in record.path:
            overlap = (boxes[:, 0] < x + side) & (boxes[:, 2] > x) & (boxes[:, 1] < y + side) & (boxes[:, 3] > y)
            assert not overlap.any()
        else:
            assert ((centres >= [x, y]) & (centres <= [x + side, y + side])).all(axis=1).any()


@pytest.fixture
def few_photos(monkeypatch, tmp_path):
    """Two photos of each split, and a cache folder of their own."""
    monkeypatch.setenv("LIBREYOLO_CACHE", str(tmp_path))
    few = {split: records[:2] for split, records in made.photos_of(treecrowns.path().parent).items()}
    monkeypatch.setattr(tiles, "photos_of", lambda photos: few)
    return few


@pytest.mark.parametrize(
    ("make", "task"), [(treecrowns.semantic_path, "semantic"), (treecrowns.restore_path, "restore")]
)
def test_tiles_are_without_fault_and_always_the_same(few_photos, make, task):
    folder = make()
    found = check(folder, task)
    assert found["usable"] and not any(s["faults"] for s in found["splits"].values())
    assert all(s["counts"]["images"] >= 2 for s in found["splits"].values())
    for split, records in few_photos.items():
        photos = {Path(r.path).stem for r in records}
        tiles_of = [p for p in folder.rglob("*.png") if split in p.parts]
        assert {p.stem.rsplit("_", 2)[0] for p in tiles_of} == photos
    first, stamp = digest(folder), folder.stat().st_mtime_ns
    assert make() == folder and folder.stat().st_mtime_ns == stamp
    shutil.rmtree(folder)
    assert digest(make()) == first
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_masks_hold_the_ellipses_of_the_boxes(few_photos):
    found = scan_semantic(load_data(treecrowns.semantic_path(), "semantic"), "val")
    assert found.names == {0: "ground", 1: "crown"}
    masks = {Path(r.path).stem: read_mask(r.layers["mask"], r.size, found.reading) for r in found.images}
    seen = 0
    for record in few_photos["val"]:
        for x1, y1, x2, y2 in record.boxes:
            top, left = (int(v) // tiles.TILE_PX * tiles.TILE_PX for v in ((y1 + y2) / 2, (x1 + x2) / 2))
            mask = masks.get(f"{Path(record.path).stem}_{top:03d}_{left:03d}")
            if mask is not None:
                assert mask[int((y1 + y2) / 2) - top, int((x1 + x2) / 2) - left] == 1
                seen += 1
    assert seen > 30
    lone = ImageRecord("", (60, 80), np.array([[10, 20, 50, 40]], np.float32), np.zeros(1, np.int64))
    mask = tiles.crown_mask(lone)
    assert mask.sum() == pytest.approx(np.pi * 20 * 10, rel=0.02)  # pixels of the edge
    assert not mask[:20].any() and not mask[40:].any() and mask[30, 10:50].all() and not mask[20, 10]


def test_inputs_are_damaged_targets(few_photos):
    found = scan_restore(load_data(treecrowns.restore_path(), "restore"), "val")
    photos = {Path(r.path).stem: read_image(r.path) for r in few_photos["val"]}
    for record in found.images:
        damaged, clean = read_image(record.path), read_image(record.layers["clean"])
        stem, top, left = Path(record.path).stem.rsplit("_", 2)
        assert np.array_equal(clean, photos[stem][int(top) :, int(left) :][: clean.shape[0], : clean.shape[1]])
        error = ((damaged / 255.0 - clean / 255.0) ** 2).mean()
        assert 15 < -10 * np.log10(error) < 40  # dB


def place_of(crop: np.ndarray, photo: np.ndarray) -> tuple[int, int]:
    """Where a crop was cut (x, y)."""
    import cv2

    distance = cv2.matchTemplate(photo, crop, cv2.TM_SQDIFF)
    return cv2.minMaxLoc(distance)[2]


def test_a_wheel_holds_every_photo_label_and_licence(tmp_path):
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    project = Path(__file__).resolve().parents[1]
    if not (project / "pyproject.toml").is_file():
        pytest.skip("the tests run outside of the source tree")
    copy = tmp_path / "project"
    shutil.copytree(project, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    code = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=copy, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    data = PACKAGE / "treecrowns"
    wanted = {p.relative_to(PACKAGE.parent).as_posix() for p in data.rglob("*") if p.is_file()}
    assert len(wanted) == 2 * 47 + 3 and wanted <= inside
    assert any(name.endswith("entry_points.txt") for name in inside)
