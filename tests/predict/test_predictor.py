"""Prediction end to end with stand-in models: batches, thresholds, files, errors."""

import json
import logging
import types

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.errors import ConfigError, DataError, ImageError, LibreYOLOError, UnknownNameError
from libreyolo_core.family import Input, Post
from libreyolo_core.prediction_files import safe_name
from libreyolo_core.predictions import Predictions
from libreyolo_core.predictor import input_size, predict
from libreyolo_core.results import Results
from libreyolo_core.tasks.classify import ClassifyTask
from libreyolo_core.tasks.detect import DetectTask
from task_fakes import sheet


class Finder:
    """Finds one box, the bright pixels of each image; its class is the brightest channel of the network's input."""

    def __init__(self, rule=None, post=None, nc=3):
        self.sheet = sheet(rule=rule or Input(fit="letterbox", multiple=32), post=post or Post("best", nms=True))
        self.task, self.names, self.nc, self.imgsz = (
            DetectTask(),
            dict(enumerate(["first", "second", "third"][:nc])),
            nc,
            64,
        )
        self.device, self.seen = torch.device("cpu"), []

    def infer(self, images):
        assert images.dtype == torch.uint8 and images.is_contiguous()
        self.seen.append(tuple(images.shape))
        boxes, scores = torch.zeros(len(images), 2, 4), torch.zeros(len(images), 2, self.nc)
        for i, image in enumerate(images):
            rows, columns = (image.amax(0) > 150).nonzero(as_tuple=True)
            boxes[i, 0] = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            colour = image[:, rows[0], columns[0]].int()
            scores[i, 0, int(colour.argmax())] = 0.9
            boxes[i, 1], scores[i, 1, 0] = torch.tensor([0.0, 0, 8, 8]), 0.3
        return Predictions(boxes=boxes, scores=scores)


class Namer:
    """Classifies by the mean brightness."""

    def __init__(self):
        self.sheet, self.task, self.names, self.imgsz = (
            sheet(rule=Input(fit="crop", multiple=8)),
            ClassifyTask(),
            {0: "dark", 1: "light"},
            32,
        )
        self.device = torch.device("cpu")

    def infer(self, images):
        light = images.float().mean(dim=(1, 2, 3)) / 255
        return Predictions(logits=torch.stack([1 - light, light], 1) * 10)


def picture(path, colour=(200, 0, 0), size=(128, 64), box=(32, 16, 96, 48)):
    image = Image.new("RGB", size, (20, 20, 20))
    image.paste(colour, box)
    image.save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, colour in enumerate([(200, 0, 0), (0, 200, 0), (0, 0, 200)]):
        picture(folder / f"{i}.png", colour)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test runs in its own empty folder."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"


def test_boxes_are_found_where_they_are_in_the_photo(photos):
    (result,) = predict(Finder(), photos / "0.png")
    assert result.boxes.xyxy[0].tolist() == [32, 16, 96, 48] and result.orig_shape == (64, 128)
    assert result.orig_img[20, 40].tolist() == [0, 0, 200]  # BGR
    assert set(result.speed) == {"preprocess", "inference", "postprocess"} and all(v > 0 for v in result.speed.values())


@pytest.mark.parametrize("colour", ["rgb", "bgr"])
def test_the_network_sees_its_own_channel_order(photos, colour):
    classes = [int(r.boxes.cls[0]) for r in predict(Finder(Input(colour=colour)), photos)]
    assert classes == ([0, 1, 2] if colour == "rgb" else [2, 1, 0])


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_batches_change_nothing_but_the_number_of_calls(photos, batch):
    model = Finder()
    results = predict(model, photos, batch=batch)
    assert [r.to_dict()["detections"] for r in results] == [
        predict(Finder(), photos / f"{i}.png")[0].to_dict()["detections"] for i in range(3)
    ]
    assert [s[0] for s in model.seen] == {1: [1, 1, 1], 2: [2, 1], 3: [3], 8: [3]}[batch]


def test_a_stream_reads_only_what_is_asked_for(photos):
    model = Finder()
    stream = predict(model, photos, stream=True)
    assert model.seen == [] and isinstance(next(stream), Results) and len(model.seen) == 1
    stream.close()


def test_thresholds_reach_the_task(photos):
    one = photos / "0.png"
    assert len(predict(Finder(), one)[0]) == 2
    assert len(predict(Finder(), one, conf=0.5)[0]) == 1
    assert len(predict(Finder(), one, max_det=1)[0]) == 1
    assert predict(Finder(), photos / "1.png", classes=[1])[0].boxes.cls.tolist() == [1]
    assert len(predict(Finder(post=Post("best", conf=0.95)), one)[0]) == 0


