"""Pictures of the semantic, restoration and point tasks exist, keep their text on the canvas and show true colours."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from libreyolo_core.data.batch import Placement
from libreyolo_core.family import Input
from libreyolo_core.pictures import charts, labels
from libreyolo_core.pictures.masks import blend_mask, legend_panel
from libreyolo_core.pictures.palette import WRONG, class_colour
from libreyolo_core.pictures.restored import ROOM, middle
from libreyolo_core.predictions import Predictions
from libreyolo_core.targets import BoxTargets, ImageTargets, MaskTargets
from libreyolo_core.tasks.point import PointTask
from libreyolo_core.tasks.restore import RestoreTask
from libreyolo_core.tasks.semantic import SemanticTask
from task_fakes import SHEET, batch_of, record, scan_of, sheet

MANY = [f"class number {i}" for i in range(150)]


@pytest.fixture
def saved(monkeypatch):
    """Collects every chart's text that leaves its figure, while the figure still lives."""
    outside = []
    original = charts.save

    def save(fig, path, dpi=110):
        fig.set_dpi(dpi)
        fig.canvas.draw()
        ticks = [t for a in fig.axes for axis in (a.xaxis, a.yaxis) for t in axis.get_ticklabels()]
        for artist in fig.findobj(lambda a: hasattr(a, "get_text") and a.get_text() and a.get_visible()):
            box = artist.get_window_extent()
            if artist not in ticks and (box.x0 < -1 or box.y0 < -1 or box.x1 > fig.bbox.x1 + 1 or box.y1 > fig.bbox.y1):
                outside.append((artist.get_text(), box.bounds))
        return original(fig, path, dpi)

    for module in (charts, labels):
        monkeypatch.setattr(module, "save", save)
    yield
    assert outside == []


def is_picture(path: Path) -> bool:
    """Not blank, and of a size that can be looked at."""
    image = Image.open(path)
    image.load()
    return min(image.size) >= 150 and max(image.size) <= 6000 and np.asarray(image.convert("L")).std() > 5


def near(image, colour, within=12):
    return np.abs(np.asarray(image).astype(int) - colour).max(axis=-1) <= within


def semantic_batch(count, size=(48, 64), nc=3):
    rng = np.random.default_rng(0)
    masks = torch.from_numpy(np.kron(rng.integers(0, nc, (count, 6, 8)), np.ones((8, 8))).astype(np.uint8))
    masks[:, 32:] = 255
    batch = batch_of(range(count))
    batch.images = torch.full((count, 3, *size), 90, dtype=torch.uint8)
    batch.targets = MaskTargets(masks)
    batch.placements = [Placement((64, 128), size, (0.5, 0.5))] * count  # photos fill the upper 32 rows
    return batch


@pytest.mark.parametrize("names", [["crown"], ["ü" * 30, "$5", "a_b"], MANY], ids=["one", "three", "many"])
def test_semantic_validation_writes_its_pictures(tmp_path, names, saved):
    batch = semantic_batch(10, nc=len(names))
    names = dict(enumerate(names))
    records = [record([], path=f"{i}.jpg") for i in range(10)]
    evaluator = SemanticTask().evaluator(scan_of(records, names.values()), SHEET, names)
    logits = (
        torch.nn.functional.one_hot(batch.targets.masks.long() % len(names), len(names)).permute(0, 3, 1, 2).float()
    )
    evaluator.update(Predictions(logits=logits), batch)
    written = evaluator.plot(evaluator.compute(), tmp_path / "new" / "run")
    assert [p.name for p in written] == ["IoU_per_class.png", "confusion_matrix.png", "val_predictions.jpg"]
    assert all(is_picture(p) for p in written)
    shown = [p.shown for p in evaluator.seen.values() if p.shown is not None]
    assert len(shown) == 6 and all(s.image.shape == (32, 64, 3) and s.truth.shape == (32, 64) for s in shown)


