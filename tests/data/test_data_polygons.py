"""Polygons in label files become masks, and what cannot be drawn is named."""

from __future__ import annotations

import numpy as np
import pytest

from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.masks import read_mask
from libreyolo_core.data.polygons import draw_polygons
from libreyolo_core.data.scan import scan_semantic
from libreyolo_core.errors import DataError
from semantic_sets import NAMES, kinds, refused, scan


def test_polygons_are_drawn_on_a_class_background_that_comes_last(detect_set):
    square = "1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75"
    path = detect_set(train=[square, "0 0 0 1 0 1 1 0 1\n" + square, ""])
    spec = load_data(path, "semantic")
    assert spec.names == {0: "cat", 1: "dog", 2: "background"}
    found = scan_semantic(spec, "train")
    wanted = np.full(found.images[0].size, 2)
    wanted[10:30, 16:48] = 1
    masks = [read_mask(r.layers["mask"], r.size, found.reading) for r in found.images]
    assert np.array_equal(masks[0], wanted)
    assert set(np.unique(masks[1])) == {0, 1} and (masks[2] == 2).all()
    assert found.images[0].pixels.tolist() == [0, 20 * 32, 40 * 64 - 20 * 32]
    assert load_data(detect_set(train=[square], names=("tree", "background")), "semantic").names[1] == "background"


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
def test_a_bad_polygon_is_dropped_and_reported_with_file_and_line(detect_set, row, kind):
    good = "0 0.1 0.1 0.9 0.1 0.5 0.5"
    found = scan(detect_set(train=[f"{good}\n\n{row}"]))
    assert kinds(found) == {kind: 1} and found.faults[0].line == 3
    if kind == "wrong number of fields" and len(row.split()) == 5:
        assert "a box, not a polygon" in found.report()


def test_labels_without_a_single_polygon_are_an_error(detect_set):
    with pytest.raises(DataError, match="not one polygon.*a box, not a polygon"):
        scan(detect_set(train=["0 0.5 0.5 0.2 0.2"]))


def test_masks_win_over_labels_where_there_are_both(mask_set):
    path = mask_set()
    label = path.parent / "labels/train/000.txt"
    label.parent.mkdir(parents=True)
    label.write_text("0 0.1 0.1 0.9 0.1 0.5 0.5")
    assert load_data(path, "semantic").names == dict(enumerate(NAMES))


def test_a_mapping_that_polygons_cannot_use_is_an_error(detect_set):
    refused(detect_set(train=["0 0.1 0.1 0.9 0.1 0.5 0.5"], label_mapping={1: 1}), "label_mapping", "polygon")
