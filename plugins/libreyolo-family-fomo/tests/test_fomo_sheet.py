"""What the data sheet says."""

from dataclasses import replace

import pytest

from libreyolo_core.engine.plan import check_imgsz, scratch
from libreyolo_core.errors import ConfigError
from libreyolo_core.hub import find, named_by_file
from libreyolo_family_fomo.plugin import FOMO as FAMILY


def test_another_input_size_is_refused_with_the_one_that_is_possible(sheet):
    with pytest.raises(ConfigError, match="use imgsz=96"):
        check_imgsz(sheet.for_size("s"), 320, sheet.sizes["s"].imgsz)


def test_names_of_weight_files_carry_the_task():
    families = {"fomo": FAMILY}
    assert find("LibreFOMOm-point.pt", families).size == "m"
    assert find("LibreFOMOm.pt", families) is None
    assert find("fomo-l", families).size == "l"
    assert named_by_file("LibreFOMOs-point-nuts.pt", families) == [("fomo", "s", "")]


def test_nothing_is_augmented_unless_asked_for(sheet):
    assert {a.name: a.p for a in sheet.augment} == {"hsv": 0.0, "rotate90": 0.0, "flip": 0.0, "flip_vertical": 0.0}


def test_a_run_without_weights_learns_faster(sheet):
    assert scratch(sheet).recipe.optimizer.lr == 2e-3
    assert replace(scratch(sheet).recipe, optimizer=sheet.recipe.optimizer) == sheet.recipe


def test_defaults_are_those_of_the_original(sheet):
    recipe = sheet.recipe
    assert (recipe.optimizer.name, recipe.optimizer.lr, recipe.optimizer.decay) == ("adam", 3e-4, 0.0)
    assert (recipe.epochs, recipe.batch, recipe.schedule.anneal, recipe.schedule.to) == (40, 32, "cosine", 0.05)
    assert recipe.schedule.warmup == 0 and not recipe.ema.on and recipe.clip is None and not recipe.drop_last
    assert not sheet.precision.amp and sheet.precision.why
    assert sheet.ranks.sync_bn and sheet.ranks.spawn
    assert (sheet.post.radius, sheet.post.max_det) == (1, 300)
