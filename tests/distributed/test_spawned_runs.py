"""Runs on several workers, as ``device="0,1"`` starts them, driven here with CPU workers over gloo."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from libreyolo_core import LibreYOLO, checkpoint
from libreyolo_core.engine import launch
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.device import parse_device
from libreyolo_core.engine.launch import spawn_train
from libreyolo_core.engine.loggers import read_rows
from libreyolo_core.errors import ConfigError, LibreYOLOError, TrainingError

ROOT = Path(__file__).parents[2]
TWO = [torch.device("cpu")] * 2


def settings(data, folder, **more):
    return {
        "data": str(data), "epochs": 2, "imgsz": 64, "batch": 4, "workers": 0, "plots": False, "project": str(folder),
        "no_aug_epochs": 1, "warmup_epochs": 0, "eval_interval": 1, "lr0": 0.002, "optimizer": "adamw", **more,
    }  # fmt: skip


def fresh():
    torch.manual_seed(0)
    return LibreYOLO("yolox-n", pretrained=False, nc=2, device="cpu")


def descendants():
    out = subprocess.run(["ps", "-eo", "pid,ppid,stat,comm"], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[:3] for line in out.splitlines()[1:] if line.split()[3] != "ps"]
    found, wave = set(), {os.getpid()}
    while wave:
        wave = {int(p) for p, parent, stat in rows if int(parent) in wave and stat[0] != "Z"}
        found |= wave
    return found


def test_two_workers_train_what_one_process_trains_and_validate_exactly(boxes_set, tmp_path):
    model = fresh()
    result = spawn_train(model, settings(boxes_set, tmp_path, name="two", sync_bn=True), TWO)
    alone = fresh()
    one = alone.train(**settings(boxes_set, tmp_path, name="one", device="cpu"))
    a, b = (read_rows(r.save_dir / "results.csv") for r in (result, one))
    assert [r["epoch"] for r in a] == ["1", "2"]
    for x, y in zip(a, b, strict=True):
        # rounding of another order of summation, amplified by a few optimizer steps
        assert float(x["train/loss"]) == pytest.approx(float(y["train/loss"]), rel=0.01)
    # 4 photos in val, batch 4: one rank has all of them, the other none; the merged figure is that of one process
    measured = model.val(data=str(boxes_set), batch=4, imgsz=64, workers=0, plots=False)
    assert measured.values["metrics/mAP50-95"] == result.metrics["metrics/mAP50-95"]
    assert model.weights == result.best and not model.from_scratch
    files = {p.name for p in result.save_dir.rglob("*") if p.is_file()}
    assert {"best.pt", "last.pt", "results.csv", "args.yaml", "train.log", "environment.txt"} <= files
    assert (result.save_dir / "train.log").read_text().count("epoch 1/2") == 1


def test_a_killed_worker_is_named_at_once_and_nothing_is_left_running(boxes_set, tmp_path):
    before, errors = descendants(), []

    def train():
        try:
            spawn_train(fresh(), settings(boxes_set, tmp_path, epochs=200), TWO)
        except LibreYOLOError as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/weights/last.pt")) and time.monotonic() < deadline:
        time.sleep(0.2)
    (victim,) = [p for p in launch.ALIVE if p.name == "rank 1"]
    os.kill(victim.pid, signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(errors[0], TrainingError)
    assert "rank 1 ended by signal SIGKILL" in str(errors[0]) or "rank 0 failed" in str(errors[0])
    assert descendants() <= before
    (last,) = tmp_path.glob("*/weights/last.pt")
    assert checkpoint.read(last).training["epoch"] >= 1


class Fails(Callback):
    def on_epoch(self, run, row):
        raise RuntimeError("the disk of rank 0 is on fire")


def test_a_workers_exception_reaches_the_caller_with_rank_and_traceback(boxes_set, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TrainingError) as caught:
        spawn_train(fresh(), settings(boxes_set, tmp_path, callbacks=(Fails(),)), TWO)
    text = str(caught.value)
    assert "rank 0 failed" in text or "rank 1 failed" in text
    assert "the disk of rank 0 is on fire" in text and "Traceback" in text
    assert not list(tmp_path.glob("libreyolo-spawn-*"))


def test_what_cannot_be_sent_to_workers_is_named(boxes_set, tmp_path):
    class Local(Callback):
        pass

    with pytest.raises(ConfigError, match=r"callbacks= cannot be sent to worker processes.*module level.*loggers=csv"):
        spawn_train(fresh(), settings(boxes_set, tmp_path, callbacks=(Local(),)), TWO)


def test_a_batch_that_ranks_cannot_share_is_an_error_before_anything_starts(boxes_set, tmp_path):
    expected = (
        "batch=6 is the global batch and must be divisible by world_size=4: each rank trains at batch // world_size, "
        "so this value would silently train at a different global batch than requested. Use batch=4 or batch=8."
    )
    from libreyolo_core.engine.distributed import check_batch

    with pytest.raises(ConfigError) as caught:
        check_batch(6, 4)
    assert str(caught.value) == expected
    with pytest.raises(ConfigError, match="Use batch=4.$"):
        check_batch(3, 4)


def test_a_family_that_does_not_spawn_says_how_to_start_it(toy, monkeypatch):
    from dataclasses import replace

    from libreyolo_core.family import Ranks

    model = LibreYOLO("toy-s", pretrained=False, device="cpu")
    model.base_sheet = replace(model.base_sheet, ranks=Ranks(spawn=False))
    devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(ConfigError, match=r"asks for 2.*model.train.*torchrun --nproc_per_node=2 train.py"):
        spawn_train(model, {"data": "x"}, devices)


def test_a_script_without_a_main_guard_gets_the_error_that_explains_it(boxes_set, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom libreyolo_core import LibreYOLO\nfrom libreyolo_core.engine.launch import spawn_train\n"
        "model = LibreYOLO('yolox-n', pretrained=False, nc=2, device='cpu')\n"
        f"spawn_train(model, {settings(boxes_set, tmp_path)!r}, [torch.device('cpu')] * 2)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert launch.UNGUARDED in done.stderr
    assert not list(tmp_path.glob("*/weights"))


def test_two_runs_at_once_do_not_meet_each_other(boxes_set, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(ROOT), str(Path(__file__).parent)]!r}\n"
        "from test_spawned_runs import TWO, fresh, settings\n"
        "from libreyolo_core.engine.launch import spawn_train\n"
        "if __name__ == '__main__':\n"
        f"    spawn_train(fresh(), settings({str(boxes_set)!r}, {str(tmp_path)!r}, name='other'), TWO)\n"
    )
    other = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    spawn_train(fresh(), settings(boxes_set, tmp_path, name="this"), TWO)
    _, err = other.communicate(timeout=240)
    assert other.returncode == 0, err
    a, b = (checkpoint.read(tmp_path / name / "weights" / "last.pt").state for name in ("this", "other"))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_the_port_of_a_run_stays_its_own():
    places = [launch.meeting_place() for _ in range(20)]
    assert len({place.port for place in places}) == 20
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("", places[0].port))


@pytest.mark.parametrize("form", ["0,x", "0,0", "[0,1]", "", True, [0, "a"], "cuda:0,1"])
def test_a_device_that_means_nothing_names_the_forms_there_are(form, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(LibreYOLOError, match=r"Accepted: auto, cpu, mps, cuda|names a device twice"):
        parse_device(form)


def test_only_a_list_of_several_cuda_devices_means_several(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for form in ("0,1", [0, 1], (0, 1), "0, 1"):
        assert parse_device(form) == [torch.device("cuda", 0), torch.device("cuda", 1)]
    for form in ("1", [1], 1, "cuda:1"):
        assert parse_device(form) == [torch.device("cuda", 1)]
    with pytest.raises(LibreYOLOError, match="CUDA device 2 does not exist.*existing CUDA devices: 0, 1"):
        parse_device("0,2")
