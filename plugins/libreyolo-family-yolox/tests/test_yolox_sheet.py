"""What the data sheet says, against the network it describes."""

import subprocess
import sys

import pytest
import torch

from libreyolo_core.family import get_path, resolve
from libreyolo_family_yolox.plugin import YOLOX as FAMILY

ENTRIES = {"n": 642, "t": 462, "s": 462, "m": 606, "l": 750, "x": 894}


@pytest.mark.parametrize("size", ENTRIES)
def test_every_size_has_the_published_parameters_and_entries(sheet, size):
    with torch.device("meta"):
        network = resolve(FAMILY.network)(80, **sheet.sizes[size].options)
    assert sum(p.numel() for p in network.parameters()) == sheet.sizes[size].params
    assert len(network.state_dict()) == ENTRIES[size]


def test_keys_and_shapes_are_those_of_published_weights(build, reference):
    state = build("n").state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == reference.shapes()


def test_the_sheet_imports_no_torch():
    code = "import sys, libreyolo_family_yolox.plugin; sys.exit(bool({'torch', 'numpy', 'cv2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_every_path_of_a_change_is_there(sheet):
    switches = {}
    for change in sheet.changes:
        for path, value in change.set.items():
            if path.startswith("network."):
                switches[path.removeprefix("network.")] = value
            else:
                get_path(sheet, path)
    network = resolve(FAMILY.network)(3, **sheet.sizes["n"].options)
    network.configure(**switches)
    assert network.l1 is True


def test_signature_matches_every_size_and_class_count_is_read_from_the_file(build):
    from fnmatch import fnmatch

    for size in ("n", "t"):
        state = build(size, nc=7).state_dict()
        assert all(any(fnmatch(key, pattern) for key in state) for pattern in FAMILY.checkpoint.signature)
        assert state[FAMILY.checkpoint.classes].shape[0] == 7
