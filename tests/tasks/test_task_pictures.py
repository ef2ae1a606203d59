"""Every picture of a task exists, has a sensible size, keeps its text on the canvas, and shows true colours."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.family import Input, Post
from libreyolo_core.pictures import charts, confusion, labels, runs
from libreyolo_core.pictures.palette import class_colour
from libreyolo_core.pictures.text import width
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets, ClassTargets
from libreyolo_core.tasks.classify import ClassifyTask
from libreyolo_core.tasks.detect import DetectTask
from task_fakes import SHEET, batch_of, class_scan, predictions_of, record, scan_of, sheet

COCO_LIKE = [f"class number {i}" for i in range(80)]


@pytest.fixture
def saved(monkeypatch):
    """Collects every chart's text that leaves its figure, while the figure still lives."""
    outside = []

    def save(fig, path, dpi=110):
        fig.set_dpi(dpi)
        fig.canvas.draw()
        room = fig.bbox
        for artist in fig.findobj(lambda a: hasattr(a, "get_text") and a.get_text() and a.get_visible()):
            box = artist.get_window_extent()
            if box.x0 < -1 or box.y0 < -1 or box.x1 > room.x1 + 1 or box.y1 > room.y1 + 1:
                if any(artist in axis.get_ticklabels() for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
                    continue  # ticks beyond the limits are laid out but not drawn
                outside.append((artist.get_text(), box.bounds))
        return charts_save(fig, path, dpi)

    charts_save = charts.save
    for module in (charts, labels, runs):
        monkeypatch.setattr(module, "save", save)
    yield outside
    assert outside == []


def photo_files(folder, count, size=(64, 48)):
    paths = []
    for i in range(count):
        image = Image.new("RGB", size, (40, 40, 40))
        image.paste((220, 30, 30), (8, 8, 40, 32))
        image.save(folder / f"photo {i}.png")
        paths.append(str(folder / f"photo {i}.png"))
    return paths


def detect_run(tmp_path, names, count=10, rows=None):
    paths = photo_files(tmp_path, count)
    rows = rows if rows is not None else [[8, 8, 40, 32, 0]]
    records = [record([] if i == 3 else rows, (48, 64), path=p) for i, p in enumerate(paths)]
    post = Post("best", nms=True, val_conf=0.001)
    evaluator = DetectTask().evaluator(scan_of(records, names), sheet(post=post), dict(enumerate(names)))
    found = [[[9, 8, 40, 31, 0.6, 0], [50, 0, 60, 9, 0.3, len(names) - 1]]] * count
    evaluator.update(predictions_of(found, len(names)), batch_of(range(count), [(48, 64)] * count))
    return evaluator


@pytest.mark.parametrize("names", [["tree"], ["$5", "a_b", "ü" * 30], COCO_LIKE], ids=["one", "three", "eighty"])
def test_detection_writes_its_pictures(tmp_path, names, saved):
    evaluator = detect_run(tmp_path, names)
    out = tmp_path / "new" / "run"
    paths = evaluator.plot(evaluator.compute(), out)
    assert [p.name for p in paths] == ["PR_curve.png", "F1_curve.png", "confusion_matrix.png", "val_predictions.jpg"]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in paths)
    for path in paths:
        image = Image.open(path)
        image.load()
        assert min(image.size) >= 300 and max(image.size) <= 6000
        assert np.asarray(image.convert("L")).std() > 5  # not a blank sheet


def test_pictures_of_a_run_that_found_nothing_are_written_too(tmp_path, saved):
    evaluator = detect_run(tmp_path, ["tree"], count=2)
    evaluator.found = {i: np.zeros((0, 6), np.float32) for i in evaluator.found}
    assert all(p.exists() for p in evaluator.plot(evaluator.compute(), tmp_path / "run"))


def test_a_photo_that_has_gone_is_left_out_of_the_picture_and_named(tmp_path, caplog):
    evaluator = detect_run(tmp_path, ["tree"], count=3)
    metrics = evaluator.compute()
    (tmp_path / "photo 1.png").unlink()
    assert all(p.exists() for p in evaluator.plot(metrics, tmp_path / "run")) and "photo 1.png" in caplog.text
    for name in ("photo 0.png", "photo 2.png"):
        (tmp_path / name).unlink()
    assert "val_predictions.jpg" not in [p.name for p in evaluator.plot(metrics, tmp_path / "none")]


