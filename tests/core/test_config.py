"""Training arguments: one resolution order, everything validated before anything starts."""

import pytest

from libreyolo_core.config import PredictArgs, make_args, read_yaml_arguments, resolve_training
from libreyolo_core.errors import ConfigError
from libreyolo_core.family import with_path
from toy_family import FAMILY

SHEET = FAMILY.tasks["detect"].for_size("s")


def resolve(**given):
    return resolve_training(SHEET, {"data": "x.yaml", **given}, title="Toy")


def test_user_beats_yaml_beats_family_beats_core():
    done = resolve_training(SHEET, {"data": "x", "epochs": 7}, {"epochs": 5, "batch": 3})
    assert (done.args.epochs, done.origins["epochs"]) == (7, "user")
    assert (done.args.batch, done.origins["batch"]) == (3, "yaml")
    assert (done.args.lr0, done.origins["lr0"]) == (0.01, "family")
    assert (done.args.seed, done.origins["seed"]) == (0, "core")


def test_an_argument_with_a_path_reaches_the_sheet():
    done = resolve(mosaic_prob="0.25", lr0=0.5, hsv_h=9)
    assert done.sheet.augment[0].p == 0.25
    assert done.sheet.recipe.optimizer.lr == 0.5
    assert done.sheet.augment[1].hue == 9
    assert SHEET.augment[0].p == 1.0


def test_the_overlap_of_validation_is_refused_where_nothing_is_suppressed():
    assert resolve(val_iou=0.5).sheet.post.val_iou == 0.5
    sheet = with_path(SHEET, "post.nms", False)
    assert resolve_training(sheet, {"data": "x"}).origins["val_iou"] == "not offered"
    with pytest.raises(ConfigError, match="val_iou=0.5 has no meaning for Toy"):
        resolve_training(sheet, {"data": "x", "val_iou": 0.5}, title="Toy")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mosaik_prob": 1}, ["mosaik_prob", "Did you mean", "mosaic_prob"]),
        ({"epochs": 0}, ["epochs=0", "1 or more"]),
        ({"epochs": "many"}, ["epochs='many'", "whole number"]),
        ({"epochs": 1.5}, ["epochs=1.5", "whole number"]),
        ({"mosaic_prob": 1.5}, ["mosaic_prob=1.5", "0 to 1"]),
        ({"lr0": float("nan")}, ["lr0=nan", "out of range"]),
        ({"amp": "maybe"}, ["amp='maybe'", "true or false"]),
        ({"amp_dtype": "int8"}, ["amp_dtype='int8'", "float16, bfloat16"]),
        ({"mixup_prob": 0.5}, ["mixup_prob=0.5", "no meaning for Toy"]),
        ({"mosaic_scale": "2,1"}, ["runs backwards"]),
        ({"mosaic_scale": 1}, ["mosaic_scale=1", "two numbers"]),
        ({"batch": True}, ["batch=True", "whole number"]),
        ({"cache": "tape"}, ["cache='tape'", "ram, disk"]),
        ({"optimizer": "lion"}, ["optimizer='lion'", "sgd, adam, adamw"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"loggers": 3.5}, ["loggers=3.5"]),
    ],
)
def test_a_bad_argument_is_one_line_with_value_place_and_mend(given, words):
    with pytest.raises(ConfigError) as error:
        resolve(**given)
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in words), text
    assert error.value.mend


def test_data_is_needed():
    with pytest.raises(ConfigError, match="data= is missing"):
        resolve_training(SHEET, {})


def test_texts_from_a_command_line_mean_the_same_as_python_values():
    assert resolve(epochs="3", amp="false", mosaic_scale="0.5,1.5", device="0,1").args == (
        resolve(epochs=3, amp=False, mosaic_scale=(0.5, 1.5), device=[0, 1]).args
    )


def test_the_argument_file_of_a_run_is_read_back(tmp_path):
    import yaml

    table = resolve(epochs=9, mosaic_scale=(0.3, 1.2)).table()
    file = tmp_path / "args.yaml"
    file.write_text(yaml.safe_dump(table))
    again = resolve_training(
        SHEET,
        {},
        {
            k: v
            for k, v in read_yaml_arguments(file).items()
            if v is not None and k in ("data", "epochs", "mosaic_scale")
        },
    )
    assert again.args.epochs == 9 and again.args.mosaic_scale == (0.3, 1.2)


def test_a_yaml_that_is_no_mapping_is_refused(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("- a\n- b\n")
    with pytest.raises(ConfigError, match="no mapping"):
        read_yaml_arguments(file)


def test_predict_refuses_a_confidence_of_five():
    with pytest.raises(ConfigError, match="conf=5"):
        make_args(PredictArgs, {"source": "x", "conf": 5}, verb="predict")
