"""Points are the centres of boxes: every form of a detection data set serves."""

from __future__ import annotations

import json

import numpy as np
import pytest

from libreyolo_core.augment import Flip, Mosaic
from libreyolo_core.data.batch import SampleRequest
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.dataset import DetectSet, PointSet, collate_detect
from libreyolo_core.data.scan import check, scan_detect
from libreyolo_core.errors import DataError
from libreyolo_core.family import Input
from libreyolo_core.targets import BoxTargets

ROWS = "0 0.25 0.5 0.1 0.2\n1 0.75 0.25 0.2 0.1"
FOMO = Input(fit="stretch", resample="pil-linear", mean=(0.5,) * 3, std=(0.5,) * 3)


def test_a_yaml_or_folder_of_boxes_is_counted_as_points(detect_set):
    path = detect_set(train=[ROWS, "", ROWS], val=[ROWS])
    found = scan_detect(load_data(path, "point"), "train")
    assert found.counts == {"images": 3, "points": 4, "backgrounds": 1} and found.per_class == {0: 2, 1: 2}
    assert found.report() == "train: 3 images, 4 points, 1 backgrounds"
    path.unlink()
    assert scan_detect(load_data(path.parent, "point"), "val").counts["points"] == 2


def test_coco_json_serves_too(detect_set):
    path = detect_set(train=[ROWS])
    categories = [{"id": 7, "name": "cat"}]
    image = {"id": 1, "file_name": "images/train/000.png", "width": 64, "height": 40}
    row = {"id": 1, "image_id": 1, "category_id": 7, "bbox": [8, 16, 16, 8], "area": 128, "iscrowd": 0}
    for name in ("a.json", "b.json"):
        (path.parent / name).write_text(json.dumps({"images": [image], "annotations": [row], "categories": categories}))
    spec = load_data(f"{path.parent}/a.json,{path.parent}/b.json", "point")
    found = scan_detect(spec, "train")
    assert found.counts["points"] == 1 and found.category_ids == {0: 7}


def test_faults_are_those_of_boxes_and_no_point_at_all_is_an_error(detect_set):
    path = detect_set(train=[ROWS, "0 0.5 0.5 0 0.2"], val=["", ""])
    report = check(path, "point")
    assert report["splits"]["train"]["faults"]["no area"]["count"] == 1
    assert "not one box" in report["splits"]["val"]["error"] and not report["usable"]
    with pytest.raises(DataError, match="strict=True"):
        scan_detect(load_data(path, "point"), "train", strict=True)


def test_samples_and_batches_are_those_of_detection(detect_set):
    found = scan_detect(load_data(detect_set(train=[ROWS, "", ROWS]), "point"), "train")
    points, boxes = PointSet(found, FOMO, seed=4), DetectSet(found, FOMO, seed=4)
    for augment in ((), (Mosaic(), Flip())):
        ours, theirs = ([d[SampleRequest(i, 1, (96, 96), augment)] for i in range(3)] for d in (points, boxes))
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(a.image, b.image) and np.array_equal(a.boxes, b.boxes)
        batch = collate_detect(ours, FOMO)
        assert isinstance(batch.targets, BoxTargets) and batch.images.shape == (3, 3, 96, 96)
    plain = points[SampleRequest(0, 0, (96, 96))]
    centres = (plain.boxes[:, :2] + plain.boxes[:, 2:]) / 2
    assert np.allclose(centres, [[24, 48], [72, 24]], atol=0.01)  # shares of the side, stretched
