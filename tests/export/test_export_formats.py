"""Exporting a network and running the file gives what the network gives."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from export_toys import (
    ToyClassifier,
    ToyDetector,
    ToyFixedGrid,
    ToyPoints,
    ToyQueries,
    ToyRestorer,
    ToySegmenter,
    photos,
    toy_model,
)

from libreyolo_core.data.batch import prepare
from libreyolo_core.errors import CheckpointError, ConfigError, ExportError, UsageError
from libreyolo_core.export import ExportOptions
from libreyolo_core.export.onnx import export_onnx
from libreyolo_core.export.runtime import load_exported
from libreyolo_core.export.torchscript import export_torchscript
from libreyolo_core.family import Input, Post

FORMATS = {"onnx": export_onnx, "torchscript": export_torchscript}


@pytest.fixture(params=FORMATS)
def format(request) -> str:
    return request.param


def exported(format, model, tmp_path, **options):
    path = FORMATS[format](model, tmp_path / f"model.{format}", ExportOptions(**options))
    return load_exported(path)


def eager(model, images):
    with torch.no_grad():
        outputs = model.network(prepare(images, model.sheet.input))
        return model.network.predictions(outputs, tuple(images.shape[-2:]))


@pytest.mark.parametrize("kind", [ToyDetector, ToyQueries])
def test_an_exported_detector_gives_the_boxes_and_scores_of_the_network(format, kind, tmp_path):
    model = toy_model(kind)
    images = photos(1)
    expected, found = eager(model, images), exported(format, model, tmp_path).infer(images)
    # 1e-3 is the contract of exported files; folding a norm and other kernels stay far below
    assert torch.allclose(found.boxes, expected.boxes, atol=1e-3)
    assert torch.allclose(found.scores, expected.scores, atol=1e-3)
    assert found.levels == expected.levels


def test_an_exported_classifier_gives_the_logits_of_the_network(format, tmp_path):
    model = toy_model(ToyClassifier)
    images = photos(1)
    found = exported(format, model, tmp_path).infer(images)
    assert torch.allclose(found.logits, eager(model, images).logits, atol=1e-3)
    assert found.boxes is None


MAPS = {ToySegmenter: "logits", ToyRestorer: "image", ToyPoints: "scores"}


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"dynamic": True, "dynamic_imgsz": True}])
def test_exported_maps_and_images_are_those_of_the_network(format, kind, options, tmp_path):
    model, name = toy_model(kind), MAPS[kind]
    runs = exported(format, model, tmp_path, **options)
    assert runs.outputs == (name,) and runs.task == model.task_name
    images = photos(3, *((48, 64) if "dynamic_imgsz" in options else ()))
    found, expected = getattr(runs.infer(images), name), getattr(eager(model, images), name)
    assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-3)


def test_open_sides_of_maps_have_names_of_their_own(tmp_path):
    onnx = pytest.importorskip("onnx")
    export_onnx(toy_model(ToyPoints), tmp_path / "model.onnx", ExportOptions(dynamic=True, dynamic_imgsz=True))
    (output,) = onnx.load(str(tmp_path / "model.onnx")).graph.output
    axes = [d.dim_param or d.dim_value for d in output.type.tensor_type.shape.dim]
    assert axes == ["batch", 3, "scores_height", "scores_width"]


def test_exporting_leaves_the_model_as_it_was(format, tmp_path):
    model = toy_model()
    before = copy.deepcopy(model.network.state_dict())
    model.network.train()
    exported(format, model, tmp_path, half=format == "onnx")
    assert model.network.training
    assert all(p.requires_grad for p in model.network.parameters())
    assert {k: v.dtype for k, v in model.network.state_dict().items()} == {k: v.dtype for k, v in before.items()}
    assert all(torch.equal(v, before[k]) for k, v in model.network.state_dict().items())


def test_the_file_carries_everything_that_running_it_needs(format, tmp_path):
    model = toy_model(names={0: "Föhre", 1: 'a "quoted" name', 2: "三"})
    runs = exported(format, model, tmp_path)
    assert (runs.family, runs.size, runs.task, runs.nc, runs.imgsz) == ("toy", "s", "detect", 3, 32)
    assert runs.names == model.names
    assert runs.sheet.input == model.sheet.input
    assert runs.sheet.post == model.sheet.post


def test_names_and_input_rule_are_readable_in_the_onnx_metadata(tmp_path):
    import onnx

    export_onnx(toy_model(), tmp_path / "model.onnx", ExportOptions())
    proto = onnx.load(tmp_path / "model.onnx")
    meta = {p.key: p.value for p in proto.metadata_props}
    assert json.loads(meta["names"]) == {"0": "thing 0 ä", "1": "thing 1 ä", "2": "thing 2 ä"}
    assert json.loads(meta["input"])["mean"] == [0.4, 0.4, 0.4]
    assert {"libreyolo_version", "model_family", "size", "task", "imgsz", "post"} <= set(meta)
    assert [i.name for i in proto.graph.input] == ["images"]
    assert [o.name for o in proto.graph.output] == ["boxes", "scores"]


def test_a_fixed_batch_runs_any_number_of_images(format, tmp_path):
    model = toy_model()
    images = photos(5)
    found = exported(format, model, tmp_path, batch=2).infer(images)
    assert torch.allclose(found.boxes, eager(model, images).boxes, atol=1e-3)


def test_a_dynamic_batch_runs_in_one_go(format, tmp_path):
    model = toy_model()
    runs = exported(format, model, tmp_path, dynamic=True)
    assert runs.batch == 0
    images = photos(3)
    assert torch.allclose(runs.infer(images).scores, eager(model, images).scores, atol=1e-3)


def test_a_dynamic_input_size_runs_other_sizes(format, tmp_path):
    model = toy_model(ToyQueries)
    runs = exported(format, model, tmp_path, dynamic=True, dynamic_imgsz=True)
    images = photos(2, 48, 80)
    found, expected = runs.infer(images), eager(model, images)
    assert found.boxes.shape == expected.boxes.shape
    assert torch.allclose(found.boxes, expected.boxes, atol=1e-3)


def test_a_network_whose_graph_is_right_at_one_size_only_is_refused_a_dynamic_size(format, tmp_path):
    with pytest.raises(ExportError, match="Export without dynamic_imgsz=True") as caught:
        exported(format, toy_model(ToyFixedGrid), tmp_path, dynamic_imgsz=True)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_constant_grid_is_no_obstacle_to_a_dynamic_batch(format, tmp_path):
    model = toy_model(ToyFixedGrid)
    runs = exported(format, model, tmp_path, dynamic=True)
    assert runs.infer(photos(2)).boxes.shape == (2, 20, 4)


def test_images_of_another_size_are_refused_by_a_fixed_graph(format, tmp_path):
    runs = exported(format, toy_model(), tmp_path)
    with pytest.raises(UsageError, match="takes 32x32 images, not 64x48"):
        runs.infer(photos(1, 48, 64))


def test_photos_of_their_own_sizes_are_refused_with_the_export_that_takes_them(tmp_path):
    runs = exported("torchscript", toy_model(ToyRestorer, input=Input(fit="native", multiple=16)), tmp_path)
    with pytest.raises(UsageError, match="Export with dynamic_imgsz=True for photos of their own size"):
        runs.infer(photos(1, 48, 64))


def test_another_imgsz_than_the_models_can_be_exported(format, tmp_path):
    model = toy_model()
    runs = exported(format, model, tmp_path, imgsz=48)
    assert runs.imgsz == 48
    images = photos(1, 48, 48)
    assert torch.allclose(runs.infer(images).boxes, eager(model, images).boxes, atol=1e-3)


def test_an_imgsz_that_the_network_cannot_take_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="imgsz=40 is no multiple of 16.*Use 32 or 48"):
        export_onnx(toy_model(), tmp_path / "model.onnx", ExportOptions(imgsz=40))


def test_a_network_of_one_size_refuses_a_dynamic_size(tmp_path):
    model = toy_model(input=Input(fixed=True))
    with pytest.raises(ConfigError, match="the network has one input size"):
        export_onnx(model, tmp_path / "model.onnx", ExportOptions(dynamic_imgsz=True))


def test_half_precision_files_take_and_give_float32(tmp_path):
    import onnx

    model = toy_model()
    runs = exported("onnx", model, tmp_path, half=True)
    weights = onnx.load(tmp_path / "model.onnx").graph.initializer
    assert any(w.data_type == onnx.TensorProto.FLOAT16 for w in weights)
    images = photos(1)
    found, expected = runs.infer(images), eager(model, images)
    assert found.scores.dtype == torch.float32
    assert torch.allclose(found.scores, expected.scores, atol=2e-2)  # ten bits of mantissa through four layers


@pytest.mark.parametrize("opset", [16, 18, 20])
@pytest.mark.parametrize("nms", [False, True])
def test_other_opsets_work_too(opset, nms, tmp_path):
    exported("onnx", toy_model(), tmp_path, opset=opset, nms=nms).infer(photos(1))


def test_an_opset_that_the_exporter_has_not_is_one_line(tmp_path):
    with pytest.raises(ExportError, match="cannot be exported as ONNX with opset 25") as caught:
        export_onnx(toy_model(), tmp_path / "model.onnx", ExportOptions(opset=25))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_operation_that_onnx_has_not_is_one_line(tmp_path):
    class Odd(ToyClassifier):
        def region(self, images, draw=None):
            return torch.special.bessel_j0(super().region(images))

    with pytest.raises(ExportError, match="bessel_j0") as caught:
        export_onnx(toy_model(Odd), tmp_path / "model.onnx", ExportOptions())
    assert "\n" not in str(caught.value)


def test_nms_is_refused_where_it_means_nothing(tmp_path):
    with pytest.raises(ConfigError, match="has no meaning for the task classify"):
        export_onnx(toy_model(ToyClassifier), tmp_path / "model.onnx", ExportOptions(nms=True))
    for kind in MAPS:
        with pytest.raises(ConfigError, match="no boxes that could overlap"):
            export_onnx(toy_model(kind), tmp_path / "model.onnx", ExportOptions(nms=True))
    with pytest.raises(ConfigError, match="nms=True is for ONNX only"):
        export_torchscript(toy_model(), tmp_path / "model.torchscript", ExportOptions(nms=True))


POSTS = {
    "best with nms": Post("best", nms=True, conf=0.4, iou=0.5, max_det=12),
    "pairs with nms": Post("topk", nms=True, conf=0.4, iou=0.5, max_det=12),
    "pairs without nms": Post("topk", nms=False, conf=0.4, max_det=12),
    "levels limited": Post("best", nms=True, conf=0.4, iou=0.9, max_det=12, per_level=3),
    "more than there are": Post("topk", nms=True, conf=0.1, iou=0.9, max_det=400),
    "nothing found": Post("best", nms=True, conf=0.999, iou=0.5, max_det=12),
}


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_selection_inside_the_graph_finds_what_the_task_finds(post, dynamic, tmp_path):
    from libreyolo_core.tasks.postprocess import postprocess

    model = toy_model(post=post)
    images = photos(3)
    runs = exported("onnx", model, tmp_path, nms=True, dynamic=dynamic)
    found, expected = runs.infer(images), eager(model, images)
    assert found.boxes.shape == (3, post.max_det, 4)
    inside = postprocess(found, runs.sheet.post)
    outside = postprocess(expected, post)
    assert any(len(d) for d in outside) == (post.conf < 0.99)
    for a, b in zip(inside, outside, strict=True):
        assert a.labels.tolist() == b.labels.tolist()
        assert torch.allclose(a.boxes, b.boxes, atol=1e-3)
        assert torch.allclose(a.scores, b.scores, atol=1e-3)


def test_thresholds_given_for_the_graph_win_over_the_sheets(tmp_path):
    runs = exported("onnx", toy_model(), tmp_path, nms=True, conf=0.55, max_det=7)
    rows = runs.infer(photos(1))
    kept = rows.scores[rows.scores > 0]
    assert rows.boxes.shape[1] == 7
    assert (runs.sheet.post.conf, runs.sheet.post.max_det) == (0.55, 7)
    assert len(kept) and kept.min() > 0.55


def test_a_missing_or_damaged_or_foreign_file_is_one_line(tmp_path):
    import onnx

    with pytest.raises(CheckpointError, match="does not exist"):
        load_exported(tmp_path / "none.onnx")
    for suffix in ("onnx", "torchscript"):
        (tmp_path / f"bad.{suffix}").write_bytes(b"not a model at all")
        with pytest.raises(CheckpointError, match="is damaged or no") as caught:
            load_exported(tmp_path / f"bad.{suffix}")
        assert "\n" not in str(caught.value)
    export_onnx(toy_model(), tmp_path / "model.onnx", ExportOptions())
    proto = onnx.load(tmp_path / "model.onnx")
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "foreign.onnx")
    with pytest.raises(CheckpointError, match="lacks what is needed to run it"):
        load_exported(tmp_path / "foreign.onnx")


def test_a_missing_export_package_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExportError, match="onnx is not installed.*pip install"):
        export_onnx(toy_model(), tmp_path / "model.onnx", ExportOptions())
