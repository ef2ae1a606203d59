"""The real families are as exact as the toy one: workers, repetition and a kill change no bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from libreyolo_core import LibreYOLO, checkpoint

MODELS = {"yolox-n": {"imgsz": 64, "batch": 8}, "rtdetr-r18": {"imgsz": 64, "batch": 10}}

RUN = """
import os, signal
from libreyolo_core import LibreYOLO
from libreyolo_core.engine.callbacks import Callback

class Kill(Callback):
    def on_step(self, run):
        if run.epoch == 1 and run.index == 2:
            os.kill(os.getpid(), signal.SIGKILL)

LibreYOLO({model!r}, pretrained=False, device="cpu").train(callbacks=[Kill()], **{given!r})
"""


@pytest.mark.parametrize("name", MODELS)
def test_workers_repetition_and_a_kill_change_no_bit(name, tmp_path):
    given = {
        "data": "treecrowns", "epochs": 2, "no_aug_epochs": 1, "warmup_epochs": 0, "plots": False, "device": "cpu",
        "project": str(tmp_path), "eval_interval": 2, **MODELS[name],
    }  # fmt: skip

    def train(label, **more):
        return LibreYOLO(name, pretrained=False, device="cpu").train(name=label, **{**given, **more})

    whole = train("whole", workers=0)
    helped = train("helped", workers=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    code = RUN.format(model=name, given={**given, "name": "killed", "workers": 0})
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    resumed = LibreYOLO(name, pretrained=False, device="cpu").train(resume=str(tmp_path / "killed"))
    expected = checkpoint.read(whole.last)
    for other in (helped, resumed):
        found = checkpoint.read(other.last)
        for part in ("state", "raw"):
            a = expected.state if part == "state" else expected.training["raw"]
            b = found.state if part == "state" else found.training["raw"]
            assert all(torch.equal(a[k], b[k]) for k in a), f"{other.save_dir.name}: {part}"
