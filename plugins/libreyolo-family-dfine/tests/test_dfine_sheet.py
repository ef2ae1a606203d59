"""The data sheet against the published facts."""

import re
import subprocess
import sys

import pytest
import torch
from dfine_cases import FAMILY, SHEET

from libreyolo_core.config import resolve_training
from libreyolo_core.engine.plan import make_plan, scratch
from libreyolo_core.family import resolve

PARAMETERS = {"n": 3_782_693, "s": 10_321_877, "m": 19_590_064, "l": 31_244_152, "x": 62_621_560}
TRAINABLE = {"n": 3_776_217, "s": 10_315_401, "m": 19_575_732, "l": 31_219_222, "x": 62_596_118}
ENTRIES = {"n": 674, "s": 794, "m": 1053, "l": 1173, "x": 1441}


def on_meta(sheet, nc=80):
    with torch.device("meta"):
        return resolve(FAMILY.network)(nc=nc, **sheet.model)


@pytest.mark.parametrize("size", PARAMETERS)
def test_every_size_has_its_published_number_of_parameters_and_entries(size):
    sheet = SHEET.for_size(size)
    net = on_meta(sheet)
    parameters = dict(net.named_parameters())
    still = (*sheet.recipe.freeze, *sheet.unused)
    assert sum(p.numel() for p in parameters.values()) == PARAMETERS[size]
    assert sum(p.numel() for n, p in parameters.items() if not any(re.search(s, n) for s in still)) == TRAINABLE[size]
    # a file also has anchors and their validity, two second names, and a constant for each layer
    layers = sheet.model.get("layers", 6)
    assert len(net.state_dict()) + 4 + layers == ENTRIES[size]


def test_learning_rates_and_decay_follow_the_first_rule_that_matches():
    groups = SHEET.recipe.groups
    rates = {
        "backbone.stem.stem1.bn.weight": (0.5, 0),
        "backbone.stages.1.blocks.0.layers.0.lab.scale": (0.5, 0),
        "backbone.stages.1.blocks.0.layers.0.lab.bias": (0.5, 0),
        "backbone.stages.1.blocks.0.layers.0.conv.weight": (0.5, None),
        "encoder.lateral_convs.0.norm.weight": (1.0, 0),
        "decoder.enc_output.norm.weight": (1.0, 0),
        "decoder.decoder.layers.0.self_attn.in_proj_bias": (1.0, 0),
    }
    for name, wanted in rates.items():
        group = next(g for g in groups if re.search(g.match, name))
        assert (group.lr, group.decay) == wanted, name
    for name in ("decoder.enc_score_head.weight", "encoder.encoder.0.layers.0.linear1.weight"):
        assert not any(re.search(g.match, name) for g in groups)


def plan(size, samples=64, **given):
    sheet = SHEET.for_size(size)
    return make_plan(
        resolve_training(sheet, {"data": "x", **given}), samples=samples, default_imgsz=640, device_type="cpu"
    )


def strong(phase):
    return [a.p for a in phase.sheet.augment if a.name in ("photometric", "zoom_out", "iou_crop")]


def test_strong_augmentation_and_varied_sizes_stop_at_their_published_epoch():
    p = plan("s")
    assert [ph.start for ph in p.phases] == [0, 112, 128]
    assert strong(p.phase(111)) == [0.5, 0.5, 0.8] and strong(p.phase(112)) == [0, 0, 0]
    assert p.phase(111).sheet.recipe.multi_scale == 0.25 and p.phase(112).sheet.recipe.multi_scale == 0
    assert {p.size(112, i) for i in range(4)} == {(640, 640)}
    assert [a.p for a in p.phase(131).sheet.augment if a.name == "flip"] == [0.5]
    short = plan("s", epochs=10, no_aug_epochs=4, warmup_epochs=0)
    assert strong(short.phase(5)) == [0.5, 0.5, 0.8] and strong(short.phase(6)) == [0, 0, 0]


@pytest.mark.parametrize(("size", "repeats"), [("s", 20), ("m", 6), ("l", 4), ("x", 3)])
def test_sizes_run_from_480_to_800_and_640_is_repeated(size, repeats):
    p = plan(size, samples=16_000, batch=8)
    sizes = [p.size(0, i)[0] for i in range(p.batches)]
    assert set(sizes) == set(range(480, 801, 32)) and p.canvas == (800, 800)
    # of 2000 draws; twelve thousandths is one standard deviation at most
    assert sizes.count(640) / len(sizes) == pytest.approx(repeats / (repeats + 10), abs=0.05)


def test_the_smallest_size_never_changes_its_input():
    p = plan("n")
    assert {p.size(e, i) for e in range(4) for i in range(4)} == {(640, 640)}


def test_augmentation_can_be_switched_off_by_argument():
    off = {"zoom_out_prob": 0, "iou_crop_prob": 0.1, "photometric_prob": 0.2}
    assert strong(plan("n", **off).phase(0)) == [0.2, 0, 0.1]


def test_training_from_scratch_frees_stem_and_norms_and_teaches_all_parts_at_one_rate():
    sheet = scratch(SHEET.for_size("l"))
    assert sheet.recipe.freeze == () and sheet.model["freeze_norm"] is False
    assert all(group.lr == 1.0 for group in sheet.recipe.groups)
    norms = [m for n, m in on_meta(sheet).named_modules() if n.endswith(".bn") and "backbone" in n]
    assert norms and all(isinstance(m, torch.nn.BatchNorm2d) for m in norms)


def test_the_plugin_module_imports_no_torch():
    code = "import sys, libreyolo_family_dfine.plugin; assert not {'torch', 'numpy', 'cv2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


def test_mixed_precision_is_off_and_the_sheet_says_why():
    assert not SHEET.precision.amp and "float16" in SHEET.precision.why
