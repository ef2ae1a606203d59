"""Labels stay on the canvas, apart from each other, and readable; colours tell classes apart."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from libreyolo_core.pictures import text
from libreyolo_core.pictures.boxes import draw_boxes, draw_labels, fit, font_px, line_px, write_lines
from libreyolo_core.pictures.grid import sheet, write
from libreyolo_core.pictures.palette import class_colour, text_on

LONG = "a class name that no small picture has room for 0.99"


def places(size, corners, labels, px):
    canvas = Image.new("RGB", (size[1], size[0]))
    return draw_labels(ImageDraw.Draw(canvas), size, np.array(corners), labels, [(9, 9, 9)] * len(labels), px)


@pytest.mark.parametrize("size", [(32, 40), (64, 64), (200, 90), (480, 640)])
@pytest.mark.parametrize("label", ["tree 0.85", LONG])
def test_labels_never_leave_the_canvas(size, label):
    h, w = size
    corners = [[0, 0, w - 1, h - 1], [w - 3, h - 3, w - 1, h - 1], [w // 2, 0, w - 1, 4], [0, h - 2, 4, h - 1]]
    for x1, y1, x2, y2 in places(size, corners, [label] * 4, font_px(h, w)):
        assert 0 <= x1 < x2 <= w and 0 <= y1 < y2 <= h
    fitted, px = fit(label, font_px(h, w), size)
    assert text.width(fitted, px) <= w and px >= 7


def test_labels_of_neighbours_do_not_cover_each_other():
    corners = [[100, 100, 180, 180], [104, 102, 184, 182], [300, 100, 380, 180], [102, 98, 182, 178]]
    taken = places((480, 640), corners, ["tree 0.85"] * 4, 14)
    for i, (a1, b1, a2, b2) in enumerate(taken):
        for c1, d1, c2, d2 in taken[:i]:
            assert min(a2, c2) <= max(a1, c1) or min(b2, d2) <= max(b1, d1)


def test_a_label_at_the_upper_border_moves_inside_its_box():
    ((x1, y1, _, _),) = places((480, 640), [[50, 2, 200, 300]], ["tree"], 14)
    assert (x1, y1) == (50, 2)


def test_lines_and_letters_grow_with_the_picture():
    assert line_px(64, 64) == 1 and font_px(64, 64) == 7
    assert [line_px(s, s) for s in (416, 640, 1280, 4000)] == sorted(line_px(s, s) for s in (416, 640, 1280, 4000))
    assert 12 <= font_px(640, 640) <= 16 < font_px(1280, 1280) < font_px(4000, 4000) <= 64


def test_boxes_beyond_the_border_show_their_edge_on_the_last_pixel():
    drawn = draw_boxes(np.zeros((40, 60, 3), np.uint8), np.array([[-20, -20, 100, 100]]), [""], [(255, 0, 0)])
    assert (drawn[0, :, 0] == 255).all() and (drawn[-1, :, 0] == 255).all() and (drawn[20, [0, -1], 0] == 255).all()
    assert (drawn[10:30, 10:50] == 0).all()


def test_a_thick_line_does_not_fill_a_small_box():
    drawn = draw_boxes(np.zeros((60, 60, 3), np.uint8), np.array([[20, 20, 28, 28]]), [""], [(255, 0, 0)], line=9)
    assert drawn[24, 24, 0] == 0 and drawn[20, 24, 0] == 255


def test_a_picture_too_small_for_letters_gets_boxes_alone():
    drawn = draw_boxes(np.zeros((6, 6, 3), np.uint8), np.array([[1, 1, 4, 4]]), ["tree"], [(255, 0, 0)])
    assert drawn.shape == (6, 6, 3) and drawn[1, 1, 0] == 255
    assert write_lines(np.zeros((6, 6, 3), np.uint8), ["tree"], 9).shape == (6, 6, 3)


def test_text_contrasts_with_its_background():
    for c in range(80):
        r, g, b = (v / 255 for v in class_colour(c))
        light = 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2
        ink = 1.0 if text_on(class_colour(c)) == (255, 255, 255) else 0.0
        bright, dark = max(light, ink), min(light, ink)
        assert (bright + 0.05) / (dark + 0.05) >= 4.4  # WCAG asks for 4.5; the best possible is at least 4.58


def test_neighbouring_classes_differ_in_colour():
    for c in range(79):
        difference = np.abs(np.subtract(class_colour(c), class_colour(c + 1))).sum()
        assert difference > 100
    assert len({class_colour(c) for c in range(80)}) == 80


def test_shortened_text_fits_and_keeps_what_matters():
    assert text.shorten("short", 12, 200) == "short"
    cut = text.shorten(LONG, 12, 100)
    assert cut.endswith("…") and text.width(cut, 12) <= 100
    name = text.shorten_middle("a_very_long_folder_of_photos_0001.jpg", 12, 120)
    assert name.endswith("01.jpg") and name.startswith("a_v") and text.width(name, 12) <= 120


def test_names_in_scripts_without_a_font_are_told_in_the_log(monkeypatch, caplog):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    text._system_font.cache_clear()
    text.font(12, "树")
    assert "fonts-noto-cjk" in caplog.text
    text._system_font.cache_clear()


def test_sheets_hold_every_tile_caption_and_legend_entry():
    tiles = [np.full((40, 60, 3), 50 * i, np.uint8) for i in range(1, 4)] + [np.full((20, 60, 3), 200, np.uint8)]
    legend = [(class_colour(c), f"class {c}") for c in range(12)]
    picture = sheet(tiles, 2, captions=["one", "two", ("three", (200, 0, 0)), LONG], heading="Heading", legend=legend)
    assert picture.shape[1] == 3 * 8 + 2 * 60
    for i in range(1, 4):
        assert (picture == 50 * i).all(-1).sum() >= 40 * 60
    for c in range(12):
        assert (picture == class_colour(c)).all(-1).sum() >= 15 * 15
    assert (picture[:, -8:] == 255).all() and (picture[-4:] == 255).all()  # nothing is cut off at the borders


def test_pictures_are_written_by_suffix_into_folders_that_are_made(tmp_path):
    image = np.zeros((8, 8, 3), np.uint8)
    for name in ("a.jpg", "b.PNG", "c/d.webp"):
        assert Image.open(write(image, tmp_path / name)).size == (8, 8)
