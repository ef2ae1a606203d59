"""The data sheet against the published facts."""

import re
import subprocess
import sys

import pytest
import torch
from rtdetr_cases import FAMILY, SHEET

from libreyolo_core.family import SCRATCH, resolve, with_path

TRAINABLE = {
    "r18": 20_155_696,
    "r34": 31_412_900,
    "r50": 42_862_860,
    "r50m": 36_565_260,
    "r101": 76_527_756,
    "l": 32_900_108,
    "x": 67_348_748,
}
ENTRIES = {"r18": 533, "r34": 659, "r50": 736, "r50m": 760, "r101": 991, "l": 861, "x": 1111}


@pytest.mark.parametrize("size", ENTRIES)
def test_every_size_has_its_published_number_of_parameters_and_entries(size):
    sheet = SHEET.for_size(size)
    with torch.device("meta"):
        net = resolve(FAMILY.network)(nc=80, **sheet.model)
    parameters = dict(net.named_parameters())
    free = [n for n in parameters if not any(re.search(p, n) for p in sheet.recipe.freeze)]
    assert sum(p.numel() for p in parameters.values()) == SHEET.sizes[size].params
    assert sum(parameters[n].numel() for n in free) == TRAINABLE[size]
    assert len(net.state_dict()) == ENTRIES[size]


def group_of(name, groups):
    return next((i for i, g in enumerate(groups) if re.search(g.match, name)), len(groups))


def test_learning_rates_and_decay_follow_the_first_rule_that_matches():
    groups = SHEET.recipe.groups
    names = {
        "backbone.res_layers.0.blocks.0.branch2a.norm.weight": 0,
        "backbone.stages.1.downsample.bn.bias": 0,
        "backbone.res_layers.0.blocks.0.branch2a.conv.weight": 1,
        "encoder.lateral_convs.0.norm.weight": 2,
        "encoder.input_proj.0.1.bias": 2,
        "decoder.decoder.layers.0.self_attn.in_proj_bias": 2,
        "encoder.input_proj.0.1.weight": 3,  # a norm without "norm" in its name decays, as published
        "decoder.enc_output.1.weight": 3,
        "decoder.enc_score_head.weight": 3,
    }
    assert {name: group_of(name, groups) for name in names} == names
    assert [g.lr for g in groups] == [0.05, 0.05, 1.0]
    assert [g.decay for g in groups] == [0, None, 0]


def test_training_from_scratch_frees_stem_and_norms_and_teaches_all_parts_at_one_rate():
    (change,) = [c for c in SHEET.changes if c.at == SCRATCH]
    sheet = SHEET.for_size("r50")
    for path, value in change.set.items():
        sheet = with_path(sheet, path, value)
    assert sheet.recipe.freeze == () and sheet.model["freeze_norm"] is False
    assert all(group.lr == 1.0 for group in sheet.recipe.groups)
    with torch.device("meta"):
        net = resolve(FAMILY.network)(nc=80, **sheet.model)
    assert all(
        isinstance(m, torch.nn.BatchNorm2d) for n, m in net.named_modules() if n.endswith(".norm") and "backbone" in n
    )


def test_the_plugin_module_imports_no_torch():
    code = "import sys, libreyolo_family_rtdetr.plugin; assert not {'torch', 'numpy', 'cv2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


def test_every_reference_in_the_sheet_resolves():
    for reference in (FAMILY.network, SHEET.loss.code):
        assert resolve(reference)
