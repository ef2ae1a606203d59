"""An exported ResNet gives the logits of the network."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from libreyolo_core.data.batch import prepare
from libreyolo_core.export import ExportOptions
from libreyolo_core.export.onnx import export_onnx
from libreyolo_core.export.runtime import load_exported
from libreyolo_core.export.torchscript import export_torchscript
from libreyolo_core.testing.deterministic import image_for
from libreyolo_family_resnet.network import ResNetClassifier
from libreyolo_family_resnet.plugin import RESNET

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("export", "name"), [(export_onnx, "r.onnx"), (export_torchscript, "r.torchscript")])
def test_the_exported_file_gives_the_logits_of_the_network(export, name, tmp_path):
    sheet = RESNET.tasks["classify"].for_size("18")
    torch.manual_seed(0)
    network = ResNetClassifier(nc=4, **sheet.model).eval()
    model = SimpleNamespace(
        network=network,
        sheet=sheet,
        key="resnet",
        size="18",
        task_name="classify",
        nc=4,
        names=dict(enumerate("abcd")),
        imgsz=64,
    )
    runs = load_exported(export(model, tmp_path / name, ExportOptions(dynamic=True)))
    images = torch.from_numpy(image_for("export", (3, 3, 64, 64)) * 255).to(torch.uint8)
    with torch.no_grad():
        expected = network(prepare(images, sheet.input))
    found = runs.infer(images).logits
    assert (found - expected).abs().max() <= 1e-3 * expected.abs().max().clamp(min=1)  # the contract of exported files
