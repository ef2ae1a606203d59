"""A disk that fills up while a run saves: what was saved before stays, and whoever waits hears of it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine.loggers import read_rows
from libreyolo_core.engine.trainer import Trainer
from libreyolo_core.errors import TrainingError
from libreyolo_core.tasks.base import Metrics

ROOT = Path(__file__).parents[2]
# The toy's results.csv has less than 1 kB, its best.pt 12 kB and its last.pt 40 kB.
ROOM = {"results.csv": 0, "best.pt": 5_000, "last.pt": 20_000}


@pytest.mark.parametrize("file", ROOM)
def test_a_full_disk_leaves_the_previous_checkpoint_says_so_and_the_run_can_go_on(
    file, toy, boxes_set, tmp_path, monkeypatch
):
    def settings(name):
        return {"data": str(boxes_set), "epochs": 3, "batch": 4, "workers": 0, "plots": False, "device": "cpu",
                "project": str(tmp_path), "name": name}  # fmt: skip

    def model():
        return LibreYOLO("toy-s", pretrained=False, device="cpu")

    # every epoch is better than the one before, so each writes best.pt too
    monkeypatch.setattr(Trainer, "measure", lambda run: Metrics({run.task.fitness: run.epoch + 1.0}))
    whole = model().train(**settings("whole"))
    fsync, folder, saved = os.fsync, tmp_path / "full" / "weights", {}

    def full(descriptor):
        if (folder / "last.pt").exists() and os.fstat(descriptor).st_size > ROOM[file]:
            saved.update({p.name: p.read_bytes() for p in folder.iterdir() if p.suffix == ".pt"})
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(TrainingError, match=f"{file} cannot be written: No space left on device.*Free some space"):
            model().train(**settings("full"))
    last = checkpoint.read(folder / "last.pt")
    assert last.training["epoch"] == 1 and (folder / "last.pt").read_bytes() == saved["last.pt"]
    assert [p.name for p in folder.parent.rglob("*") if p.suffix in (".tmp", ".part")] == []

    resumed = model().train(resume=str(folder.parent))
    assert [r["epoch"] for r in read_rows(resumed.save_dir / "results.csv")] == ["1", "2", "3"]
    for name in ("best", "last"):
        a, b = (checkpoint.read(getattr(r, name)).state for r in (whole, resumed))
        assert all(torch.equal(a[k], b[k]) for k in a)


SCRIPT = """
import errno, json, os, sys, time
from pathlib import Path
sys.path[:0] = [{support!r}]
import importlib.metadata as metadata
from libreyolo_core import LibreYOLO, registry
registry.entry_points = lambda group: [metadata.EntryPoint("toy", "toy_family", "libreyolo")]
folder, rank, sync = Path({folder!r}), int(os.environ["RANK"]), os.fsync

def fsync(descriptor):
    if (folder / "exp/weights/last.pt").exists() and os.fstat(descriptor).st_size > 20_000:
        raise OSError(errno.ENOSPC, "No space left on device")
    sync(descriptor)

os.fsync = fsync
try:
    LibreYOLO("toy-s", pretrained=False, device="cpu").train(
        data={data!r}, epochs=3, batch=4, workers=0, plots=False, project=str(folder), device="cpu")
except Exception as error:
    ended = {{"pid": os.getpid(), "type": type(error).__name__, "text": str(error)}}
    (folder / f"rank{{rank}}.json").write_text(json.dumps(ended))
    # until the other has heard of it the launcher must not see an end, or it would end that one itself
    deadline = time.monotonic() + 30
    while not (folder / f"rank{{1 - rank}}.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    raise
"""


def test_a_full_disk_of_rank_0_ends_the_other_rank_within_seconds(boxes_set, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        SCRIPT.format(support=str(ROOT / "tests/support"), data=str(boxes_set), folder=str(tmp_path))  # fmt: skip
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode != 0
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    problem = "last.pt cannot be written: No space left on device"
    for rank in ranks:
        assert rank["type"] == "TrainingError" and problem in rank["text"]
        with pytest.raises(ProcessLookupError):
            os.kill(rank["pid"], 0)
    assert ranks[1]["text"].startswith("rank 0 failed: ")
    assert problem in done.stderr
    assert checkpoint.read(tmp_path / "exp" / "weights" / "last.pt").training["epoch"] == 1
