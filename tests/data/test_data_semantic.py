"""Masks are found, judged and read by stated rules, and stay on their photo through fitting, crops and caches."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from libreyolo_core.augment import Affine, Flip, Hsv, Mosaic, Rotate90, ScaleCrop
from libreyolo_core.data import scan_jobs
from libreyolo_core.data.batch import SampleRequest
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.dataset import SemanticSet, collate_semantic
from libreyolo_core.data.labels import FAULTS
from libreyolo_core.data.loader import train_loader
from libreyolo_core.data.masks import MaskReading, mask_path, read_mask
from libreyolo_core.data.polygons import draw_polygons
from libreyolo_core.data.scan import check, scan_semantic
from libreyolo_core.errors import DataError
from libreyolo_core.family import Input

SIZE = (40, 64)
NAMES = ["road", "tree", "sky"]
RULE = Input(resample="pil-linear")


def blocks(height: int = 40, width: int = 64, values=(0, 1, 2, 255)) -> np.ndarray:
    """A quarter of the mask for each of four values."""
    mask = np.zeros((height, width), np.uint8)
    for i, value in enumerate(values):
        y, x = i // 2 * height // 2, i % 2 * width // 2
        mask[y : y + height // 2, x : x + width // 2] = value
    return mask


GOOD = (blocks(),)


@pytest.fixture
def mask_set(tmp_path, write_photo):
    """``make(train=[mask array, Image or None, ...])`` writes photos of 40 x 64, masks and a YAML; returns its path."""

    def make(train=GOOD, val=GOOD, names=NAMES, folder="set", masks="masks", **extra):
        root = tmp_path / folder
        for split, found in (("train", train), ("val", val)):
            (root / masks / split).mkdir(parents=True, exist_ok=True)
            for i, mask in enumerate(found):
                write_photo(root / "images" / split / f"{i:03d}.jpg", *SIZE, seed=i)
                if mask is not None:
                    image = Image.fromarray(mask) if isinstance(mask, np.ndarray) else mask
                    image.save(root / masks / split / f"{i:03d}.png")
        values = {"path": ".", "train": "images/train", "val": "images/val", "names": names, **extra}
        path = root / "data.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}, sort_keys=False))
        return path

    return make


@pytest.fixture
def polygon_set(detect_set):
    """As ``detect_set``: photos of 40 x 64, labels and a YAML with the classes cat and dog."""
    return detect_set


def scan(path, split="train", **options):
    return scan_semantic(load_data(path, "semantic"), split, **options)


def kinds(found) -> dict[str, int]:
    return {k: n for k, n in found.counts.items() if k in FAULTS}


def refused(path, *parts: str) -> str:
    with pytest.raises(DataError) as caught:
        load_data(path, "semantic")
    text = str(caught.value)
    assert "\n" not in text and all(p in text for p in parts), text
    return text


# where masks are and what their values mean


def test_a_yaml_needs_no_key_for_masks_beside_images(mask_set):
    spec = load_data(mask_set(), "semantic")
    found = scan_semantic(spec, "train")
    assert spec.names == dict(enumerate(NAMES)) and spec.splits["train"].kind == "masks"
    record = found.images[0]
    assert record.layers == {"mask": str(spec.path / "masks/train/000.png")} and record.size == SIZE
    quarter = 20 * 32
    assert found.per_class == {0: quarter, 1: quarter, 2: quarter} and record.pixels.tolist() == [quarter] * 3
    assert found.counts == {"images": 1, "labelled pixels": 3 * quarter, "ignored pixels": quarter}
    assert np.array_equal(read_mask(record.layers["mask"], record.size, found.reading), blocks())
    assert "train: 1 images, 1,920 labelled pixels, 640 ignored pixels" in found.report()


def test_masks_lie_where_the_documentation_says():
    root = Path("/d")
    for image, folder, wanted in (
        ("/d/images/train/a.b.jpg", "masks", "/d/masks/train/a.b.png"),
        ("/d/images/2024/images/a.jpg", "labels", "/d/images/2024/labels/a.png"),
        ("/d/x/images/train/a.jpg", "x/gt", "/d/x/gt/train/a.png"),
        ("/d/images/train/a.jpg", "/elsewhere/gt", "/elsewhere/gt/train/a.png"),
        ("/d/photos/train/a.jpg", "annotations", "/d/annotations/train/a.png"),
        ("/d/photos/train/a.jpg", "deep/er", "/d/deep/er/train/a.png"),
        ("/other/photos/a.jpg", "masks", "/other/masks/a.png"),
    ):
        assert mask_path(image, root, folder) == wanted


def test_masks_dir_names_another_folder(mask_set):
    path = mask_set(masks="annotations", masks_dir="annotations")
    assert scan(path).images[0].layers["mask"].endswith("/annotations/train/000.png")
    path.write_text(path.read_text().replace("masks_dir: annotations", f"masks_dir: {path.parent / 'annotations'}"))
    assert scan(path).images[0].layers["mask"].endswith("/annotations/train/000.png")


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "1"])
def test_masks_of_one_channel_are_read_in_every_mode(mask_set, mode):
    values = (0, 1, 1, 0) if mode == "1" else (0, 1, 2, 255)
    ids = blocks(values=values)
    if mode == "P":
        image = Image.fromarray(ids)
        image.putpalette([v for i in range(256) for v in (255 - i, i, 77)])  # colours that mean nothing
    elif mode == "I;16":
        image = Image.fromarray(ids.astype(np.uint16))
    else:
        image = Image.fromarray(ids * 255).convert("1") if mode == "1" else Image.fromarray(ids)
    assert image.mode == mode
    found = scan(mask_set(train=[image]))
    assert kinds(found) == {}
    assert np.array_equal(read_mask(found.images[0].layers["mask"], SIZE, found.reading), ids)


def test_values_are_mapped_to_classes_and_others_ignored(mask_set):
    image = Image.fromarray(blocks().astype(np.uint16) * 1000)  # 0, 1000, 2000, 255000 % 65536
    path = mask_set(train=[image], label_mapping={0: 2, "1000": 0, 2000: 255})
    found = scan(path)
    assert np.array_equal(
        read_mask(found.images[0].layers["mask"], SIZE, found.reading), blocks(values=(2, 0, 255, 255))
    )
    assert kinds(found) == {} and found.per_class == {0: 640, 1: 0, 2: 640}
    assert "classes that never occur: tree" in found.report()


COLOURS = np.array([[128, 64, 128], [0, 128, 0], [70, 130, 180], [1, 2, 3]], np.uint8)


@pytest.mark.parametrize(
    "palette",
    [
        {"road": [128, 64, 128], "tree": [0, 128, 0], "sky": [70, 130, 180], 255: [1, 2, 3]},
        {0: [128, 64, 128], "1": [0, 128, 0], 2: [70, 130, 180], 255: [1, 2, 3]},
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_a_palette_names_the_colour_of_every_class(mask_set, palette, mode):
    picture = COLOURS[blocks(values=(0, 1, 2, 3))]
    image = Image.fromarray(picture).convert(mode) if mode != "P" else Image.fromarray(picture).quantize(4)
    found = scan(mask_set(train=[image], palette=palette))
    assert kinds(found) == {} and np.array_equal(
        read_mask(found.images[0].layers["mask"], SIZE, found.reading), blocks()
    )


def test_a_palette_may_be_a_list_in_the_order_of_the_names(mask_set):
    image = Image.fromarray(COLOURS[blocks(values=(0, 1, 2, 3))])
    found = scan(mask_set(train=[image], palette=COLOURS[:3].tolist()))
    assert kinds(found) == {"mask value": 1} and "640 pixels of colours like (1, 2, 3)" in found.report()
    assert found.counts["ignored pixels"] == 640


def test_a_folder_needs_classes_txt(mask_set):
    path = mask_set()
    path.unlink()
    refused(path.parent, "No class", "classes.txt")
    (path.parent / "classes.txt").write_text("\n".join(NAMES))
    spec = load_data(path.parent, "semantic")
    assert spec.names == dict(enumerate(NAMES)) and set(spec.splits) == {"train", "val"}
    assert scan_semantic(spec, "train").counts["images"] == 1


@pytest.mark.parametrize(
    ("extra", "parts"),
    [
        ({"label_mapping": [1, 2]}, ["label_mapping is [1, 2]", "line"]),
        ({"label_mapping": {"a": 1}}, ["the value 'a'"]),
        ({"label_mapping": {-1: 1}}, ["the value -1"]),
        ({"label_mapping": {1: 3}}, ["gives 1 the class 3", "0 to 2"]),
        ({"label_mapping": {1: 1, "1": 2}}, ["has 1 twice"]),
        ({"palette": {"raod": [1, 2, 3]}}, ["'raod'", "Did you mean 'road'?"]),
        ({"palette": {"road": [1, 2]}}, ["[1, 2]", "[r, g, b]"]),
        ({"palette": {"road": [1, 2, 256]}}, ["256"]),
        ({"palette": {"road": [1, 2, 3], "tree": [1, 2, 3]}}, ["the colour [1, 2, 3] twice"]),
        ({"palette": [[1, 2, 3]]}, ["1 colours for 3 classes"]),
        ({"palette": {"road": [1, 2, 3]}, "label_mapping": {1: 1}}, ["both given"]),
        ({"masks_dir": 7}, ["masks_dir is 7"]),
        ({"mask_dir": "masks"}, ["'mask_dir'", "Did you mean 'masks_dir'?"]),
        ({"names": None}, ["names is missing"]),
        ({"names": [f"c{i}" for i in range(256)]}, ["256 classes", "255"]),
    ],
)
def test_mistakes_in_the_yaml_name_value_line_and_mend(mask_set, extra, parts):
    refused(mask_set(**extra), *parts)


def test_255_classes_are_the_most(mask_set):
    assert len(load_data(mask_set(names=[f"c{i}" for i in range(255)]), "semantic").names) == 255


def test_keys_of_a_task_mean_nothing_to_another_and_are_named(mask_set, caplog):
    with caplog.at_level(logging.WARNING, "libreyolo"):
        load_data(mask_set(masks_dir="masks"), "detect")
    assert "ignored: masks_dir" in caplog.text


def test_coco_json_is_refused_with_what_to_give_instead(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    refused(f"{tmp_path}/a.json,{tmp_path}/b.json", "COCO JSON", "masks")


# faults


def test_what_is_wrong_with_a_mask_is_counted_listed_and_left_out(mask_set):
    small = blocks(20, 32)
    strange = blocks(values=(0, 1, 7, 9))
    nothing = blocks(values=(255,) * 4)
    path = mask_set(train=[blocks(), None, blocks(), small, strange, nothing, Image.new("RGB", (64, 40))])
    damaged = path.parent / "masks/train/002.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    found = scan(path)
    assert kinds(found) == {
        "size mismatch": 1,
        "mask missing": 1,
        "mask unreadable": 2,
        "mask value": 1,
        "mask ignored": 1,
    }
    assert [Path(r.path).name for r in found.images] == ["000.jpg", "004.jpg"]
    report = found.report()
    for part in (
        "masks/train/001.png",
        "mask 32 x 20, image 64 x 40 as shown",
        "1,280 pixels of value 7, 9; 3 classes",
        "It has colours (mode RGB)",
    ):
        assert part in report, report
    assert found.images[1].pixels.tolist() == [640, 640, 0]  # what is no class is ignored
    with pytest.raises(DataError, match=r"5 faults|6 faults"):
        scan(path, strict=True)


def test_bad_images_are_reported_as_for_other_tasks(mask_set):
    path = mask_set(train=[blocks()] * 3)
    (path.parent / "images/train/001.jpg").write_bytes(b"no image")
    (path.parent / "list.txt").write_text("images/train/000.jpg\nimages/train/001.jpg\nimages/train/gone.jpg\n")
    path.write_text(path.read_text().replace("images/train", "list.txt"))
    assert kinds(scan(path)) == {"image missing": 1, "image unreadable": 1}


def test_two_images_with_one_mask_are_reported_and_the_first_is_used(mask_set, write_photo):
    path = mask_set()
    write_photo(path.parent / "images/train/000.webp", *SIZE)
    found = scan(path)
    assert kinds(found) == {"shared label": 1} and [Path(r.path).suffix for r in found.images] == [".jpg"]


def test_no_mask_at_all_is_an_error_that_shows_three_paths_looked_for(mask_set):
    path = mask_set(train=[None] * 5)
    with pytest.raises(DataError) as caught:
        scan(path)
    assert str(caught.value).count("/masks/train/00") == 3 and "mask missing" in str(caught.value)


def test_a_mask_for_a_turned_photo_has_the_size_that_is_shown(mask_set, smooth_photo):
    path = mask_set(train=[blocks(64, 40)])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(smooth_photo(*SIZE)).save(path.parent / "images/train/000.jpg", exif=exif)
    assert scan(path).images[0].size == (64, 40)


def test_check_reports_pixels_per_class_as_plain_values(mask_set):
    found = check(mask_set(train=[blocks(), None]), "semantic")
    train = found["splits"]["train"]
    assert found["usable"] and train["per_class"] == {"road": 640, "tree": 640, "sky": 640}
    assert train["faults"]["mask missing"]["count"] == 1 and not train["faults"]["mask missing"]["harmless"]
    json.dumps(found)


def test_a_kept_scan_is_the_scan_until_a_mask_or_its_meaning_changes(mask_set, monkeypatch):
    looks = []
    original = scan_jobs.judge_mask
    monkeypatch.setattr(scan_jobs, "judge_mask", lambda *a: looks.append(1) or original(*a))
    path = mask_set(train=[blocks(), blocks(values=(0, 0, 9, 255))])
    first, again = scan(path), scan(path)
    assert len(looks) == 2 and again.reading == first.reading and again.report() == first.report()
    for a, b in zip(first.images, again.images, strict=True):
        assert a.layers == b.layers and np.array_equal(a.pixels, b.pixels) and b.pixels.dtype == np.int64
    Image.fromarray(blocks(values=(1, 1, 1, 1))).save(path.parent / "masks/train/000.png")
    assert scan(path).per_class[1] == 40 * 64 and len(looks) == 4
    path.write_text(path.read_text() + "label_mapping: {1: 2}\n")
    assert scan(path).per_class == {0: 0, 1: 0, 2: 40 * 64} and len(looks) == 6


# polygons


def test_polygons_are_drawn_on_a_class_background_that_comes_last(polygon_set):
    square = "1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75"
    path = polygon_set(train=[square, "0 0 0 1 0 1 1 0 1\n" + square, ""])
    spec = load_data(path, "semantic")
    assert spec.names == {0: "cat", 1: "dog", 2: "background"}
    found = scan_semantic(spec, "train")
    wanted = np.full(found.images[0].size, 2)
    wanted[10:30, 16:48] = 1
    masks = [read_mask(r.layers["mask"], r.size, found.reading) for r in found.images]
    assert np.array_equal(masks[0], wanted)
    assert set(np.unique(masks[1])) == {0, 1} and (masks[2] == 2).all()
    assert found.images[0].pixels.tolist() == [0, 20 * 32, 40 * 64 - 20 * 32]
    assert load_data(polygon_set(train=[square], names=("tree", "background")), "semantic").names[1] == "background"


def test_a_small_polygon_stays_in_view_whatever_the_order_of_rows(tmp_path):
    large, small = "0 .1 .1 .9 .1 .9 .9 .1 .9", "1 .4 .4 .6 .4 .5 .6"
    drawn = []
    for text in (f"{large}\n{small}", f"{small}\n{large}"):
        (tmp_path / "a.txt").write_text(text)
        drawn.append(draw_polygons(str(tmp_path / "a.txt"), (50, 50), 2)[0])
    assert np.array_equal(*drawn) and set(np.unique(drawn[0])) == {0, 1, 2}


def test_a_polygon_covers_the_area_that_its_corners_enclose(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(20):
        corners = rng.random((3, 2))
        edges = corners[1:] - corners[0]
        (tmp_path / "a.txt").write_text("0 " + " ".join(f"{v:.6f}" for v in corners.ravel()))
        mask, faults = draw_polygons(str(tmp_path / "a.txt"), (200, 300), 1)
        area = abs(edges[0, 0] * edges[1, 1] - edges[0, 1] * edges[1, 0]) / 2
        assert not faults and (mask == 0).mean() == pytest.approx(area, abs=0.01)  # pixels of the edge


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("0 0.5 0.5 0.2 0.2", "wrong number of fields"),
        ("0 0.5 0.5 0.2 0.2 0.1 0.1 0.3", "wrong number of fields"),
        ("0 0.5 0.5 0.2 x 0.1 0.1", "not a number"),
        ("2 0.5 0.5 0.2 0.2 0.1 0.9", "bad class"),
        ("0 0.5 0.5 1.2 0.2 0.1 0.9", "out of range"),
        ("0 0.5 0.5 0.5 0.2 0.5 0.9", "no area"),
    ],
)
def test_a_bad_polygon_is_dropped_and_reported_with_file_and_line(polygon_set, row, kind):
    good = "0 0.1 0.1 0.9 0.1 0.5 0.5"
    found = scan(polygon_set(train=[f"{good}\n\n{row}"]))
    assert kinds(found) == {kind: 1} and found.faults[0].line == 3
    if kind == "wrong number of fields" and len(row.split()) == 5:
        assert "a box, not a polygon" in found.report()


def test_labels_without_a_single_polygon_are_an_error(polygon_set):
    with pytest.raises(DataError, match="not one polygon.*a box, not a polygon"):
        scan(polygon_set(train=["0 0.5 0.5 0.2 0.2"]))


def test_masks_win_over_labels_where_there_are_both(mask_set):
    path = mask_set()
    label = path.parent / "labels/train/000.txt"
    label.parent.mkdir(parents=True)
    label.write_text("0 0.1 0.1 0.9 0.1 0.5 0.5")
    assert load_data(path, "semantic").names == dict(enumerate(NAMES))


def test_a_mapping_that_polygons_cannot_use_is_an_error(polygon_set):
    refused(polygon_set(train=["0 0.1 0.1 0.9 0.1 0.5 0.5"], label_mapping={1: 1}), "label_mapping", "polygon")


# samples


@pytest.fixture
def painted(mask_set, smooth_photo):
    """Photos painted by their masks, some larger and some smaller than the input: value 60 c + 30, ignored 240."""
    path = mask_set(train=[blocks()] * 5)
    for i in range(5):
        height, width = ((40, 64), (160, 220), (90, 50), (33, 47), (300, 200))[i]
        rng = np.random.default_rng(i)
        coarse = rng.integers(0, 4, (3, 4))
        mask = coarse.repeat(height // 3 + 1, 0).repeat(width // 4 + 1, 1)[:height, :width].astype(np.uint8)
        mask[mask == 3] = 255
        photo = np.where(mask == 255, 240, mask * 60 + 30).astype(np.uint8)
        Image.fromarray(np.stack([photo] * 3, axis=2)).save(path.parent / f"images/train/{i:03d}.png")
        (path.parent / f"images/train/{i:03d}.jpg").unlink()
        Image.fromarray(mask).save(path.parent / f"masks/train/{i:03d}.png")
    return scan(path)


MORPHOLOGY = ((cv2.erode, 0), (cv2.dilate, 255))


def checked_pixels(sample) -> int:
    """Away from the border between two classes, where interpolation mixes them, the mask says what the photo shows."""
    values, mask = sample.image[..., 0].astype(int), sample.layers["mask"]
    assert mask.shape == sample.image.shape[:2] and mask.dtype == np.uint8
    around = np.ones((11, 11), np.uint8)  # photos grow up to four times; what is beyond the edge cannot be seen
    eroded, dilated = (f(mask, around, borderType=cv2.BORDER_CONSTANT, borderValue=v) for f, v in MORPHOLOGY)
    inner = eroded == dilated
    for value, label in ((30, 0), (90, 1), (150, 2)):
        assert (np.abs(values - value) <= 2)[inner & (mask == label)].all()
    return int((inner & (mask != 255)).sum())


AUGMENTS = {
    "none": (),
    "flip": (Flip(p=1),),
    "turn": (Rotate90(p=1),),
    "affine": (Affine(rotate=20, translate=0.2, scale=(0.5, 1.5), shear=5),),
    "mosaic": (Mosaic(scale=(0.5, 1.5)),),
    "crop": (ScaleCrop(), Flip(p=0.5)),
    "all": (Mosaic(scale=(0.8, 1.2)), Flip(), ScaleCrop(), Rotate90(p=1)),
}


@pytest.mark.parametrize("augment", AUGMENTS.values(), ids=AUGMENTS)
@pytest.mark.parametrize("fit", ["letterbox", "stretch"])
def test_masks_stay_on_their_photos_whatever_moves_them(painted, augment, fit):
    data = SemanticSet(painted, Input(fit=fit, resample="pil-linear"), seed=1)
    checked = 0
    for i in range(len(data)):
        for epoch in range(3):
            sample = data[SampleRequest(i, epoch, (64, 64), augment)]
            assert sample.image.shape == (64, 64, 3) and (sample.placement is not None) == (not augment)
            checked += checked_pixels(sample)
    assert checked > 1000


def test_colours_change_without_the_mask(painted):
    data = SemanticSet(painted, RULE)
    plain, jittered = (
        data[SampleRequest(1, 0, (64, 64), (*a, Flip(p=1)))] for a in ((), (Hsv(value=90, saturation=90),))
    )
    assert np.array_equal(plain.layers["mask"], jittered.layers["mask"])


def test_padding_is_ignored(painted):
    data = SemanticSet(painted, RULE)
    sample = data[SampleRequest(0, 0, (64, 64))]  # 40 x 64: below is padding
    assert (sample.layers["mask"][40:] == 255).all() and (sample.image[40:] == 114).all()
    small = data[SampleRequest(3, 0, (64, 64), (ScaleCrop(scale=(0.5, 0.5)),))]  # 32 x 46 in the corner
    assert (small.layers["mask"][32:] == 255).all() and (small.layers["mask"][:, 46:] == 255).all()
    assert (small.image[32:] == 114).all()


def test_a_crop_avoids_what_one_class_fills(mask_set, write_photo):
    mask = np.zeros((64, 256), np.uint8)
    mask[:, 100:130] = 1
    path = mask_set(train=[mask])
    write_photo(path.parent / "images/train/000.jpg", 64, 256)
    data = SemanticSet(scan(path), RULE)

    def mixed(most: float) -> float:
        crops = [data[SampleRequest(0, e, (64, 64), (ScaleCrop(scale=(1, 1), most=most),))] for e in range(60)]
        return sum((c.layers["mask"] == 1).mean() >= 0.25 for c in crops) / len(crops)

    # a crop of 64 of 256 columns holds at least 16 of the 30 with class 1 in about 35% of the places
    assert mixed(1.0) < 0.6 and mixed(0.75) > 0.9


def test_a_crop_without_any_label_is_taken_as_it_is(mask_set):
    path = mask_set(train=[blocks(values=(255, 255, 255, 0))])
    data = SemanticSet(scan(path), RULE)
    assert data[SampleRequest(0, 0, (16, 16), (ScaleCrop(scale=(1, 1)),))].layers["mask"].shape == (16, 16)


def test_mixup_and_policies_are_refused_where_there_are_masks(painted):
    from libreyolo_core.augment import AutoAugment, MixUp
    from libreyolo_core.errors import ConfigError

    data = SemanticSet(painted, RULE)
    for augment in (MixUp(), AutoAugment(policy="randaugment")):
        with pytest.raises(ConfigError, match="mask"):
            data[SampleRequest(0, 0, (64, 64), (augment,))]


def batches(data: SemanticSet, augment, **options) -> list:
    collate = functools.partial(collate_semantic, rule=data.rule)
    with train_loader(data, collate, batch=2, seed=3, **options) as loader:
        return list(loader.epoch(1, size=(64, 64), augment=augment))


def same(a, b) -> bool:
    return (
        a.indices == b.indices
        and torch.equal(a.images, b.images)
        and torch.equal(a.targets.masks, b.targets.masks)
        and torch.equal(a.draw, b.draw)
    )


def test_a_batch_has_masks_and_is_the_same_whatever_the_workers_and_the_cache(painted):
    for augment in (AUGMENTS["crop"], ()):
        wanted = batches(SemanticSet(painted, RULE, seed=2), augment)
        assert wanted[0].targets.masks.shape == (2, 64, 64) and wanted[0].targets.masks.dtype == torch.uint8
        for options in ({"cache": "ram"}, {"cache": "disk"}, {"workers": 2}, {"cache": "ram", "workers": 1}):
            workers = options.pop("workers", 0)
            found = batches(SemanticSet(painted, RULE, seed=2, **options), augment, workers=workers)
            assert all(same(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_cached_mask_is_decoded_once(painted, monkeypatch):
    from libreyolo_core.data import dataset as module

    reads = []
    original = module.read_mask
    monkeypatch.setattr(module, "read_mask", lambda *a: reads.append(a[0]) or original(*a))
    data = SemanticSet(painted, RULE, cache="ram")
    batches(data, AUGMENTS["crop"])
    batches(data, AUGMENTS["crop"])
    assert len(reads) == 5 and data.kept_layers["mask"].channels == 1


def test_a_mask_that_goes_bad_is_replaced_with_its_photo_and_named(painted):
    bad = painted.images[2].layers["mask"]
    Path(bad).write_bytes(b"gone bad")
    data = SemanticSet(painted, RULE)
    sample = data[SampleRequest(2, 0, (64, 64), AUGMENTS["crop"])]
    assert sample.index != 2 and sample.extra["unreadable"][0][0] == bad
    Image.fromarray(blocks()).save(bad)  # another size than the photo
    assert "not what the scan found" in data[SampleRequest(2, 0, (64, 64))].extra["unreadable"][0][1]


def test_polygon_masks_reach_the_samples(polygon_set):
    found = scan(polygon_set(train=["1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75"] * 3))
    sample = SemanticSet(found, RULE)[SampleRequest(0, 0, (64, 64))]
    assert set(np.unique(sample.layers["mask"][:40])) == {1, 2} and (sample.layers["mask"][20, 20:44] == 1).all()


def test_photos_of_their_own_size_are_padded_to_the_batch(painted):
    rule = Input(fit="native", border="reflect", multiple=16)
    data = SemanticSet(painted, rule)
    batch = collate_semantic([data[SampleRequest(i, 0, (64, 64))] for i in (0, 2)], rule)
    assert batch.images.shape == (2, 3, 96, 64) and batch.targets.masks.shape == (2, 96, 64)
    assert (batch.targets.masks[0, 40:] == 255).all() and [p.photo for p in batch.placements] == [(40, 64), (90, 50)]


def test_a_scan_made_by_hand_reads_plain_class_ids(painted):
    painted.reading = None
    assert SemanticSet(painted, RULE).reading == MaskReading(3)
