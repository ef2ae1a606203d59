"""Classification metrics, and how folders find their classes."""

import json
import logging
import math

import pytest
import torch

from libreyolo_core.errors import ConfigError, DataError
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.classify import ClassifyTask
from libreyolo_core.tasks.names import class_map, folder_map, is_imagenet
from task_fakes import SHEET, batch_of, class_scan

LETTERS = [*"abcdefg"]


def evaluator_of(labels, classes=LETTERS, model=None):
    model = dict(enumerate(model or classes))
    return ClassifyTask().evaluator(class_scan(labels, classes), SHEET, model, conf=None, iou=None, max_det=None)


def test_top1_top5_and_loss_computed_by_hand():
    evaluator = evaluator_of([0, 0, 6])
    logits = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1], [6, 7, 5, 4, 3, 2, 1], [7, 6, 5, 4, 3, 2, 1]])
    evaluator.update(Predictions(logits=logits), batch_of([0, 1, 2]))
    m = evaluator.compute()
    assert m.values["metrics/accuracy_top1"] == pytest.approx(1 / 3)
    assert m.values["metrics/accuracy_top5"] == pytest.approx(2 / 3)
    total = math.log(sum(math.exp(k) for k in range(1, 8)))
    assert m.values["metrics/loss"] == pytest.approx((total - 7 + total - 6 + total - 1) / 3, rel=1e-6)
    assert list(m.values) == list(ClassifyTask.metrics)


def test_top5_means_all_classes_where_there_are_fewer():
    evaluator = evaluator_of([0, 1], ["a", "b", "c"])
    evaluator.update(Predictions(logits=torch.tensor([[0.0, 2, 1], [2, 0, 1]])), batch_of([0, 1]))
    m = evaluator.compute()
    assert m.values["metrics/accuracy_top1"] == 0 and m.values["metrics/accuracy_top5"] == 1


def test_rows_per_class_and_confusion():
    evaluator = evaluator_of([0, 0, 1], ["a", "b", "c"])
    evaluator.update(Predictions(logits=torch.eye(3)[[0, 1, 1]]), batch_of([0, 1, 2]))
    m = evaluator.compute()
    assert [r["accuracy_top1"] for r in m.per_class] == [0.5, 1.0, None]
    assert [r["images"] for r in m.per_class] == [2, 1, 0]
    assert m.curves["confusion"].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    json.dumps(m.per_class, allow_nan=False)


def test_half_precision_logits_are_judged_in_float32():
    evaluator = evaluator_of([0], ["a", "b"])
    evaluator.update(Predictions(logits=torch.tensor([[12.0, 0.0]], dtype=torch.float16)), batch_of([0]))
    assert evaluator.compute().values["metrics/loss"] == pytest.approx(math.log1p(math.exp(-12)), rel=1e-2)


def test_class_shards_merged_give_the_metrics_of_the_whole():
    labels, logits = [i % 7 for i in range(21)], torch.randn(21, 7, generator=torch.Generator().manual_seed(0))

    def shard(indices):
        evaluator = evaluator_of(labels)
        for i in indices:
            evaluator.update(Predictions(logits=logits[[i]]), batch_of([i]))
        return evaluator

    whole, merged = shard(range(21)).compute(), shard([])
    merged.merge([shard(range(20, 12, -1)).state(), shard([*range(13), 20]).state()])
    assert merged.compute().values == whole.values and merged.compute().per_class == whole.per_class


def test_nothing_validated_is_an_error():
    with pytest.raises(DataError, match="No image"):
        evaluator_of([0]).compute()


@pytest.mark.parametrize("given", [{"conf": 0.3}, {"iou": 0.5}, {"classes": [0]}, {"agnostic": True}])
def test_a_threshold_is_never_a_silent_no_op(given):
    with pytest.raises(ConfigError, match=f"{next(iter(given))}=.*no meaning"):
        ClassifyTask().evaluator(class_scan([0], ["a", "b"]), SHEET, {0: "a", 1: "b"}, **given)


def test_folders_find_their_classes_by_name():
    evaluator = evaluator_of([0, 1], ["oak", "fir"], model=["ash", "fir", "oak"])
    evaluator.update(Predictions(logits=torch.tensor([[0.0, 0, 9], [0, 9, 0]])), batch_of([0, 1]))
    m = evaluator.compute()
    assert m.values["metrics/accuracy_top1"] == 1 and [r["images"] for r in m.per_class] == [0, 1, 1]


def test_unknown_folders_are_an_error_that_lists_unknown_and_missing():
    with pytest.raises(DataError, match=r"unknown 'elm'; missing 'ash', 'oak'"):
        folder_map({0: "fir", 1: "elm"}, {0: "ash", 1: "fir", 2: "oak"})


@pytest.fixture(scope="module")
def imagenet():
    from torchvision.models import AlexNet_Weights

    return dict(enumerate(AlexNet_Weights.IMAGENET1K_V1.meta["categories"]))


def test_names_of_imagenet_are_recognised_with_other_synonyms(imagenet):
    assert is_imagenet(imagenet)
    assert is_imagenet({i: f"{n.replace(' ', '_').title()}, another name" for i, n in imagenet.items()})
    assert not is_imagenet(dict(enumerate(reversed(imagenet.values()))))
    assert not is_imagenet({i: imagenet[i] for i in range(10)})


def test_wordnet_folders_map_to_imagenet_indices_in_sorted_order(imagenet):
    ids = {i: f"n{20000000 - 7 * i}" for i in range(1000)}
    assert folder_map(ids, imagenet) == {i: 999 - i for i in range(1000)}
    with pytest.raises(DataError, match="all 1000 folders"):
        folder_map({i: ids[i] for i in range(10)}, imagenet)
    with pytest.raises(DataError, match="unknown 'n2"):
        folder_map(ids, {i: f"class_{i}" for i in range(1000)})


def test_the_same_imagenet_names_agree_although_two_occur_twice(imagenet):
    assert folder_map(dict(imagenet), imagenet) == {i: i for i in range(1000)}


def test_detection_classes_map_by_name_and_say_so(caplog):
    caplog.set_level(logging.INFO, logger="libreyolo")
    assert class_map({0: "dog"}, {0: "cat", 1: "dog"}) == {0: 1}
    assert "'dog' 0 -> 1" in caplog.text


def test_differently_named_classes_of_equal_number_map_by_index_with_a_warning(caplog):
    assert class_map({0: "Katze", 1: "dog"}, {0: "cat", 1: "dog"}) == {0: 0, 1: 1}
    assert "'Katze' and 'cat'" in caplog.text and caplog.records[0].levelname == "WARNING"


def test_a_data_set_of_other_classes_is_an_error_that_names_them():
    with pytest.raises(DataError, match="'tree'"):
        class_map({0: "tree"}, {0: "cat", 1: "dog"})
    with pytest.raises(DataError, match="'t9' and 5 more"):
        class_map({i: f"t{i}" for i in range(15)}, {0: "cat"})
