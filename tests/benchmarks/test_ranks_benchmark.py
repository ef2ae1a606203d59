"""One process and two, without rounding: the same losses on every step, the same metric."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ranks.py"


def test_two_processes_train_what_one_trains(tmp_path):
    pytest.importorskip("libreyolo_family_yolox")
    settings = ["--model", "yolox", "--epochs", "3", "--imgsz", "64", "--seeds", "0", "--float64"]
    kept = ["--folder", str(tmp_path / "runs"), "--json", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, str(SCRIPT), *settings, *kept], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    one, two = found["one"]["0"], found["two"]["0"]
    assert len(one["losses"]) == len(two["losses"]) == 15
    for alone, shared in zip(one["losses"], two["losses"], strict=True):
        assert shared == pytest.approx(alone, rel=1e-9)
    assert one["metrics"] == two["metrics"]


def test_trained_weights_are_what_a_run_starts_from(tmp_path):
    pytest.importorskip("libreyolo_family_yolox")

    def train(*settings):
        kept = ["--model", "yolox", "--only", "one", "--epochs", "1", "--imgsz", "64", "--seeds", "0"]
        kept += ["--json", str(tmp_path / "found.json")]
        done = subprocess.run([sys.executable, str(SCRIPT), *kept, *settings], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "found.json").read_text())["one"]["0"]

    first = train("--folder", str(tmp_path / "runs"))
    weights = tmp_path / "runs" / "yolox-seed0-ranks1" / "run" / "weights" / "last.pt"
    second = train("--weights", str(weights), "--lr0", "0.0005")
    assert second["settings"]["lr0"] == 0.0005
    assert all(b < a for a, b in zip(first["losses"], second["losses"], strict=True))  # the same images