@pytest.mark.parametrize("colour", ["rgb", "bgr"])
def test_a_batch_of_masks_is_drawn_in_true_colours(tmp_path, colour):
    batch = semantic_batch(3)
    batch.images[:] = torch.tensor([200, 30, 30] if colour == "rgb" else [30, 30, 200])[:, None, None]
    batch.targets.masks[:] = 0
    batch.targets.masks[:, 40:] = 255
    path = tmp_path / "b.png"
    SemanticTask().plot_batch(batch, {0: "a"}, path, sheet(rule=Input(colour=colour)))
    expected = 0.45 * np.array([200, 30, 30]) + 0.55 * np.array(class_colour(0))
    assert near(Image.open(path).convert("RGB"), expected, 2).mean() > 0.2


def test_an_overlay_leaves_ignored_pixels_or_crosses_them_out():
    image = np.full((20, 20, 3), 100, np.uint8)
    mask = np.full((20, 20), 255)
    mask[:10] = 4
    plain, hatched = blend_mask(image, mask), blend_mask(image, mask, hatched=True)
    assert (plain[10:] == 100).all() and len(np.unique(hatched[10:])) == 2
    assert np.abs(plain[0, 0] - (45 + 0.55 * np.array(class_colour(4)))).max() <= 1 and (image == 100).all()


def test_a_legend_stays_in_the_upper_half_and_counts_what_is_left_out():
    image = np.zeros((100, 300, 3), np.uint8)
    entries = [(class_colour(c), f"class {c}") for c in range(30)]
    drawn = legend_panel(image, entries, 12)
    assert (
        (drawn[50:] == 0).all() and near(drawn, class_colour(0)).sum() >= 100 and not near(drawn, class_colour(9)).any()
    )
    assert (legend_panel(image[:20], entries, 12) == 0).all()  # no room for letters
    long = legend_panel(image, [(class_colour(0), "x" * 300)], 12)
    assert long.shape == image.shape


def test_labels_of_masks_are_drawn_for_any_number_of_classes(tmp_path, saved):
    rng = np.random.default_rng(0)
    for names in (["crown"], ["ü" * 30, "$5", "a_b"], MANY):
        records = [record([], pixels=rng.integers(0, 10**9, len(names))) for _ in range(3)]
        path = tmp_path / f"{len(names)}.png"
        SemanticTask().plot_labels(scan_of(records, names), dict(enumerate(names)), path)
        assert is_picture(path)


def test_restored_photos_are_shown_pixel_for_pixel_beside_input_and_clean(tmp_path):
    evaluator = RestoreTask().evaluator(
        scan_of([record([], path="a.jpg")] * 9), sheet(rule=Input(colour="bgr")), {0: "i"}
    )
    for i in range(9):
        size = (500, 700) if i == 0 else (40, 50)
        batch = batch_of([i])
        batch.placements = [Placement(size, size, (1.0, 1.0))]
        blue, red, green = (torch.tensor(c, dtype=torch.uint8)[None, :, None, None].expand(1, 3, *size) for c in
                            ([200, 30, 30], [30, 30, 200], [30, 200, 30]))  # fmt: skip
        batch.images, batch.targets = blue, ImageTargets(green)
        evaluator.update(Predictions(image=red / 255), batch)
    (path,) = evaluator.plot(evaluator.compute(), tmp_path)
    image = np.asarray(Image.open(path).convert("RGB"))
    for colour in ((30, 30, 200), (200, 30, 30), (30, 200, 30)):
        assert near(image, colour).sum() >= ROOM[0] * ROOM[1]  # a window of the large photo is shown as it is
    assert sum(q.shown is not None for q in evaluator.seen.values()) == 4
    large = np.arange(500 * 700 * 3, dtype=np.int64).reshape(500, 700, 3)
    assert (middle(large) == large[70:430, 110:590]).all()


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_a_batch_of_pairs_shows_each_input_above_its_clean_version(tmp_path, count):
    batch = batch_of(range(count))
    batch.images = torch.full((count, 3, 32, 32), 50, dtype=torch.uint8)
    batch.targets = ImageTargets(torch.full((count, 3, 32, 32), 200, dtype=torch.uint8))
    RestoreTask().plot_batch(batch, {0: "image"}, tmp_path / "b.png", SHEET)
    image = np.asarray(Image.open(tmp_path / "b.png").convert("RGB"))
    dark, light = near(image, (50, 50, 50), 1).sum(), near(image, (200, 200, 200), 1).sum()
    assert dark > 1000 and abs(dark - light) < 0.1 * dark  # letters have shades of their own


