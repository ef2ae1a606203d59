"""Original weight files: recognition, size, key names, and what is refused."""

from dataclasses import replace

import pytest
import torch
from dfine_cases import FAMILY, SHEET, network

from libreyolo_core.api import LibreYOLO
from libreyolo_core.checkpoint import load_into
from libreyolo_core.checkpoint.files import File
from libreyolo_core.checkpoint.recognise import identify
from libreyolo_core.errors import CheckpointError
from libreyolo_core.family import resolve
from libreyolo_family_dfine.checkpoint import inspect


def meta_state(size, nc=7):
    with torch.device("meta"):
        return resolve(FAMILY.network)(nc=nc, **SHEET.for_size(size).model).state_dict()


def published(state, layers):
    """With the further entries of an original file."""
    out = dict(state)
    out["decoder.anchors"] = torch.zeros(1, 8400, 4)
    out["decoder.valid_mask"] = torch.ones(1, 8400, 1, dtype=torch.bool)
    for name in ("up", "reg_scale"):
        out[f"decoder.decoder.{name}"] = state[f"decoder.{name}"]
    for layer in range(layers):
        out[f"decoder.decoder.layers.{layer}.cross_attn.num_points_scale"] = torch.full((12,), 0.25)
    return out


@pytest.mark.parametrize("size", SHEET.sizes)
def test_size_and_classes_are_read_from_shapes(size):
    found = inspect(meta_state(size))
    assert (found.size, found.nc) == (size, 7)


def test_files_of_other_families_are_left_alone():
    state = meta_state("n")
    assert inspect({**state, "encoder.DeFE.conv.weight": torch.zeros(1)}) is None
    assert inspect({**state, "encoder.feature_projector.0.weight": torch.zeros(1)}) is None


def test_segmentation_weights_are_refused_by_name():
    state = {**meta_state("n"), "decoder.mask_head.layers.0.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="segmentation.*decoder.mask_head.layers.0.weight.*for detection"):
        inspect(state)


def test_an_original_file_loads_with_no_key_missing_or_left_over(tmp_path):
    source = network(nc=4)
    with torch.no_grad():
        source.decoder.up.fill_(0.4)
    path = tmp_path / "dfine_hgnetv2_n_mine.pth"
    torch.save({"model": {}, "ema": {"module": published(source.state_dict(), 3)}}, path)
    model = LibreYOLO(path, device="cpu")
    assert (model.key, model.size, model.nc) == ("dfine", "n", 4)
    ours = model.network.state_dict()
    assert all(torch.equal(value, ours[key]) for key, value in source.state_dict().items())
    report = load_into(network(nc=4), published(source.state_dict(), 3), FAMILY.checkpoint)
    assert not report.missing and len(report.unexpected) == 7


def test_scale_and_reach_of_the_offsets_come_from_the_file():
    source, target = network(), network()
    with torch.no_grad():
        source.decoder.reg_scale.fill_(8.0)
    state = source.state_dict()
    state["decoder.decoder.reg_scale"] = state.pop("decoder.reg_scale")  # under its second name alone
    load_into(target, state, FAMILY.checkpoint)
    assert target.decoder.reg_scale.item() == 8.0


def test_batch_counters_of_trained_norms_are_no_key_too_many():
    model = {**SHEET.for_size("l").model, "layers": 1}
    free, frozen = (resolve(FAMILY.network)(nc=3, **{**model, "freeze_norm": f}) for f in (False, True))
    report = load_into(frozen, free.state_dict(), FAMILY.checkpoint)
    assert not report.missing and all(k.endswith("num_batches_tracked") for k in report.unexpected)


def test_between_two_families_of_one_layout_the_name_of_the_file_decides():
    twin = replace(
        FAMILY, key="twin", title="Twin", weights=replace(FAMILY.weights, pattern="LibreTwin{size}.pt", aliases=())
    )
    families = {"dfine": FAMILY, "twin": twin}
    file = File(meta_state("s"))
    assert identify(file, families, "dfine_hgnetv2_s_coco.pth").family == "dfine"
    assert identify(file, families, "LibreTwins.pt").family == "twin"
    with pytest.raises(CheckpointError, match="fit the families dfine and twin.*family='dfine'"):
        identify(file, families, "best.pth")
