"""Results of the semantic, restoration and point tasks as values, pictures and files."""

import csv
import io
import json
import types

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Input, Post
from libreyolo_core.pictures.palette import class_colour
from libreyolo_core.predictions import Predictions
from libreyolo_core.predictor import predict
from libreyolo_core.result_fields import Points
from libreyolo_core.results import Results
from libreyolo_core.tasks.point import PointTask
from libreyolo_core.tasks.semantic import SemanticTask
from task_fakes import sheet

NAMES = {0: "dark", 1: "bright"}
PHOTO = np.full((40, 60, 3), 100, np.uint8)


class Painter:
    """Classes pixels by their brightness, on a grid of a quarter of the input."""

    device = torch.device("cpu")

    def __init__(self):
        self.sheet, self.task, self.names, self.imgsz = sheet(rule=Input(multiple=32)), SemanticTask(), NAMES, 64

    def infer(self, images):
        light = torch.nn.functional.avg_pool2d(images.float().mean(1, keepdim=True), 4)
        return Predictions(logits=torch.cat([128 - light, light - 128], 1))


class Spotter:
    """Finds a point in every cell of 8 pixels that is bright."""

    device = torch.device("cpu")

    def __init__(self):
        rule, post = Input(fit="stretch", multiple=8), Post(conf=0.5)
        self.sheet, self.task, self.names, self.imgsz = sheet(rule=rule, post=post), PointTask(), NAMES, 64

    def infer(self, images):
        light = torch.nn.functional.avg_pool2d(images.float().mean(1, keepdim=True), 8) / 255
        return Predictions(scores=torch.cat([1 - light, torch.zeros_like(light), light], 1))


@pytest.fixture
def photo(tmp_path, monkeypatch):
    """128 x 64 pixels, the right half bright."""
    monkeypatch.chdir(tmp_path)
    image = np.zeros((64, 128, 3), np.uint8)
    image[:, 64:] = 230
    Image.fromarray(image).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_mask_has_the_size_of_the_photo(photo):
    (result,) = predict(Painter(), photo)
    assert result.semantic_mask.shape == (64, 128) and result.boxes is None
    assert (result.semantic_mask[:, :60] == 0).all() and (result.semantic_mask[:, 68:] == 1).all()
    rows = result.to_dict()["segments"]
    assert [r["name"] for r in rows] == ["dark", "bright"] and sum(r["pixels"] for r in rows) == 64 * 128
    assert json.loads(result.to_json())["segments"] == rows and "bright 50%" in result.verbose()
    table = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert list(table[0]) == ["class", "name", "pixels", "share"] and float(table[0]["share"]) == 0.5


def test_masks_are_saved_as_class_ids_and_as_a_picture_with_a_legend(photo, tmp_path):
    predict(Painter(), photo, save=True, save_mask=True, classes=[1])
    run = tmp_path / "runs/predict/exp"
    assert sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()) == ["masks/photo.png", "photo.png"]
    mask = Image.open(run / "masks/photo.png")
    assert mask.mode == "L" and sorted(set(mask.tobytes())) == [1, 255]
    picture = np.asarray(Image.open(run / "photo.png")).astype(int)
    assert picture.shape == (64, 128, 3) and (picture[40, 20] == 0).all()  # not asked for: left as it was
    assert np.abs(picture[50, 100] - (0.45 * 230 + 0.55 * np.array(class_colour(1)))).max() <= 2
    with pytest.raises(ConfigError, match="save_mask=true for the class of every pixel"):
        predict(Painter(), photo, save_txt=True)


def test_points_are_listed_saved_and_drawn(photo, tmp_path):
    (result,) = predict(Spotter(), photo, save=True, save_txt=True, save_conf=True)
    run = tmp_path / "runs/predict/exp"
    at = result.points.xy.tolist()
    assert at == [[x, y] for y in (4, 20, 36, 52) for x in (72, 104)] and result.points.cls.tolist() == [1] * 8
    lines = (run / "labels/photo.txt").read_text().splitlines()
    assert lines[0] == "1 0.562500 0.062500 0.901961" and len(lines) == 8
    first = {"class": 1, "name": "bright", "confidence": 0.90196, "point": {"x": 72.0, "y": 4.0}}
    assert result.to_dict()["points"][0] == first
    drawn = np.asarray(Image.open(run / "photo.png"))
    assert all((drawn[int(y), int(x)] == class_colour(1)).all() for x, y in at)
    assert len(result[result.points.xy[:, 0] < 80]) == 4 and result.verbose() == "8 bright"
    assert list(csv.DictReader(io.StringIO(result.to_csv())))[0]["x"] == "72.0"


def test_radius_reaches_points_and_is_refused_elsewhere(photo):
    assert len(predict(Spotter(), photo, radius=0)[0]) == 32 and len(predict(Spotter(), photo, radius=3)[0]) == 2
    for given in ({"iou": 0.5}, {"agnostic": True}):
        with pytest.raises(ConfigError, match="no meaning for a point model"):
            predict(Spotter(), photo, **given)
    for given in ({"radius": 1}, {"conf": 0.0}):
        with pytest.raises(ConfigError, match="no meaning for a semantic model"):
            predict(Painter(), photo, **given)
    from libreyolo_core.tasks.detect import DetectTask

    boxes = Predictions(boxes=torch.zeros(1, 1, 4), scores=torch.zeros(1, 1, 2))
    model = types.SimpleNamespace(sheet=sheet(), task=DetectTask(), names=NAMES, imgsz=64, infer=lambda x: boxes)
    with pytest.raises(ConfigError, match="radius=1 has no meaning for a detector"):
        predict(model, photo, radius=1)


def test_points_lie_above_their_labels():
    """A label is never drawn over another point."""
    rows = [[10 + 14.0 * (i % 4), 10 + 12.0 * (i // 4), 0.9, i % 2] for i in range(12)]
    result = Results(PHOTO, "a.jpg", NAMES, points=Points(torch.tensor(rows), (40, 60)))
    drawn = result.plot()[..., ::-1]
    for x, y, _, c in rows:
        if y < 40:
            assert (drawn[int(y), int(x)] == class_colour(int(c))).all()
    small, large = (result.plot(labels=False, conf=False, line_width=r) != PHOTO for r in (1, 4))
    assert 0 < small.any(-1).sum() < large.any(-1).sum()


def test_a_mask_without_names_is_drawn_without_a_legend():
    mask = torch.zeros(40, 60, dtype=torch.int64)
    result = Results(PHOTO, "a.jpg", NAMES, semantic_mask=mask)
    plain = result.plot(labels=False)
    assert len(np.unique(plain.reshape(-1, 3), axis=0)) == 1
    assert result.numpy().semantic_mask.dtype == np.int64 and isinstance(result.cpu().semantic_mask, torch.Tensor)


def test_a_restored_image_is_what_is_plotted_saved_and_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    restored = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    result = Results(PHOTO, "some/photo.jpg", {0: "image"}, restored=restored)
    assert np.array_equal(result.plot(), restored) and len(result) == 1 and result.verbose() == "restored to 60 x 40"
    assert result.save() == "photo_result.png"
    assert np.array_equal(np.asarray(Image.open("photo_result.png"))[..., ::-1], restored)
    assert result.to_dict()["restored_shape"] == [40, 60] and result.to_csv() == "width,height\n60,40\n"
