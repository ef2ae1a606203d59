"""Original weight files: recognition, size, key names."""

import pytest
import torch
from rtdetr_cases import FAMILY, SHEET

from libreyolo_core.checkpoint import load_into
from libreyolo_core.family import resolve
from libreyolo_family_rtdetr.checkpoint import inspect


def meta_state(size, nc=7):
    with torch.device("meta"):
        return resolve(FAMILY.network)(nc=nc, **SHEET.for_size(size).model).state_dict()


def as_second_version(state, layers=6):
    """Key names and buffers of the second version's files."""
    out = {}
    for key, value in state.items():
        key = key.replace(".aggregation.0.", ".aggregation_squeeze_conv.")
        key = key.replace(".aggregation.1.", ".aggregation_excitation_conv.")
        for part in ("stem2a", "stem2b"):  # a padding layer stands before these convolutions
            key = key.replace(f"backbone.stem.{part}.conv.", f"backbone.stem.{part}.conv.1.")
        for part in ("encoder.input_proj.0", "encoder.input_proj.1", "encoder.input_proj.2"):
            key = key.replace(f"{part}.0.", f"{part}.conv.").replace(f"{part}.1.", f"{part}.norm.")
        key = key.replace("decoder.enc_output.0.", "decoder.enc_output.proj.")
        out[key.replace("decoder.enc_output.1.", "decoder.enc_output.norm.")] = value
    out["decoder.anchors"] = torch.zeros(1, 8400, 4)
    out["decoder.valid_mask"] = torch.ones(1, 8400, 1, dtype=torch.bool)
    for layer in range(layers):
        out[f"decoder.decoder.layers.{layer}.cross_attn.num_points_scale"] = torch.full((12,), 0.25)
    return out


@pytest.mark.parametrize("size", SHEET.sizes)
def test_size_and_classes_are_read_from_keys_and_shapes(size):
    found = inspect(meta_state(size))
    assert (found.size, found.nc) == (size, 7)


@pytest.mark.parametrize("size", ["l", "x"])
def test_second_version_files_with_hgnet_backbones_are_recognised(size):
    found = inspect(as_second_version(meta_state(size)))
    assert (found.size, found.nc) == (size, 7)


def test_files_of_other_families_are_left_alone():
    assert inspect(as_second_version(meta_state("r50"))) is None  # RT-DETRv2
    assert inspect({"backbone.stages.0.weight": torch.zeros(1)}) is None
    oriented = meta_state("l")
    oriented["decoder.enc_bbox_head.layers.2.bias"] = torch.zeros(5)
    assert inspect(oriented) is None


def test_a_second_version_file_fills_every_parameter():
    options = {**SHEET.for_size("l").model, "layers": 2}
    torch.manual_seed(0)
    source, target = (resolve(FAMILY.network)(nc=3, **options) for _ in range(2))
    report = load_into(target, as_second_version(source.state_dict(), layers=2), FAMILY.checkpoint)
    assert not report.missing
    assert all(k.rpartition(".")[2] in ("anchors", "valid_mask", "num_points_scale") for k in report.unexpected)
    ours = target.state_dict()
    assert all(torch.equal(value, ours[key]) for key, value in source.state_dict().items())


def test_files_with_batch_counters_load_into_frozen_norms():
    model = SHEET.for_size("r50").model
    free = resolve(FAMILY.network)(nc=3, **{**model, "freeze_norm": False, "layers": 1})
    frozen = resolve(FAMILY.network)(nc=3, **{**model, "layers": 1})
    report = load_into(frozen, free.state_dict(), FAMILY.checkpoint)
    assert not report.missing and all(k.endswith("num_batches_tracked") for k in report.unexpected)
