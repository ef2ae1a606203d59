"""What a ``Results`` holds and how it leaves: tensors, JSON, CSV, pictures."""

import csv
import io
import json
import pickle
import sys
import types

import numpy as np
import pytest
import torch

from libreyolo_core.errors import UsageError
from libreyolo_core.results import Boxes, Points, Probs, Results, ResultsList

NAMES = {0: "cat", 1: "dog"}
ROWS = torch.tensor([[10.0, 20, 30, 60, 0.9, 1], [0, 0, 50, 50, 0.8, 0], [5, 5, 9, 9, 0.7, 1]])


def photo(h=100, w=200):
    return np.full((h, w, 3), 90, np.uint8)


def detected(rows=ROWS, **more):
    return Results(photo(), "a/b.jpg", NAMES, boxes=Boxes(rows, (100, 200)), **more)


def classified():
    return Results(photo(), "b.jpg", NAMES, probs=Probs(torch.tensor([0.25, 0.75])))


def test_boxes_speak_all_four_coordinate_forms():
    boxes = detected().boxes
    assert boxes.xyxy[0].tolist() == [10, 20, 30, 60]
    assert boxes.xywh[0].tolist() == [20, 40, 20, 40]
    assert boxes.xyxyn[0].tolist() == pytest.approx([0.05, 0.2, 0.15, 0.6])
    assert boxes.xywhn[0].tolist() == pytest.approx([0.1, 0.4, 0.1, 0.4])
    assert boxes.conf.tolist() == pytest.approx([0.9, 0.8, 0.7]) and boxes.cls.tolist() == [1, 0, 1]
    assert boxes.data.shape == boxes.shape == (3, 6) and len(boxes) == 3


def test_numpy_results_have_the_same_numbers():
    plain, arrays = detected(), detected().numpy()
    for name in ("xyxy", "xywh", "xyxyn", "xywhn", "conf", "cls", "data"):
        value = getattr(arrays.boxes, name)
        assert isinstance(value, np.ndarray)
        np.testing.assert_allclose(value, getattr(plain.boxes, name).numpy())
    assert arrays.to_dict() == plain.to_dict() and arrays.cpu().boxes.data is arrays.boxes.data
    assert isinstance(arrays.to("cpu").boxes.data, torch.Tensor)
    assert plain.to(torch.float64).boxes.data.dtype == torch.float64


@pytest.mark.parametrize("index", [0, slice(0, 1), [0], torch.tensor([True, False, False])])
def test_indexing_keeps_the_rows_axis(index):
    part = detected()[index]
    assert len(part) == 1 and part.boxes.data.shape == (1, 6) and part.orig_img.shape == (100, 200, 3)


def test_iteration_yields_one_detection_each():
    assert [int(r.boxes.cls) for r in detected()] == [1, 0, 1]
    assert len(detected(torch.zeros(0, 6))) == 0 and list(detected(torch.zeros(0, 6))) == []


def test_fields_of_other_tasks_are_none():
    r = detected()
    assert r.probs is None and r.semantic_mask is None and r.restored is None and r.points is None
    assert r.orig_shape == (100, 200) and classified().boxes is None and len(classified()) == 1


def test_probabilities_are_ranked():
    probs = Probs(torch.tensor([0.1, 0.05, 0.3, 0.2, 0.15, 0.2]))
    assert probs.top1 == 2 and probs.top5 == [2, 3, 5, 4, 0]
    assert float(probs.top1conf) == pytest.approx(0.3) and probs.top5conf.tolist() == pytest.approx(
        [0.3, 0.2, 0.2, 0.15, 0.1]
    )
    assert probs.numpy().top5 == probs.top5 and Probs(torch.tensor([1.0])).top5 == [0]


def test_wrong_shapes_are_refused():
    for wrong in (torch.zeros(2, 5), torch.zeros(2, 2, 6)):
        with pytest.raises(ValueError, match="rows of 6"):
            Boxes(wrong, (9, 9))
    with pytest.raises(ValueError, match="one row"):
        Probs(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="rows of 4"):
        Points(torch.zeros(2, 3), (9, 9))


def test_dictionary_gives_names_beside_ids_and_plain_numbers():
    found = detected(speed={"preprocess": 1.23456, "inference": 2, "postprocess": 3}).to_dict()
    assert found["path"] == "a/b.jpg" and found["orig_shape"] == [100, 200]
    assert found["speed"] == {"preprocess": 1.235, "inference": 2.0, "postprocess": 3.0}
    assert found["detections"][0] == {
        "class": 1, "name": "dog", "confidence": 0.9, "box": {"x1": 10.0, "y1": 20.0, "x2": 30.0, "y2": 60.0},
    }  # fmt: skip
    assert json.loads(detected().to_json(normalize=True))["detections"][0]["box"]["y2"] == 0.6
    assert classified().to_dict()["classes"][0] == {"class": 1, "name": "dog", "confidence": 0.75}
    assert detected(torch.zeros(0, 6)).to_dict()["detections"] == []