@pytest.mark.parametrize("given", [{"iou": 0.5}, {"iou": 0.0}, {"agnostic": True}])
def test_thresholds_of_suppression_are_refused_where_there_is_none(photos, given):
    with pytest.raises(ConfigError, match="has no meaning for a family without non-maximum suppression"):
        predict(Finder(post=Post("topk", nms=False)), photos / "0.png", **given)


def test_a_classifier_gives_probabilities(photos):
    (result,) = predict(Namer(), photos / "0.png")
    assert result.probs.top1 == 0 and float(result.probs.data.sum()) == pytest.approx(1) and result.boxes is None
    with pytest.raises(ConfigError, match="conf=0.5 has no meaning for a classifier"):
        predict(Namer(), photos / "0.png", conf=0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"conf": 5}, "conf=5 is out of range"),
        ({"iou": -1}, "iou=-1"),
        ({"max_det": 0}, "max_det=0"),
        ({"batch": 0}, "batch=0"),
        ({"imgsz": "big"}, "imgsz='big'"),
        ({"confidence": 0.5}, "Unknown argument 'confidence'.*'conf'"),
        ({"classes": [7]}, r"no class 7.*0 first"),
        ({"save_conf": True}, "save_txt=true"),
        ({"vid_stride": 0}, "vid_stride=0"),
    ],
)
def test_arguments_are_checked_before_anything_starts(photos, given, words, elsewhere):
    model = Finder()
    with pytest.raises(ConfigError, match=words):
        predict(model, photos, stream=True, save=True, **given) if "save_conf" not in given else predict(
            model, photos, **given
        )
    assert model.seen == [] and list(elsewhere.iterdir()) == []


def test_a_source_that_is_not_there_leaves_no_folder(elsewhere, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        predict(Finder(), "missing.jpg", save=True)
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(ImageError, match="bad.jpg"):
        predict(Finder(), tmp_path / "bad.jpg", save=True)
    assert list(elsewhere.iterdir()) == []


def test_imgsz_is_rounded_up_with_a_line_in_the_log(photos, caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    model = Finder()
    predict(model, photos / "0.png", imgsz=100)
    assert model.seen == [(1, 3, 128, 128)] and "imgsz=100 is no multiple of 32; using 128" in caplog.text


def test_a_fixed_input_takes_its_own_size_only():
    rule = Input(fixed=True)
    assert input_size(rule, 640, None) == input_size(rule, 640, 640) == (640, 640)
    with pytest.raises(ConfigError, match="imgsz=320 is not possible.*640"):
        input_size(rule, 640, 320)


def test_saving_writes_pictures_labels_and_crops_into_one_run_folder(photos, elsewhere):
    results = predict(Finder(), photos, save=True, save_txt=True, save_conf=True, save_crop=True, conf=0.5)
    run = elsewhere / "runs" / "predict" / "exp"
    assert [r.save_dir for r in results] == [str(run.relative_to(elsewhere))] * 3
    assert sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()) == [
        "0.png", "1.png", "2.png", "crops/first/0_0.jpg", "crops/second/1_0.jpg", "crops/third/2_0.jpg",
        "labels/0.txt", "labels/1.txt", "labels/2.txt",
    ]  # fmt: skip
    assert (run / "labels" / "1.txt").read_text() == "1 0.500000 0.500000 0.500000 0.500000 0.900000\n"
    assert Image.open(run / "0.png").size == (128, 64) and Image.open(run / "crops/first/0_0.jpg").size == (64, 32)
    crop = np.asarray(Image.open(run / "crops/second/1_0.jpg"))[16, 32]
    assert crop[1] > 150 > max(crop[0], crop[2]) and list(elsewhere.iterdir()) == [elsewhere / "runs"]


def test_runs_get_folders_of_their_own_and_names_are_kept_inside(photos, elsewhere):
    one = photos / "0.png"
    assert [predict(Finder(), one, save=True)[0].save_dir[-4:] for _ in range(2)] == ["/exp", "exp2"]
    assert predict(Finder(), one, save=True, project="p", name="n")[0].save_dir == "p/n"
    with pytest.raises(LibreYOLOError, match="exists"):
        predict(Finder(), one, save=True, project="p", name="n")
    assert predict(Finder(), one, save=True, project="p", name="n", exist_ok=True)[0].save_dir == "p/n"
    with pytest.raises(LibreYOLOError, match="leaves the project"):
        predict(Finder(), one, save=True, name="../../x")


def test_photos_of_equal_names_do_not_overwrite_each_other(photos, elsewhere, tmp_path):
    (tmp_path / "other").mkdir()
    second = picture(tmp_path / "other" / "0.png", (0, 200, 0))
    predict(Finder(), [photos / "0.png", second, photos / "0.png"], save=True, save_txt=True)
    run = elsewhere / "runs/predict/exp"
    assert sorted(p.name for p in run.glob("*.png")) == ["0.png", "0_2.png", "0_3.png"]
    assert (run / "labels/0_2.txt").read_text().startswith("1 ")


def test_what_came_from_memory_is_saved_under_its_number(elsewhere):
    image = np.full((32, 32, 3), 200, np.uint8)
    predict(Finder(), [image, Image.fromarray(image)], save=True)
    assert sorted(p.name for p in (elsewhere / "runs/predict/exp").iterdir()) == ["image0.jpg", "image1.jpg"]


def test_background_photos_leave_an_empty_label_file(photos, elsewhere):
    predict(Finder(post=Post(conf=0.99)), photos / "0.png", save_txt=True)
    assert (elsewhere / "runs/predict/exp/labels/0.txt").read_text() == ""


def test_labels_of_a_classifier_are_its_best_classes_and_it_has_no_crops(photos, elsewhere):
    predict(Namer(), photos / "0.png", save_txt=True)
    assert (elsewhere / "runs/predict/exp/labels/0.txt").read_text() == "0\n1\n"
    with pytest.raises(ConfigError, match="save_crop"):
        predict(Namer(), photos / "0.png", save_crop=True)
    assert [p.name for p in (elsewhere / "runs/predict").iterdir()] == ["exp"]


def test_videos_are_saved_as_videos_of_the_same_length_and_speed(tmp_path, elsewhere):
    clip = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 32))
    for i in range(5):
        frame = np.zeros((32, 64, 3), np.uint8)
        frame[8:24, 8 + 4 * i : 24 + 4 * i] = 230
        writer.write(frame)
    writer.release()
    results = predict(Finder(), clip, save=True, save_txt=True, batch=2)
    assert [r.frame for r in results] == [0, 1, 2, 3, 4] and results[3].to_dict()["frame"] == 3
    run = elsewhere / "runs/predict/exp"
    (file,) = [p for p in run.iterdir() if p.is_file()]
    stream = cv2.VideoCapture(str(file))
    assert file.stem == "clip" and stream.get(cv2.CAP_PROP_FRAME_COUNT) == 5 and stream.get(cv2.CAP_PROP_FPS) == 10
    assert sorted(p.name for p in (run / "labels").iterdir()) == [f"clip_{i:06d}.txt" for i in range(5)]