def test_restoration_has_no_picture_of_its_labels(tmp_path):
    RestoreTask().plot_labels(scan_of([record([])]), {0: "image"}, tmp_path / "labels.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["tree"], MANY], ids=["one", "many"])
def test_points_write_their_pictures(tmp_path, names, saved):
    records = []
    for i in range(10):
        Image.new("RGB", (80, 80), (60, 60, 60)).save(tmp_path / f"{i}.png")
        rows = [[10, 10, 20, 20, 0], [50, 50, 60, 60, len(names) - 1]]
        records.append(record([] if i == 3 else rows, (80, 80), path=str(tmp_path / f"{i}.png")))
    evaluator = PointTask().evaluator(scan_of(records, names), SHEET, dict(enumerate(names)))
    scores = torch.zeros(10, 1 + len(names), 8, 8)
    scores[:, 1, 1, 1], scores[:, 1, 1, 6] = 0.9, 0.9  # one right, one wrong, one missed
    evaluator.update(Predictions(scores=scores), batch_of(range(10), [(80, 80)] * 10))
    written = evaluator.plot(evaluator.compute(), tmp_path / "run")
    assert [p.name for p in written] == ["F1_curve.png", "val_predictions.jpg"] and all(is_picture(p) for p in written)
    shown = Image.open(written[1]).convert("RGB")
    assert near(shown, class_colour(0), 40).sum() > 300 and near(shown, WRONG, 60).sum() > 100


def test_pictures_of_points_that_found_nothing_are_written_too(tmp_path, saved):
    Image.new("RGB", (80, 80), (60, 60, 60)).save(tmp_path / "a.png")
    scan = scan_of([record([[10, 10, 20, 20, 0]], (80, 80), path=str(tmp_path / "a.png"))])
    evaluator = PointTask().evaluator(scan, SHEET, {0: "cat", 1: "dog"})
    evaluator.update(Predictions(scores=torch.zeros(1, 3, 8, 8)), batch_of([0], [(80, 80)]))
    assert all(p.exists() for p in evaluator.plot(evaluator.compute(), tmp_path / "run"))


def test_a_batch_of_points_shows_the_centres_of_boxes(tmp_path):
    batch = batch_of([0])
    batch.images = torch.full((1, 3, 96, 96), 60, dtype=torch.uint8)
    batch.targets = BoxTargets.pad([torch.tensor([[20.0, 20, 60, 60]])], [torch.tensor([1])])
    PointTask().plot_batch(batch, {0: "cat", 1: "dog"}, tmp_path / "b.png", SHEET)
    found = near(Image.open(tmp_path / "b.png").convert("RGB"), class_colour(1), 5)
    assert 20 < found[:-40].sum() < 200  # above the legend there is one disc, no box


def test_many_points_are_not_hidden_by_their_labels():
    from libreyolo_core.pictures.boxes import draw_points

    photo = np.full((400, 400, 3), 90, np.uint8)
    at = np.stack(np.meshgrid(np.arange(20, 400, 40), np.arange(20, 400, 40)), axis=-1).reshape(-1, 2)

    def touched(count: int, text: str) -> float:
        drawn = draw_points(photo, at[:count], [text] * count, [(30, 130, 230)] * count)
        return float((drawn != photo).any(axis=2).mean())

    assert touched(3, "tree 0.87") > 2 * touched(3, ""), "a few points have their labels"
    assert touched(100, "tree 0.87") == touched(100, ""), "a hundred stand alone"