def test_coco_category_ids_are_mapped_back():
    r = detected(category_ids={0: 17, 1: 1000})
    assert [d["category_id"] for d in r.to_dict()["detections"]] == [1000, 17, 1000]
    assert "category_id" in r.to_csv().splitlines()[0] and "category_id" not in detected().to_csv()


def test_csv_has_its_columns_even_when_nothing_was_found():
    head = ["class", "name", "confidence", "x1", "y1", "x2", "y2"]
    rows = list(csv.reader(io.StringIO(detected().to_csv())))
    assert rows[0] == head and rows[1] == ["1", "dog", "0.9", "10.0", "20.0", "30.0", "60.0"] and len(rows) == 4
    assert list(csv.reader(io.StringIO(detected(torch.zeros(0, 6)).to_csv()))) == [head]
    assert classified().to_csv().splitlines()[0] == "class,name,confidence"


def test_words_tell_what_was_found():
    assert detected().verbose() == "2 dog, 1 cat" and detected(torch.zeros(0, 6)).verbose() == "nothing found"
    assert classified().verbose() == "dog 0.75, cat 0.25" and "2 dog" in repr(detected())


def test_points_masks_and_restored_images_have_their_forms():
    points = Results(photo(), "a.jpg", NAMES, points=Points(torch.tensor([[50.0, 20, 0.9, 1]]), (100, 200)))
    assert points.points.xyn[0].tolist() == pytest.approx([0.25, 0.2]) and len(points) == 1
    assert points.to_dict()["points"] == [
        {"class": 1, "name": "dog", "confidence": 0.9, "point": {"x": 50.0, "y": 20.0}}
    ]
    assert points.to_csv().splitlines() == ["class,name,confidence,x,y", "1,dog,0.9,50.0,20.0"]
    mask = torch.zeros(100, 200, dtype=torch.int64)
    mask[:50], mask[50:60] = 1, 255
    masked = Results(photo(), "a.jpg", NAMES, semantic_mask=mask)
    assert masked.to_dict()["segments"] == [
        {"class": 0, "name": "cat", "pixels": 8000, "share": 0.4},
        {"class": 1, "name": "dog", "pixels": 10000, "share": 0.5},
    ]
    drawn = masked.plot()
    assert (drawn[55] == 90).all() and (drawn[10] != 90).any() and (drawn[80] != drawn[10]).any()
    clean = Results(photo(), "a.jpg", NAMES, restored=np.full((200, 400, 3), 7, np.uint8))
    assert clean.plot().shape == (200, 400, 3) and clean.to_dict()["restored_shape"] == [200, 400]


def test_plot_is_bgr_of_the_photos_size_and_leaves_the_photo_alone():
    r = detected()
    before = r.orig_img.copy()
    drawn = r.plot()
    assert drawn.shape == r.orig_img.shape and drawn.dtype == np.uint8
    assert (drawn != before).any() and (r.orig_img == before).all()
    assert not np.shares_memory(drawn, r.orig_img)
    from libreyolo_core.pictures.palette import class_colour

    blue, green, red = drawn[59, 20]  # the lower edge of the first box, class 1
    assert (red, green, blue) == class_colour(1)


def test_saving_writes_true_colours_with_ordinary_file_rights(tmp_path):
    from PIL import Image

    image = np.zeros((20, 20, 3), np.uint8)
    image[..., 2] = 200  # red in BGR
    r = Results(image, "x.jpg", NAMES, boxes=Boxes(torch.zeros(0, 6), (20, 20)))
    path = tmp_path / "new" / "x.png"
    assert r.save(path) == str(path)
    assert Image.open(path).getpixel((5, 5)) == (200, 0, 0)
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_showing_without_a_viewer_says_so(monkeypatch, caplog):
    from PIL import ImageShow

    monkeypatch.setattr(ImageShow, "_viewers", [])
    detected().show()
    assert "Use save()" in caplog.text


def test_supervision_gets_its_arrays(monkeypatch):
    fake = types.ModuleType("supervision")
    fake.Detections = fake.Classifications = lambda **given: given
    monkeypatch.setitem(sys.modules, "supervision", fake)
    given = detected().to_supervision()
    assert given["xyxy"].shape == (3, 4) and given["class_id"].tolist() == [1, 0, 1]
    assert given["data"]["class_name"].tolist() == ["dog", "cat", "dog"]
    assert classified().to_supervision()["class_id"].tolist() == [1, 0]


def test_supervision_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(UsageError, match="pip install supervision"):
        detected().to_supervision()


def test_a_list_of_one_answers_for_its_member():
    one, two = ResultsList([detected()]), ResultsList([detected(), classified()])
    assert len(one) == 1 and one.boxes is one[0].boxes and one.to_dict() == one[0].to_dict()
    assert one.orig_shape == (100, 200) and two[1].probs is not None
    with pytest.raises(AttributeError, match="2 photos"):
        _ = two.boxes
    with pytest.raises(AttributeError, match="no attribute 'boxez'"):
        _ = one.boxez


def test_results_travel_between_processes():
    copy = pickle.loads(pickle.dumps(ResultsList([detected()])))
    assert copy[0].to_dict() == detected().to_dict()
