"""Masks are found, judged and read by stated rules."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo_core.data import scan_jobs
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.masks import mask_path, read_mask
from libreyolo_core.data.scan import check, scan_semantic
from libreyolo_core.errors import DataError
from semantic_sets import NAMES, SIZE, blocks, kinds, refused, scan

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
