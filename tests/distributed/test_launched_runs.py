"""Runs that a launcher starts: torchrun on one node, two agents on loopback, restarts, and signals."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import torch

from libreyolo_core import checkpoint
from libreyolo_core.engine.loggers import read_rows

ROOT = Path(__file__).parents[2]
AT_THE_END = -1
SCRIPT = """
import os, signal, sys
sys.path[:0] = [{support!r}]
import importlib.metadata as metadata
from libreyolo_core import LibreYOLO, registry
from libreyolo_core.engine.callbacks import Callback
registry.entry_points = lambda group: [metadata.EntryPoint("toy", "toy_family", "libreyolo")]

AT_THE_END = {at_the_end}

class Kill(Callback):
    def on_step(self, run):
        if run.updates == {step} and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
            os.kill(os.getpid(), {signal})

    def on_end(self, run):
        if {step} == AT_THE_END and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
            os.kill(os.getpid(), {signal})

if __name__ == "__main__":
    LibreYOLO("toy-s", pretrained=False, device="cpu").train(
        data={data!r}, epochs=3, batch=4, workers=0, plots=False, project={project!r}, device="cpu",
        callbacks=[Kill()] if {step} else [], **{more!r})
"""


def script(folder, data, *, step=0, signal=0, project="", **more):
    file = folder / "train.py"
    file.write_text(
        SCRIPT.format(
            support=str(ROOT / "tests/support"),
            data=str(data),
            project=project or str(folder),
            step=step,
            signal=int(signal),
            at_the_end=AT_THE_END,
            more=more,
        )  # fmt: skip
    )
    return file


def torchrun(file, *options, **more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **more}
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(file)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=file.parent
    )


def finished(process, seconds=240):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out + err


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def meeting_at(port):
    """What each of two nodes of one rank is started with."""
    return (
        "--nnodes=2",
        "--nproc_per_node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=loopback",
        "--local-addr=127.0.0.1",
    )


def state(folder):
    return checkpoint.read(folder / "exp" / "weights" / "last.pt").state


def test_two_nodes_train_what_two_processes_of_one_node_train(boxes_set, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one = torchrun(script(folders[0], boxes_set), "--standalone", "--nproc_per_node=2")
    code, text = finished(one)
    assert code == 0, text
    file, port = script(folders[1], boxes_set), free_port()
    agents = [torchrun(file, *meeting_at(port)) for _ in range(2)]
    for agent in agents:
        code, text = finished(agent)
        assert code == 0, text
    a, b = map(state, folders)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert sorted(p.name for p in folders[1].glob("exp*")) == ["exp"]


def test_nodes_without_a_common_disk_train_and_after_a_kill_go_on_together(boxes_set, tmp_path):
    """torchrun counts the restart on the one node alone, and the other has neither run nor checkpoint."""
    folders, port = [tmp_path / "a", tmp_path / "b"], free_port()
    agents = []
    for folder in folders:
        folder.mkdir()
        file = script(folder, boxes_set, step=7, signal=signal.SIGKILL, project="runs")
        agents.append(torchrun(file, *meeting_at(port), "--max-restarts=1"))
    texts = []
    for agent in agents:
        code, text = finished(agent)
        assert code == 0, text
        texts.append(text)
    first = [folder for folder in folders if (folder / "runs" / "exp" / "weights" / "last.pt").is_file()]
    assert len(first) == 1 and sum("restart of this job: continuing" in text for text in texts) == 1
    assert [r["epoch"] for r in read_rows(first[0] / "runs" / "exp" / "results.csv")] == ["1", "2", "3"]


def test_a_killed_rank_brings_the_job_back_from_its_last_checkpoint(boxes_set, tmp_path):
    file = script(tmp_path, boxes_set, step=7, signal=signal.SIGKILL)
    code, text = finished(torchrun(file, "--standalone", "--nproc_per_node=2", "--max-restarts=2"))
    assert code == 0, text
    assert "restart of this job: continuing" in text
    rows = read_rows(tmp_path / "exp" / "results.csv")
    assert [r["epoch"] for r in rows] == ["1", "2", "3"]
    assert all(v.isfinite().all() for v in state(tmp_path).values())
    assert (tmp_path / "exp" / "job.txt").is_file() and not list(tmp_path.glob(".*"))  # nothing beside the run


def test_a_rank_killed_after_its_last_checkpoint_leaves_a_run_that_a_restart_completes(boxes_set, tmp_path):
    file = script(tmp_path, boxes_set, step=AT_THE_END, signal=signal.SIGKILL)
    code, text = finished(torchrun(file, "--standalone", "--nproc_per_node=1", "--max-restarts=1"))
    assert code == 0, text
    assert "restart of this job: continuing" in text and f"done: {tmp_path / 'exp'}" in text
    assert [r["epoch"] for r in read_rows(tmp_path / "exp" / "results.csv")] == ["1", "2", "3"]


def test_sigterm_saves_exits_with_0_and_says_how_to_resume(boxes_set, tmp_path):
    file = script(tmp_path, boxes_set, step=5, signal=signal.SIGTERM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert f"terminated at step 5, saved. Continue with resume={tmp_path / 'exp'}" in done.stderr
    assert checkpoint.read(tmp_path / "exp" / "weights" / "last.pt").training["step"] == 5


def test_save_steps_bounds_what_a_kill_can_cost(boxes_set, tmp_path):
    file = script(tmp_path, boxes_set, step=5, signal=signal.SIGKILL, save_steps=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert checkpoint.read(tmp_path / "exp" / "weights" / "last.pt").training["step"] == 4


HANGS = """
import sys, time
from pathlib import Path
from libreyolo_core.engine.watchdog import Watchdog

def stuck_in_the_loader():
    time.sleep(60)

with Watchdog(1.0, Path(sys.argv[1]), "rank 1"):
    stuck_in_the_loader()
"""


def test_a_rank_that_hangs_is_reported_with_its_stack(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "hang-rank1.txt")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1  # left alone it would wake up and end with 0
    for text in (done.stderr, (tmp_path / "hang-rank1.txt").read_text()):
        assert "rank 1 made no step for 1 s" in text and "stuck_in_the_loader" in text