def test_file_names_from_class_names_and_urls_are_harmless():
    assert safe_name("../../etc/passwd") == "_.._etc_passwd" and safe_name("a/b: c?") == "a_b_ c_"
    assert safe_name("..") == "image" and len(safe_name("x" * 999)) == 100


def test_one_line_per_photo_tells_what_was_found(photos, caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    predict(Finder(), photos, conf=0.5)
    assert "2/3" in caplog.text and "1.png, 128 x 64: 1 second, " in caplog.text
    caplog.clear()
    predict(Finder(), photos, verbose=False)
    assert caplog.text == ""


def test_prediction_prints_nothing_on_stdout(photos, capfd):
    results = predict(Finder(), photos, save=True)
    print(json.dumps([r.to_dict() for r in results]))
    assert len(json.loads(capfd.readouterr().out)) == 3


def test_category_ids_of_the_model_reach_the_results(photos):
    model = Finder()
    model.category_ids = {0: 7, 1: 90, 2: 1000}
    assert predict(model, photos / "2.png", conf=0.5)[0].to_dict()["detections"][0]["category_id"] == 1000


def test_inference_time_ends_when_the_device_is_done(photos, monkeypatch):
    waited = []
    monkeypatch.setattr("libreyolo_core.predictor.synchronise", waited.append)
    predict(Finder(), photos, batch=2)
    assert len(waited) == 2


def test_showing_without_a_screen_uses_the_viewer_for_photos_and_refuses_videos(photos, monkeypatch, tmp_path):
    from libreyolo_core.sources import Photo
    from libreyolo_core.window import Window

    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("libreyolo_core.window.sys", types.SimpleNamespace(platform="linux"))
    shown = []
    monkeypatch.setattr(Results, "show", lambda self: shown.append(self.path))
    predict(Finder(), photos / "0.png", show=True)
    assert shown == [str(photos / "0.png")]
    result = predict(Finder(), photos / "0.png")[0]
    with Window() as window, pytest.raises(LibreYOLOError, match="save=true"):
        window.show(Photo(result.orig_img, "clip.avi", "video", frame=0), result)


def test_an_unknown_option_is_named(photos):
    with pytest.raises((ConfigError, UnknownNameError), match="augment"):
        predict(Finder(), photos, augment=True)
