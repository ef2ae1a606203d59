"""What the data sheet says, against the network it describes."""

import subprocess
import sys

import pytest
import torch

from libreyolo_core.family import get_path, resolve
from libreyolo_family_yolo9.plugin import YOLO9 as FAMILY

ENTRIES = {"t": 1338, "s": 1338, "m": 906, "c": 936}


@pytest.mark.parametrize("size", ENTRIES)
def test_every_size_has_the_published_parameters_and_entries(sheet, size):
    with torch.device("meta"):
        network = resolve(FAMILY.network)(80, **sheet.sizes[size].options)
    assert sum(p.numel() for p in network.parameters()) == sheet.sizes[size].params
    assert len(network.state_dict()) == ENTRIES[size]


def test_keys_and_shapes_are_those_of_published_weights(build, reference):
    state = build("t").state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == reference.shapes()


def test_the_sheet_imports_no_torch():
    code = "import sys, libreyolo_family_yolo9.plugin; sys.exit(bool({'torch', 'numpy', 'cv2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_every_path_of_a_change_is_there(sheet):
    for change in sheet.changes:
        for path in change.set:
            get_path(sheet, path)


def test_one_cell_may_be_detected_as_several_classes(sheet):
    from libreyolo_core.predictions import Predictions
    from libreyolo_core.tasks.postprocess import postprocess

    boxes = torch.tensor([[[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]]])
    scores = torch.tensor([[[0.9, 0.6, 0.1], [0.8, 0.0, 0.0], [0.0, 0.0, 0.3]]])
    (found,) = postprocess(Predictions(boxes=boxes, scores=scores), sheet.post)
    assert found.labels.tolist() == [0, 1, 2]
    assert found.scores.tolist() == pytest.approx([0.9, 0.6, 0.3])
