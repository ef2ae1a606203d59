"""One scan finds every fault of a data set, drops what is wrong, and says so with file and line."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from libreyolo_core.data import scan_jobs
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.labels import FAULTS, label_path
from libreyolo_core.data.scan import check, scan_classify, scan_detect
from libreyolo_core.errors import DataError

GOOD = "0 0.5 0.5 0.5 0.5"


def scan(path, split="train", **options):
    return scan_detect(load_data(path, "detect"), split, **options)


def with_label(detect_set, text: str, **options):
    """The scan of a set with one good image and one whose label is ``text``."""
    return scan(detect_set(train=[GOOD, text]), **options)


def kinds(found) -> dict[str, int]:
    return {k: n for k, n in found.counts.items() if k in FAULTS}


@pytest.mark.parametrize(
    ("text", "kind", "line", "kept"),
    [
        ("0 0.5 0.5 0.2", "wrong number of fields", 1, 0),
        (f"{GOOD}\n0 .5 .5 .2 .2 .9", "wrong number of fields", 2, 1),
        ("cat 0.5 0.5 0.2 0.2", "not a number", 1, 0),
        ("0 nan 0.5 0.2 0.2", "not a number", 1, 0),
        ("0 0.5 0.5 inf 0.2", "not a number", 1, 0),
        ("-1 0.5 0.5 0.2 0.2", "bad class", 1, 0),
        ("0.5 0.5 0.5 0.2 0.2", "bad class", 1, 0),
        ("2 0.5 0.5 0.2 0.2", "bad class", 1, 0),
        (f"{GOOD}\n\n\n0 0.9 0.5 0.4 0.2", "out of range", 4, 1),
        ("0 320 200 40 40", "out of range", 1, 0),
        ("0 0.9 0.5 0.204 0.2", "clipped", 1, 1),
        ("0 0.5 0.5 0 0.2", "no area", 1, 0),
        ("0 0.5 0.5 0.2 -0.1", "no area", 1, 0),
        (f"{GOOD}\n1 0.5 0.5 0.5 0.5\n{GOOD}", "duplicate", 3, 2),
    ],
)
def test_a_bad_row_is_dropped_and_reported_with_file_and_line(detect_set, text, kind, line, kept):
    found = with_label(detect_set, text)
    assert kinds(found) == {kind: 1}
    fault = found.faults[0]
    assert fault.line == line and fault.path.endswith("labels/train/001.txt")
    assert len(found.images[1].boxes) == kept
    assert f"{kind}: 1" in found.report() and f"001.txt:{line}" in found.report()


def test_pixel_coordinates_are_named_as_the_likely_mistake(detect_set):
    assert "are these pixels?" in with_label(detect_set, "0 320 200 40 40").report()


def test_clipped_boxes_end_at_the_edge_and_keep_their_size_in_pixels(detect_set):
    found = with_label(detect_set, "0 0.9 0.5 0.204 0.5")
    height, width = found.images[1].size
    assert found.images[1].boxes[0].tolist() == pytest.approx([0.798 * width, 0.25 * height, width, 0.75 * height])


def test_class_ids_written_as_whole_floats_are_fine(detect_set):
    assert with_label(detect_set, "1.0 0.5 0.5 0.2 0.2").images[1].labels.tolist() == [1]


def test_a_polygon_becomes_its_bounding_box(detect_set):
    found = with_label(detect_set, "1 0.2 0.3 0.6 0.3 0.6 0.8 0.4 0.9")
    height, width = found.images[1].size
    assert found.images[1].boxes[0].tolist() == pytest.approx([0.2 * width, 0.3 * height, 0.6 * width, 0.9 * height])
    assert kinds(found) == {}


def test_crlf_bom_tabs_and_trailing_blanks_are_read(detect_set):
    path = detect_set(train=[GOOD, ""])
    label = path.parent / "labels/train/001.txt"
    label.write_bytes(b"\xef\xbb\xbf0\t0.5 0.5\t0.5 0.5  \r\n\r\n1 0.5 0.5 0.2 0.2\r\n   \r\n")
    found = scan(path)
    assert found.images[1].labels.tolist() == [0, 1] and kinds(found) == {}


def test_binary_labels_are_reported(detect_set):
    path = detect_set(train=[GOOD, ""])
    (path.parent / "labels/train/001.txt").write_bytes(b"\0\1\2" * 100)
    assert kinds(scan(path)) == {"label unreadable": 1}


def test_missing_labels_are_backgrounds_and_counted(detect_set):
    found = scan(detect_set(train=[GOOD, None, ""]))
    assert kinds(found) == {"label missing": 1}
    assert found.counts["images"] == 3 and found.counts["backgrounds"] == 2 and found.counts["boxes"] == 1


def test_a_set_with_mostly_backgrounds_keeps_them_all(detect_set):
    found = scan(detect_set(train=[GOOD, *[""] * 17, *[None] * 2]))
    assert found.counts["images"] == 20 and found.counts["backgrounds"] == 19


def test_there_is_no_cap_on_boxes_per_image(detect_set):
    rows = "\n".join(f"0 {0.1 + i * 0.0001:.5f} 0.5 0.1 0.1" for i in range(1500))
    assert len(with_label(detect_set, rows).images[1].boxes) == 1500


def test_missing_and_unreadable_images_are_reported_and_left_out(detect_set, smooth_photo):
    path = detect_set(train=[GOOD] * 6)
    images = path.parent / "images/train"
    (images / "001.png").write_bytes((images / "001.png").read_bytes()[:100])
    (images / "002.png").write_bytes(b"")
    (images / "003.png").write_text("no image")
    Image.fromarray(smooth_photo(50, 50)).save(images / "cut.jpg")
    (images / "cut.jpg").write_bytes((images / "cut.jpg").read_bytes()[:-200])
    (images / "list.txt").write_text("\n".join(f"./{p}" for p in sorted(os.listdir(images)) + ["gone.png"]))
    path.write_text(path.read_text().replace("images/train", "images/train/list.txt"))
    found = scan(path)
    assert kinds(found) == {"image missing": 1, "image unreadable": 4}
    assert [Path(r.path).name for r in found.images] == ["000.png", "004.png", "005.png"]
    assert "gone.png" in found.report()


def test_upper_case_endings_are_images_and_hidden_files_are_not(detect_set, write_photo):
    path = detect_set()
    write_photo(path.parent / "images/train/deep/er/B.JPG", format="JPEG")
    write_photo(path.parent / "images/train/._B.jpg")
    assert [Path(r.path).name for r in scan(path).images] == ["000.png", "B.JPG"]


def test_only_the_last_images_component_of_a_path_becomes_labels():
    assert label_path("/data/images/2024/images/a.jpg") == "/data/images/2024/labels/a.txt"
    assert label_path("/data/images/train/b/images.jpg") == "/data/labels/train/b/images.txt"
    assert label_path("/data/my_images/a.b.JPEG") == "/data/my_images/a.b.txt"


def test_labels_under_nested_images_folders_are_found(detect_set, write_photo):
    path = detect_set(folder="images/2024")
    found = scan(path)
    assert found.counts["boxes"] == 1 and "/images/2024/images/" in found.images[0].path


def test_two_images_with_one_label_path_are_reported_and_the_first_is_used(detect_set, write_photo):
    path = detect_set(train=[GOOD, GOOD])
    write_photo(path.parent / "images/train/000.jpg")
    found = scan(path)
    assert kinds(found) == {"shared label": 1}
    assert [Path(r.path).name for r in found.images] == ["000.jpg", "001.png"]


def test_boxes_are_in_pixels_of_the_photo_as_it_is_shown(detect_set, smooth_photo):
    path = detect_set(train=["0 0.25 0.5 0.5 0.2"])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(smooth_photo(40, 100)).save(path.parent / "images/train/000.png", exif=exif)
    record = scan(path).images[0]
    assert record.size == (100, 40)
    assert record.boxes[0].tolist() == pytest.approx([0, 40, 20, 60])


def test_strict_makes_faults_an_error_but_not_what_loses_nothing(detect_set):
    scan(detect_set(train=[GOOD, None, "0 0.9 0.5 0.204 0.2"]), strict=True)
    with pytest.raises(DataError, match=r"001\.txt:1.*|strict=True") as caught:
        with_label(detect_set, "7 0.5 0.5 0.2 0.2", strict=True)
    assert "bad class" in str(caught.value) and "001.txt:1" in str(caught.value)


def test_all_labels_missing_is_an_error_that_shows_three_paths_looked_for(detect_set):
    path = detect_set(train=[GOOD] * 5)
    (path.parent / "labels").rename(path.parent / "label")
    with pytest.raises(DataError) as caught:
        scan(path)
    text = str(caught.value)
    assert text.count("/labels/train/00") == 3 and "not one box" in text and "\n" not in text


def test_labels_that_are_all_wrong_are_an_error_that_shows_the_first(detect_set):
    with pytest.raises(DataError, match=r"000\.txt:1"):
        scan(detect_set(train=["9 .5 .5 .1 .1"] * 3))


def test_a_split_without_a_usable_image_is_an_error_that_shows_where_it_looked(detect_set):
    path = detect_set()
    (path.parent / "images/train/000.png").unlink()
    with pytest.raises(DataError, match="no usable image.*images/train"):
        scan(path)
    (path.parent / "images/train/000.png").write_text("x")
    with pytest.raises(DataError, match=r"000\.png \(image unreadable\)"):
        scan(path)
    with pytest.raises(DataError, match="no 'test' split.*train, val"):
        scan(path, "test")


def test_the_report_shows_ten_of_a_kind_and_the_file_all(detect_set, tmp_path):
    found = with_label(detect_set, "\n".join(f"{i + 5} 0.5 0.5 0.2 0.2" for i in range(25)))
    assert found.report().count("001.txt:") == 10 and "and 15 more" in found.report()
    found.write(tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text().count("001.txt:") == 25


def test_classes_that_never_occur_are_named(detect_set):
    found = scan(detect_set(names=("cat", "dog", "cow")))
    assert found.per_class == {0: 1, 1: 0, 2: 0}
    assert "never occur: dog, cow" in found.report()


def test_progress_counts_every_image(detect_set):
    calls = []
    scan(detect_set(train=[GOOD] * 4), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_check_reports_every_split_as_plain_values(detect_set):
    path = detect_set(train=[GOOD, "5 .5 .5 .1 .1"], val=[None, None])
    found = json.loads(json.dumps(check(path)))
    assert found["usable"] is False and found["names"] == {"0": "cat", "1": "dog"}
    assert found["splits"]["train"]["counts"] == {"images": 2, "boxes": 1, "backgrounds": 1, "bad class": 1}
    fault = found["splits"]["train"]["faults"]["bad class"]
    assert fault["count"] == 1 and fault["first"][0]["line"] == 1 and not fault["harmless"]
    assert found["splits"]["train"]["error"] is None and "not one box" in found["splits"]["val"]["error"]
    assert "bad class: 1" in found["report"] and "not one box" in found["report"]


class Counter:
    """Counts the images a scan really looks at."""

    def __init__(self, monkeypatch):
        self.seen = 0
        original = scan_jobs.check_image

        def counted(path):
            self.seen += 1
            return original(path)

        monkeypatch.setattr(scan_jobs, "check_image", counted)

    def during(self, path) -> int:
        before = self.seen
        scan(path)
        return self.seen - before


def test_a_scan_is_kept_until_a_file_changes(detect_set, write_photo, monkeypatch):
    path = detect_set(train=[GOOD, GOOD, "0 .5 .5 .1 .1\n9 .5 .5 .1 .1"])
    root, counter = path.parent, Counter(monkeypatch)
    monkeypatch.setattr("libreyolo_core.data.files.YOUNG_S", -1.0)  # as if the files were older than clocks are coarse
    assert counter.during(path) == 3
    first = scan(path)
    assert counter.during(path) == 0
    kept = scan(path)
    assert kept.report() == first.report() and kept.label_paths == first.label_paths
    for a, b in zip(kept.images, first.images, strict=True):
        assert a.path == b.path and a.size == b.size
        assert np.array_equal(a.boxes, b.boxes) and a.boxes.dtype == b.boxes.dtype
        assert np.array_equal(a.labels, b.labels) and a.labels.dtype == b.labels.dtype
    (root / "labels/train/001.txt").write_text("1 0.5 0.5 0.25 0.25")
    assert counter.during(path) == 3 and scan(path).images[1].labels.tolist() == [1]
    write_photo(root / "images/train/new.png")
    assert counter.during(path) == 4
    (root / "images/train/new.png").unlink()
    assert counter.during(path) == 3
    (root / "labels/train/000.txt").unlink()
    assert counter.during(path) == 3
    (root / "labels/train/000.txt").write_text(GOOD)
    assert counter.during(path) == 3
    write_photo(root / "images/train/000.png", 90, 90, seed=5)
    assert counter.during(path) == 3
    path.write_text(path.read_text().replace("dog", "cow"))
    assert counter.during(path) == 3 and counter.during(path) == 0


def test_an_edit_right_after_a_scan_is_seen_although_size_and_time_may_agree(detect_set, monkeypatch):
    path = detect_set(train=["0 0.5 0.5 0.5 0.5"])
    label = path.parent / "labels/train/000.txt"
    scan(path)
    before = label.stat()
    label.write_text("1 0.5 0.5 0.5 0.5")
    os.utime(label, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scan(path).images[0].labels.tolist() == [1]


def test_a_damaged_cache_file_costs_one_line_and_a_new_scan(detect_set, cache_folder, caplog):
    path = detect_set()
    scan(path)
    kept = next((cache_folder / "scans").iterdir())
    kept.write_bytes(b"PK\3\4 damaged")
    with caplog.at_level(logging.WARNING, "libreyolo"):
        assert scan(path).counts["boxes"] == 1
    assert "scanning again" in caplog.text


def test_a_cache_folder_that_cannot_be_written_costs_one_line(detect_set, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("LIBREYOLO_CACHE", str(blocked))
    with caplog.at_level(logging.WARNING, "libreyolo"):
        assert scan(detect_set()).counts["boxes"] == 1
    assert "not kept" in caplog.text


def test_nothing_is_written_beside_the_images(detect_set):
    path = detect_set()
    before = sorted(path.parent.rglob("*"))
    scan(path)
    assert sorted(path.parent.rglob("*")) == before


# COCO JSON


@pytest.fixture
def coco_set(tmp_path, write_photo):
    """``make(annotations)``: three photos of 64 x 48 and categories 1, 7, 90, 1000."""

    def make(annotations, images=None, **extra):
        for i in range(3):
            write_photo(tmp_path / "photos" / "images" / f"{i}.jpg", 48, 64, seed=i)
        listed = [{"id": 100 + i, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in range(3)]
        categories = [{"id": i, "name": n} for i, n in ((90, "cow"), (1, "cat"), (1000, "bee"), (7, "dog"))]
        data = {"images": listed if images is None else images, "annotations": annotations, "categories": categories}
        for split in ("train", "val"):
            (tmp_path / "photos" / f"{split}.json").write_text(json.dumps(data))
        return f"{tmp_path}/photos/train.json,{tmp_path}/photos/val.json"

    return make


def note(number, image, category, bbox, **extra):
    return {"id": number, "image_id": image, "category_id": category, "bbox": bbox, **extra}


def test_coco_category_ids_are_mapped_and_remembered(coco_set):
    found = scan(coco_set([note(1, 100, 1000, [8, 6, 16, 12]), note(2, 101, 7, [0, 0, 64, 48], area=99.5)]))
    assert found.names == {0: "cat", 1: "dog", 2: "cow", 3: "bee"}
    assert found.category_ids == {0: 1, 1: 7, 2: 90, 3: 1000} and found.image_ids == [100, 101, 102]
    assert found.images[0].boxes.tolist() == [[8, 6, 24, 18]] and found.images[0].labels.tolist() == [3]
    assert found.images[0].areas.tolist() == [16 * 12] and found.images[1].areas.tolist() == [99.5]
    assert found.images[1].labels.tolist() == [1] and found.counts["backgrounds"] == 1


def test_coco_crowds_are_marked_and_do_not_count_as_boxes(coco_set):
    data = coco_set([note(1, 100, 1, [8, 6, 16, 12]), note(2, 100, 1, [0, 0, 60, 40], iscrowd=1)])
    for _ in range(2):  # the second comes from the cache
        found = scan(data)
        assert found.images[0].crowd.tolist() == [False, True] and found.images[1].crowd is None
        assert found.counts["boxes"] == 1 and found.per_class[0] == 1
        assert found.category_ids == {0: 1, 1: 7, 2: 90, 3: 1000} and found.image_ids == [100, 101, 102]


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (note(2, 100, 5, [1, 1, 4, 4]), "bad class"),
        (note(2, 100, None, [1, 1, 4, 4]), "bad class"),
        (note(2, 999, 1, [1, 1, 4, 4]), "unknown image"),
        (note(2, 100, 1, [1, 1, 4]), "wrong number of fields"),
        (note(2, 100, 1, None), "wrong number of fields"),
        (note(2, 100, 1, [1, 1, "4", 4]), "not a number"),
        (note(2, 100, 1, [1, 1, float("nan"), 4]), "not a number"),
        (note(2, 100, 1, [1, 1, 0, 4]), "no area"),
        (note(2, 100, 1, [60, 1, 10, 4]), "out of range"),
        (note(2, 100, 1, [60, 1, 4.1, 4]), "clipped"),
        (note(2, 100, 1, [8, 6, 16, 12]), "duplicate"),
    ],
)
def test_coco_annotations_obey_the_same_rules(coco_set, annotation, kind):
    found = scan(coco_set([note(1, 100, 1, [8, 6, 16, 12]), annotation]))
    assert kinds(found) == {kind: 1}
    assert found.faults[0].path.endswith("train.json")


def test_coco_sizes_that_are_not_the_photos_are_reported(coco_set):
    images = [
        {"id": i, "file_name": f"{i}.jpg", "width": w, "height": h} for i, (w, h) in enumerate([(64, 48), (48, 64)])
    ]
    found = scan(coco_set([note(1, 0, 1, [8, 6, 16, 12]), note(2, 1, 1, [8, 6, 16, 12])], images))
    assert kinds(found) == {"size mismatch": 1} and found.image_ids == [0]
    images = [{"id": 0, "file_name": "0.jpg"}, {"id": 1, "file_name": "gone.jpg"}, {"id": 1, "file_name": "1.jpg"}]
    found = scan(coco_set([note(1, 0, 1, [8, 6, 16, 12])], images))
    assert kinds(found) == {"image missing": 1, "duplicate": 1}


# classification


def test_class_folders_are_scanned(class_set, write_photo):
    root = class_set(count=3)
    (root / "train/cat/1.jpg").write_bytes(b"x")
    write_photo(root / "train" / "loose.jpg")
    (root / "train" / "empty").mkdir()
    spec = load_data(root, "classify")
    for _ in range(2):  # the second comes from the cache
        found = scan_classify(spec, "train")
        assert found.names == {0: "cat", 1: "dog", 2: "empty"}
        assert [r.labels.tolist() for r in found.images] == [[0], [0], [1], [1], [1]]
        assert all(r.boxes.shape == (0, 4) for r in found.images)
        assert kinds(found) == {"image unreadable": 1, "outside a class folder": 1, "empty class folder": 1}
        assert found.per_class == {0: 2, 1: 3, 2: 0}
    assert check(root, "classify")["splits"]["train"]["per_class"] == {"cat": 2, "dog": 3, "empty": 0}
    with pytest.raises(DataError, match="strict"):
        scan_classify(spec, "train", strict=True)
