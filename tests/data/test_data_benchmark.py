"""The loader benchmark runs and prints what it promises; how fast it is, is for a quiet machine to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_loader_benchmark_prints_one_json_document():
    pytest.importorskip("libreyolo_data_treecrowns")
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "loader.py"
    command = [sys.executable, str(script), "--json", "--repeat", "1", "--batches", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: slower than the bar, which a busy machine may be
    found = json.loads(done.stdout)
    assert set(found["recipes"]) == {"mosaic", "mosaic+mixup"} and found["floor_ms_per_source"] > 0
    for recipe in found["recipes"].values():
        assert recipe["ratio"] == pytest.approx(recipe["ms_per_source"] / found["floor_ms_per_source"])
        assert 1 <= recipe["sources_per_input"] <= 5
