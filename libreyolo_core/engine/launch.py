"""How many processes train: this one alone, those that a launcher such as torchrun has started, or one worker for each
of several devices.

``spawn_train`` takes any list of devices, so that tests drive it with CPU workers; the public ``device=`` comes here
only with a list of CUDA devices. Workers take the ordinary one-device path with a launcher's environment set.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from libreyolo_core.data.catalogue import load_data
from libreyolo_core.engine import autobatch, distributed, elastic
from libreyolo_core.engine.device import parse_device
from libreyolo_core.engine.request import Request, request
from libreyolo_core.engine.run import train_here
from libreyolo_core.engine.rundir import quiet_unless_first
from libreyolo_core.errors import ConfigError, LibreYOLOError, TrainingError, UsageError
from libreyolo_core.launcher import launched
from libreyolo_core.losses import Ranks

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO
    from libreyolo_core.checkpoint import File
    from libreyolo_core.engine.trainer import TrainResult

log = logging.getLogger("libreyolo")
INSIDE = "LIBREYOLO_SPAWNED"
"""Set in every worker, so that a training script without a main guard is noticed there."""
GRACE_S = 10.0
"""How long workers may take to end after one of them failed, before they are killed."""
ALIVE: list[Any] = []
"""The worker processes of the run that goes on at this moment."""
UNGUARDED = (
    "spawn_ddp_train() was called from inside a spawned subprocess. This usually means your script calls "
    "model.train(device=...) at the top level without a 'if __name__ == \"__main__\":' guard."
)


def train(model: LibreYOLO, given: dict[str, Any]) -> TrainResult:
    """Train ``model`` in place; it ends up with the best weights. See ``LibreYOLO.train``."""
    if launched():
        wanted = request(model, given)
        elastic.begin()
        world = distributed.World.join(wanted.resolved.args.device)
        try:
            with quiet_unless_first(world.rank):
                return train_here(model, _as_first(model, given, wanted, world), world.device, world)
        finally:
            world.leave()
    refuse_unguarded()
    wanted = request(model, given)
    wanted.refuse_finished()
    devices = parse_device(wanted.resolved.args.device)
    if len(devices) > 1:
        batch = wanted.resolved.sheet.recipe.batch
        if batch == -1:  # probed here, before there are workers: all of them get the same number
            scan = model.task.scan(load_data(wanted.resolved.args.data, model.task_name), "train")
            batch = autobatch.fitting_batch(model, wanted.resolved, scan, devices[0], len(devices))
            given = {**given, "batch": batch}
        distributed.check_batch(batch, len(devices))
        return spawn_train(model, given, devices)
    return train_here(model, wanted, devices[0], Ranks())


def _as_first(model: LibreYOLO, given: dict[str, Any], wanted: Request, world: distributed.World) -> Request:
    """``wanted`` with what rank 0 finds on its disk. In a job that was started before, that is the job's own run, if it
    came that far; the other ranks get the checkpoint from rank 0, as their node may have a disk of its own."""

    def checkpoint() -> File | None:
        nonlocal wanted
        if not world.again:  # in a job that was, a run may be done and something else have failed
            wanted.refuse_finished()
        elif wanted.checkpoint is None:
            args = wanted.resolved.args
            wanted = request(model, {**given, **elastic.resumed(args.project, args.name)})
        return wanted.checkpoint

    found = world.on_first(checkpoint)
    return replace(wanted, checkpoint=found)


def spawn_train(model: LibreYOLO, given: Mapping[str, Any], devices: Sequence[torch.device]) -> TrainResult:
    """Train on several devices, one worker process each; the model ends up with the best weights.

    Args:
        given: the arguments of ``train``; everything in them is pickled.
        devices: one per worker.

    Raises:
        UsageError: called while a spawned process imports the script.
        ConfigError: an argument that cannot be pickled, or a family that does not support this.
        TrainingError: a worker failed; names its rank and carries its traceback. No process is left behind.
    """
    refuse_unguarded()
    _check_family(model, devices)
    _check_picklable(given)
    from libreyolo_core import checkpoint

    with tempfile.TemporaryDirectory(prefix="libreyolo-spawn-") as folder:
        weights = Path(folder) / "start.pt"
        model.save(weights)
        job = {
            "weights": str(weights),
            "from_scratch": model.from_scratch,
            "given": dict(given),
            "devices": [str(d) for d in devices],
        }
        result: TrainResult = _run_workers(job, len(devices))
        model.adopt(checkpoint.read(result.best), devices[0])
        return result


def refuse_unguarded() -> None:
    """Raise where a spawned worker, importing the user's script, arrives at ``train`` again."""
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)
    if importing or os.environ.get(INSIDE):
        raise UsageError(UNGUARDED)