def test_at_most_eight_photos_are_shown_spread_over_those_with_objects(tmp_path):
    evaluator = detect_run(tmp_path, ["tree"], count=20)
    shown = [int(path.split()[-1][:-4]) for path, _, _ in evaluator._shown(0.5)]
    assert len(shown) == 8 and 3 not in shown and shown[0] == 0 and shown[-1] >= 17
    assert all((rows[:, 4] > 0.5).all() for _, _, rows in evaluator._shown(0.5))
    few = detect_run(tmp_path, ["tree"], count=5)
    assert [int(path.split()[-1][:-4]) for path, _, _ in few._shown(0.5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("k", [2, 5, 20, 81])
def test_numbers_of_a_confusion_cell_fit_it_and_can_be_read(tmp_path, k):
    cell, size, _ = confusion.cell_px(k)
    assert size >= 10 and 2 * size * 1.24 < cell  # 10 pixels are what a screen's smallest text has
    for count in (0, 7, 999, 99_999, 100_000, 123_456_789, 10**12):
        assert max(width("0.88", size), width(confusion.compact(count), size)) < cell
    names = ["x" * 60, *(f"class number {i}" for i in range(k - 1))]
    confusion.confusion_picture(np.full((k, k), 12345), names, tmp_path / "c.png", note="n" * 60, background=True)
    image = np.asarray(Image.open(tmp_path / "c.png"))
    for border in (image[:4], image[-4:], image[:, :4], image[:, -4:]):
        assert (border == 255).all()  # nothing is cut off


def test_shares_are_of_the_true_class_and_the_background_column_is_not_shaded(tmp_path):
    counts = np.array([[1, 0, 9], [3, 0, 0], [0, 2, 0]])
    confusion.confusion_picture(counts, ["a", "b", "background"], tmp_path / "c.png", background=True)
    image = np.asarray(Image.open(tmp_path / "c.png"))
    cell = confusion.cell_px(3)[0]
    top, left = [
        int(v[0]) + 1 for v in ((image.max(2) < 60).sum(1).argsort()[-1:], (image.max(2) < 60).sum(0).argsort()[-1:])
    ]
    top, left = (top - 1 - 3 * cell if top > 3 * cell else top), (left - 1 - 3 * cell if left > 3 * cell else left)

    def shade(row, column):
        return int(image[top + row * cell + 6, left + column * cell + 6, 0])

    assert shade(0, 2) == shade(0, 1) == 255 and shade(1, 0) < shade(0, 0) < 255 and shade(2, 1) == confusion.DEEP[0]


@pytest.mark.parametrize("nc", [2, 10, 1000])
def test_classification_writes_its_pictures(tmp_path, nc, saved):
    paths = photo_files(tmp_path, 9)
    names = [f"species {i}" for i in range(nc)]
    evaluator = ClassifyTask().evaluator(
        class_scan([i % nc for i in range(9)], names, paths), SHEET, dict(enumerate(names))
    )
    logits = torch.zeros(9, nc)
    logits[torch.arange(9), torch.tensor([i % nc if i % 3 else (i + 1) % nc for i in range(9)])] = 5
    evaluator.update(Predictions(logits=logits), batch_of(range(9)))
    written = evaluator.plot(evaluator.compute(), tmp_path / "run")
    assert [p.name for p in written] == ["confusion_matrix.png", "val_predictions.jpg"]
    shown = np.asarray(Image.open(written[1]).convert("RGB")).reshape(-1, 3).astype(int)
    for frame in ((24, 121, 78), (201, 42, 42)):  # right and wrong are framed in their colours
        assert (np.abs(shown - frame).sum(1) < 40).sum() > 1000


@pytest.mark.parametrize("colour", ["rgb", "bgr"])
def test_the_training_batch_is_drawn_in_true_colours_with_its_boxes(tmp_path, colour):
    red = torch.tensor([200, 30, 30] if colour == "rgb" else [30, 30, 200], dtype=torch.uint8)
    batch = batch_of(range(20))
    batch.images = red[None, :, None, None].expand(20, 3, 96, 96)
    boxes = [torch.tensor([[10.0, 10, 60, 50], [70, 70, 90, 90]])] * 19 + [torch.zeros(0, 4)]
    batch.targets = BoxTargets.pad(boxes, [torch.tensor([0, 1])] * 19 + [torch.zeros(0)])
    path = tmp_path / "train_batch0.png"
    DetectTask().plot_batch(batch, {0: "cat", 1: "dog"}, path, replace(SHEET, input=Input(colour=colour)))
    image = np.asarray(Image.open(path).convert("RGB"))
    assert (image == (200, 30, 30)).all(-1).mean() > 0.4
    for c in (0, 1):
        assert (image == class_colour(c)).all(-1).sum() > 16 * 100
    assert max(image.shape) < 2200


def test_a_batch_of_classes_is_drawn_with_names_or_shares(tmp_path):
    from libreyolo_core.pictures.batch import _caption

    names = {0: "cat", 1: "dog", 2: "cow"}
    assert _caption(torch.tensor(2), names) == "cow" and _caption(torch.tensor([0.0, 1, 0]), names) == "dog"
    assert _caption(torch.tensor([0.7, 0.0, 0.3]), names) == "0.70 cat + 0.30 cow"
    batch = batch_of(range(4))
    batch.images, batch.targets = torch.zeros(4, 3, 32, 32, dtype=torch.uint8), ClassTargets(torch.tensor([0, 1, 2, 0]))
    ClassifyTask().plot_batch(batch, names, tmp_path / "b.jpg", SHEET)
    assert min(Image.open(tmp_path / "b.jpg").size) > 200


@pytest.mark.parametrize("names", [["tree"], COCO_LIKE], ids=["one", "eighty"])
def test_labels_are_drawn_for_any_number_of_classes(tmp_path, names, saved):
    rng = np.random.default_rng(0)
    records = []
    for _ in range(30):
        n = int(rng.integers(0, 40))
        at = rng.uniform(0, 60, (n, 2))
        rows = np.hstack([at, at + rng.uniform(2, 40, (n, 2)), rng.integers(0, len(names), (n, 1))])
        records.append(record(rows, crowd=rng.random(n) < 0.1))
    path = tmp_path / "labels.png"
    DetectTask().plot_labels(scan_of(records, names), dict(enumerate(names)), path)
    assert min(Image.open(path).size) > 800


def test_labels_of_a_classifier_and_of_an_empty_split_are_drawn(tmp_path, saved):
    DetectTask().plot_labels(scan_of([record([])]), {0: "cat", 1: "dog"}, tmp_path / "empty.png")
    ClassifyTask().plot_labels(class_scan([0] * 5, COCO_LIKE), dict(enumerate(COCO_LIKE)), tmp_path / "labels.png")
    assert Image.open(tmp_path / "empty.png").width > 800 and Image.open(tmp_path / "labels.png").width > 600


def test_examples_are_the_same_for_the_same_seed():
    for task in (DetectTask(), ClassifyTask()):
        one, two = (task.example(SHEET, 3, size=(32, 64), counts=[0, 2, 5], seed=4) for _ in range(2))
        assert one.images.shape == (3, 3, 32, 64) and torch.equal(one.images, two.images)
    assert DetectTask().example(SHEET, 3, size=(32, 64), counts=[0, 2, 5]).targets.valid.sum(1).tolist() == [0, 2, 5]


def test_curves_of_a_run_are_drawn_from_its_table(tmp_path, saved):
    table = tmp_path / "results.csv"
    table.write_text("epoch,train/box,metrics/mAP50,lr/group0\n1,2.5,,0.01\n2,2.0,0.1,0.008\n3,nan,0.2,0.006\n")
    series = runs.read_series(table)
    assert series["train/box"] == [(1, 2.5), (2, 2.0)] and series["metrics/mAP50"] == [(2, 0.1), (3, 0.2)]
    assert list(series) == ["train/box", "metrics/mAP50", "lr/group0"]
    assert runs.plot_results(table, tmp_path / "results.png") == tmp_path / "results.png"
    table.write_text("epoch,train/box\n")
    assert runs.plot_results(table, tmp_path / "none.png") is None and not (tmp_path / "none.png").exists()


def test_drawing_leaves_a_users_own_matplotlib_settings_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    backend = matplotlib.get_backend(auto_select=False)
    charts.precision_recall(np.ones((1, 101)), np.ones(1), ["cat"], tmp_path / "p.png")
    assert dict(matplotlib.rcParams) == before and matplotlib.get_backend(auto_select=False) == backend
