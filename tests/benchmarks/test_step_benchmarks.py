"""The benchmarks of training steps run, and judge as they say; how fast a step is, is for a quiet machine to say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def run(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("gpu_benchmark", FOLDER / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gpu_script_rehearses_every_mode_on_a_cpu(tmp_path):
    pytest.importorskip("libreyolo_family_fomo")
    done = run(FOLDER / "gpu.py", "--smoke", "fomo", "--minutes", "20", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    rows = {row["mode"]: row for row in found["rows"]}
    assert list(rows) == ["eager", "eager again", "graph", "full", "compile"] and not found["failed"]
    assert {row["verdict"] for row in found["rows"]} == {"equal"}
    for mode in ("graph", "full"):
        assert rows[mode]["capture"]["captured"] == 1 and rows[mode]["capture"]["replayed"] > 0
    assert rows["compile"]["compile"]["shapes"] == 1
    assert (tmp_path / "gpu.md").read_text().count("| fomo-s |") == 4


def test_a_family_that_fails_keeps_the_table_and_the_exit_code_says_so(gpu, monkeypatch, tmp_path, capsys):
    row = {"key": "fomo", "mode": "eager", "device_name": "CPU", "torch": "2", "losses": [1.0], "numerics": "exact"}

    def alone(arguments, timeout_s):
        assert 0 < timeout_s <= 660
        key = arguments[arguments.index("--one") + 1]
        return ([json.dumps(row)], "") if key == "fomo" else ([], "exit code 1: no such family")

    monkeypatch.setattr(gpu, "alone", alone)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "nobody", "fomo", "--out", str(tmp_path)])
    assert gpu.main() == 1
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["key"] for row in found["rows"]] == ["fomo"]
    assert found["failed"] == ["nobody: exit code 1: no such family"]
    assert "| fomo |" in capsys.readouterr().out


def test_the_steps_script_measures_times_operations_and_shares(tmp_path):
    pytest.importorskip("libreyolo_family_fomo")
    out = tmp_path / "steps.json"
    done = run(FOLDER / "steps.py", "fomo", "--repeat", "1", "--imgsz", "64", "--contended", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert row["model"] == "fomo-s" and row["ms"]["eager"] > 0 and row["contended_ms"]["eager"] > 0
    assert row["operations"] > 200
    assert sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
    assert done.stdout.startswith("| model | px | batch |")


@pytest.mark.parametrize(
    ("mode", "numerics", "found", "spread", "says"),
    [
        ("graph", "exact", 0.0, 0.0, "equal"),
        ("graph", "exact", 1e-9, 0.0, "differs beyond"),
        ("graph", "exact", 2e-6, 1e-6, "within"),
        ("full", "spread", 9e-4, 0.0, "within"),
        ("full", "spread", 2e-3, 1e-4, "differs beyond"),
        ("full", "spread", 2e-3, 1e-3, "within"),
        ("compile", "exact", 5e-3, 0.0, "within"),
        ("compile", "exact", 2e-2, 0.0, "differs beyond"),
        ("graph", "spread", float("inf"), 1e-3, "differs beyond"),
    ],
)
def test_losses_are_judged_by_the_class_of_the_sheet(gpu, mode, numerics, found, spread, says):
    assert gpu.verdict(mode, numerics, found, spread).startswith(says)


def test_a_trajectory_that_loses_its_numbers_is_infinitely_far(gpu):
    assert gpu.difference([1.0, 2.0], [1.0, float("nan")]) == float("inf")
    assert gpu.difference([1.0, 2.0], [1.0, 2.002]) == pytest.approx(1e-3)