def _check_family(model: LibreYOLO, devices: Sequence[torch.device]) -> None:
    if model.base_sheet.ranks.spawn:
        return
    count = len(devices)
    indices = ",".join(str(d.index) for d in devices)
    raise ConfigError(
        f"{model.family.title} does not start worker processes by itself, and device={indices!r} asks for {count}",
        where="train argument device",
        mend="Keep the call model.train(data=..., batch=...) in a script for one device and start it with: "
        f"torchrun --nproc_per_node={count} train.py",
    )


def _check_picklable(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{name}= cannot be sent to worker processes: {error}",
                where=f"train argument {name}",
                mend="Use classes defined at module level (closures and lambdas cannot be pickled), or one of the "
                "built-in loggers: loggers=csv,tensorboard.",
            ) from None


def meeting_place() -> dist.TCPStore:
    """What the workers of a run meet at. It listens as long as it lives, on a port that the system chose, so nothing
    that starts meanwhile can take that port."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def rank_environment(rank: int, local_rank: int, count: int, port: int) -> dict[str, str]:
    """What a launcher sets for a process of one node whose meeting place listens on ``port``."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank opens a store of its own there
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _run_workers(job: dict[str, Any], count: int) -> TrainResult:
    context = multiprocessing.get_context("spawn")
    answers, store = context.Queue(), meeting_place()
    job = {**job, "port": store.port}
    # not daemons: a worker has loader processes of its own
    workers = [context.Process(target=_worker, args=(rank, job, answers), name=f"rank {rank}") for rank in range(count)]
    found: dict[int, Any] = {}
    try:
        for worker in workers:
            worker.start()
            ALIVE.append(worker)
        _wait(workers, answers, found)
    except KeyboardInterrupt:
        # the terminal sent Ctrl-C to the workers as well: they save and end by themselves
        _join(workers, 60.0)
        raise
    finally:
        _end(workers)
        ALIVE[:] = [w for w in ALIVE if w not in workers]
    return found[0]


def _wait(workers: list, answers: Any, found: dict[int, Any]) -> None:
    """Collect one answer per worker; raises for the first that failed or died."""
    while len(found) < len(workers):
        try:
            rank, value, failure = answers.get(timeout=0.2)
        except queue.Empty:
            for rank, worker in enumerate(workers):
                if rank not in found and worker.exitcode is not None:
                    _drain(answers, found)
                    if rank not in found:
                        raise _death(rank, worker.exitcode) from None
            continue
        if failure is not None:
            raise _failure(rank, failure)
        found[rank] = value


def _drain(answers: Any, found: dict[int, Any]) -> None:
    """What a worker sent before it ended may still be on its way."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            rank, value, failure = answers.get(timeout=0.1)
        except queue.Empty:
            continue
        if failure is not None:
            raise _failure(rank, failure)
        found[rank] = value


def _failure(rank: int, failure: tuple[BaseException | None, str]) -> BaseException:
    error, trace = failure
    if isinstance(error, KeyboardInterrupt):
        return error
    problem = error.problem if isinstance(error, LibreYOLOError) else trace.strip().splitlines()[-1]
    mend = error.mend if isinstance(error, LibreYOLOError) else ""
    return TrainingError(f"rank {rank} failed: {problem}\n\n{trace}", mend=mend)


def _death(rank: int, code: int) -> TrainingError:
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainingError(
        f"rank {rank} ended {how} without an answer",
        where="worker process",
        mend="Out of memory is the usual reason; continue with resume=true.",
    )


def _join(workers: list, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        if worker.pid is not None:
            worker.join(max(0.0, deadline - time.monotonic()))


def _end(workers: list) -> None:
    """Leave no worker behind: ask, wait, kill."""
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    _join(workers, GRACE_S)
    for worker in workers:
        if worker.is_alive():
            worker.kill()
    _join(workers, GRACE_S)


def _worker(rank: int, job: dict[str, Any], answers: Any) -> None:
    """One rank: the launcher's environment, then the ordinary path."""
    count, device = len(job["devices"]), torch.device(job["devices"][rank])
    os.environ |= rank_environment(rank, rank if device.index is None else device.index, count, job["port"])
    parent = os.getppid()
    _end_with(parent)
    try:
        from libreyolo_core.api import LibreYOLO

        model = LibreYOLO(job["weights"], device="cpu")
        model.from_scratch = job["from_scratch"]
        result = model.train(**{**job["given"], "device": "cpu" if device.type == "cpu" else "cuda"})
        answers.put((rank, result if rank == 0 else None, None))
    except BaseException as error:  # whatever it is, the parent must hear of it
        trace = "".join(traceback.format_exception(error))
        known = error if isinstance(error, (LibreYOLOError, KeyboardInterrupt)) else None
        answers.put((rank, None, (known, trace)))
        answers.close()
        answers.join_thread()
        sys.exit(1)


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, even if it was killed."""
    import threading

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent watch").start()
