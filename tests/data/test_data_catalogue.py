"""Every form of ``data=`` is found; every mistake in it is one line with the value, the place and the mend."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml

from libreyolo_core import registry as registry_module
from libreyolo_core.data import builtin_sets
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.safe_yaml import MAX_BYTES, load_yaml
from libreyolo_core.errors import DataError, LibreYOLOError, UnknownNameError, UsageError


def refused(data, *parts: str, task: str = "detect", error=DataError) -> str:
    with pytest.raises(error) as caught:
        load_data(data, task)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text
    return text


def rewritten(path: Path, /, **changes) -> Path:
    """The YAML with values changed, or keys removed where the value is ``...``."""
    values = yaml.safe_load(path.read_text()) | changes
    path.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not ...}, sort_keys=False))
    return path


def test_a_yaml_names_root_splits_and_classes(detect_set):
    path = detect_set()
    spec = load_data(path, "detect")
    assert spec.path == path.parent and spec.names == {0: "cat", 1: "dog"} and spec.source == str(path)
    assert spec.splits["train"].paths == (path.parent / "images/train",)
    assert spec.splits["val"].kind == "images" and "data.yaml, line" in spec.splits["val"].where


def test_names_may_be_a_mapping_with_numeric_strings(detect_set):
    path = rewritten(detect_set(), names={"1": "dog", "0": "cat"}, nc="2")
    assert load_data(path, "detect").names == {0: "cat", 1: "dog"}


def test_splits_may_be_lists_of_folders_and_text_files(detect_set):
    path = detect_set(train=["0 .5 .5 .2 .2"] * 3)
    (path.parent / "some.txt").write_text("./images/train/000.png\nimages/train/001.png\n")
    rewritten(path, train=["some.txt", "images/val"])
    assert [p.name for p in load_data(path, "detect").splits["train"].paths] == ["some.txt", "val"]


def test_path_is_relative_to_the_yaml_and_may_hold_blanks_and_umlauts(detect_set, tmp_path):
    path = detect_set(folder="Meine Bäume")
    other = tmp_path / "elsewhere" / "data.yml"
    other.parent.mkdir()
    other.write_text("path: ../Meine Bäume\ntrain: images/train\nnames: [a, b]\n", encoding="utf-8")
    assert load_data(other, "detect").path == path.parent
    other.write_text("\ufeffpath: ../Meine Bäume\r\ntrain: images/train\r\nnames: [a, b]\r\n", encoding="utf-8")
    assert load_data(other, "detect").path == path.parent


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"nmaes": ["a"], "names": ...}, ["'nmaes'", "line", "Did you mean 'names'?"]),
        ({"vall": "images/val"}, ["'vall'", "Did you mean 'val'?"]),
        ({"Train": "images/train", "train": ...}, ["'Train'", "Did you mean 'train'?"]),
        ({"nc": 3}, ["nc is 3 but names has 2", "line"]),
        ({"nc": "three"}, ["nc is 'three'"]),
        ({"nc": True}, ["nc is True"]),
        ({"names": {0: "a", 2: "b"}}, ["none with index 1", "0 to 1"]),
        ({"names": {0: "a", "0": "b"}}, ["Class 0 is named twice"]),
        ({"names": {-1: "a"}}, ["key -1"]),
        ({"names": {"a": 0}}, ["key 'a'"]),
        ({"names": []}, ["names is empty"]),
        ({"names": "cat"}, ["neither a list nor a mapping"]),
        ({"names": [True, "dog"]}, ["True, not text", "quotes"]),
        ({"names": [None]}, ["None, not text"]),
        ({"names": [["a"]]}, ["class 0"]),
        ({"names": ...}, ["names is missing"]),
        ({"train": ..., "val": ...}, ["No split is given"]),
        ({"train": 7}, ["train is 7"]),
        ({"train": ["images/train", None]}, ["train is"]),
        ({"path": 3}, ["path is 3"]),
        ({"train": "images/trian"}, ["images/trian", "train split", "line"]),
        ({"path": "/nowhere/at/all"}, ["/nowhere/at/all/images/train"]),
    ],
)
def test_mistakes_in_the_yaml_are_one_line_with_value_place_and_mend(detect_set, changes, parts):
    refused(rewritten(detect_set(), **changes), "data.yaml", *parts)


def test_unknown_keys_of_other_tools_are_a_warning(detect_set, caplog):
    with caplog.at_level(logging.WARNING, "libreyolo"):
        load_data(rewritten(detect_set(), roboflow={"version": 3}, author="me"), "detect")
    assert "roboflow, author" in caplog.text


def test_classes_with_one_name_are_a_warning(detect_set, caplog):
    with caplog.at_level(logging.WARNING, "libreyolo"):
        load_data(rewritten(detect_set(), names=["cat", "cat"]), "detect")
    assert "'cat' (0, 1)" in caplog.text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("train: [a, b\nval: x", ["line 2"]),
        ("train:\n\t- images", ["line 2", "tabs"]),
        ("- a\n- b", ["no mapping"]),
        ("", ["no mapping"]),
        ("train: a\ntrain: b\nnames: [a]", ["'train'", "lines 1 and 2"]),
        ("train: a\nnames: {0: a, 0: b}", ["'0'", "twice"]),
        ("train: !!python/object/apply:os.system ['touch x']", ["line 1"]),
        ("train: " + "[" * 5000, ["nested too deeply"]),
        ("a: &a [x]\nb: &b [*a, *b]", []),
    ],
)
def test_broken_or_dangerous_yaml_is_one_line(tmp_path, text, parts):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    refused(path, "bad.yaml", *parts)


def test_a_yaml_bomb_is_one_line_and_no_memory(tmp_path):
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(levels))
    refused(path, "aliases expand")
    path.write_bytes(b"names: [" + b"a, " * (MAX_BYTES // 3 + 10) + b"]")
    refused(path, "larger than 4 MiB")
    path.write_bytes(b"names: [\xff\xfe]")
    refused(path, "UTF-8", "line 1")


def test_a_few_aliases_are_fine(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &folder images\nb: *folder\n")
    assert load_yaml(path)[0] == {"a": "images", "b": "images"}


def test_no_path_and_no_name_is_an_error_that_shows_what_was_looked_for(tmp_path, monkeypatch, detect_set):
    monkeypatch.chdir(detect_set().parent)
    refused("dat.yaml", "'dat.yaml' does not exist", str(Path.cwd() / "dat.yaml"), "'data.yaml'")
    refused("coco129", "coco128", str(Path.cwd() / "coco129"), error=UnknownNameError)
    for nothing in ("", "  ", None, 3, "a\0b.yaml"):
        refused(nothing, "no data set", error=UsageError)
    (tmp_path / "a.csv").write_text("x")
    refused(tmp_path / "a.csv", ".csv file")


def test_a_registered_name_is_asked_for_its_path(detect_set, monkeypatch):
    path = detect_set()

    class Known:
        def dataset(self, name):
            if name == "pets":
                return lambda: path
            raise UnknownNameError(f"Unknown data set {name!r}", mend="Did you mean 'pets'?")

    monkeypatch.setattr(registry_module, "registry", lambda: Known())
    assert load_data("pets", "detect").path == path.parent
    refused("petz", "'petz'", "Did you mean 'pets'?", error=UnknownNameError)


def test_a_file_wins_over_a_registered_name(detect_set, monkeypatch):
    path = detect_set(folder="coco128")
    monkeypatch.chdir(path.parent.parent)
    assert load_data("coco128", "detect").path == path.parent


def test_a_folder_is_its_only_yaml_or_images_and_labels(detect_set, caplog):
    path = detect_set(train=["1 .5 .5 .2 .2", "4 .5 .5 .2 .2"])
    assert load_data(path.parent, "detect").names == {0: "cat", 1: "dog"}
    (path.parent / "other.yaml").write_text("train: x")
    refused(path.parent, "several YAML files", "data.yaml")
    path.unlink()
    (path.parent / "other.yaml").unlink()
    with caplog.at_level(logging.WARNING, "libreyolo"):
        spec = load_data(path.parent, "detect")
    assert spec.names == {i: f"class{i}" for i in range(5)} and set(spec.splits) == {"train", "val"}
    assert "names no classes" in caplog.text
    (path.parent / "classes.txt").write_text("ant\nbee\n")
    assert load_data(path.parent, "detect").names == {0: "ant", 1: "bee"}
    refused(path.parent / "labels", "neither a data YAML nor a folder images")


def test_builtin_sets_are_yamls_in_the_cache_with_80_classes(cache_folder):
    for function in (builtin_sets.coco, builtin_sets.coco128, builtin_sets.coco8):
        path = function()
        assert path.is_relative_to(cache_folder)
        values, _ = load_yaml(path)
        assert len(values["names"]) == len(set(values["names"])) == 80 and values["download"]
        stamp = path.stat().st_mtime_ns
        assert function() == path and path.stat().st_mtime_ns == stamp


def coco_file(path: Path, images=(), annotations=(), categories=((1, "cat"), (7, "dog"))) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "images": [dict(zip(("id", "file_name", "height", "width"), i)) for i in images],
        "annotations": list(annotations),
        "categories": [{"id": i, "name": n} for i, n in categories],
    }
    path.write_text(json.dumps(data))
    return path


def test_a_coco_pair_and_a_yaml_with_json_take_names_from_the_categories(tmp_path):
    train, val = coco_file(tmp_path / "train.json"), coco_file(tmp_path / "val.json")
    spec = load_data(f"{train}, {val}", "detect")
    assert spec.names == {0: "cat", 1: "dog"} and spec.categories == {0: 1, 1: 7}
    assert spec.splits["val"].kind == "coco"
    (tmp_path / "d.yaml").write_text("train: train.json\nval: val.json\nnames: [dog, cat]\n")
    spec = load_data(tmp_path / "d.yaml", "detect")
    assert spec.names == {0: "dog", 1: "cat"} and spec.categories == {0: 7, 1: 1}


def test_coco_files_that_disagree_or_are_none_are_refused(tmp_path):
    train, val = coco_file(tmp_path / "train.json"), coco_file(tmp_path / "val.json", categories=((1, "cow"),))
    refused(f"{train},{val}", "'cat'", "'cow'", "val.json")
    refused(f"{train},{tmp_path / 'none.json'}", "none.json")
    refused(train, "one JSON file")
    (tmp_path / "d.yaml").write_text("train: train.json\nnames: [dog, cow]\n")
    refused(tmp_path / "d.yaml", "'cow' not in the JSON", "'cat' not in names", "line 2")
    for text in ("{", "[]", "[" * 100_000, json.dumps({"images": 3}), json.dumps({"images": [], "annotations": []})):
        val.write_text(text)
        refused(f"{train},{val}", "val.json")


def test_classification_folders_give_the_classes(class_set, tmp_path):
    root = class_set(count=1)
    spec = load_data(root, "classify")
    assert spec.names == {0: "cat", 1: "dog"} and spec.splits["val"].kind == "classes"
    yaml_path = tmp_path / "c.yaml"
    yaml_path.write_text("path: classes\ntrain: train\nval: val\nnames: [dog, cat]\n")
    assert load_data(yaml_path, "classify").names == {0: "dog", 1: "cat"}
    yaml_path.write_text("path: classes\ntrain: train\nnames: [dog, cow]\n")
    refused(yaml_path, "cow", "cat", task="classify")
    refused(root / "val", "no folder train", task="classify")


def test_validation_classes_must_be_known_from_training(class_set):
    root = class_set(count=1)
    (root / "val" / "dogg").mkdir()
    refused(root, "'dogg'", "Did you mean 'dog'?", task="classify")
    (root / "val" / "dogg").rmdir()
    for folder in ("cat", "dog"):
        for file in (root / "val" / folder).iterdir():
            file.unlink()
    (root / "val" / "cat").rmdir()
    assert load_data(root, "classify").names == {0: "cat", 1: "dog"}  # a subset is fine


def test_classification_without_class_folders_says_so(detect_set):
    refused(detect_set(), "no class folder", task="classify")


def test_every_error_can_cross_a_process_border(detect_set):
    import pickle

    try:
        load_data(rewritten(detect_set(), nc=5), "detect")
    except LibreYOLOError as error:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
