"""The processes of a distributed run: joining them, and the few things they tell each other.

Every collective here is reached by every rank at the same point of a step, whatever its shard holds. Two groups carry
them: the run's own backend for tensors of the loss, and gloo for what the hosts agree on (run directory, target
counts, interruption, metrics), so that no such message ever waits for a GPU.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from libreyolo_core.engine.elastic import restarts, training
from libreyolo_core.errors import DeviceError, LibreYOLOError, TrainingError
from libreyolo_core.losses import Ranks

log = logging.getLogger("libreyolo")
T = TypeVar("T")
TIMEOUT_S = 3 * 60 * 60
"""How long a collective waits for the other ranks; ``LIBREYOLO_DIST_TIMEOUT`` (seconds) overrides."""


def timeout_s() -> float:
    """Seconds that a collective waits before the run is given up."""
    return float(os.environ.get("LIBREYOLO_DIST_TIMEOUT", TIMEOUT_S))


def choose_backend(device: torch.device) -> str:
    """``nccl`` for CUDA devices where torch has it, else ``gloo``; ``LIBREYOLO_DIST_BACKEND`` overrides."""
    asked = os.environ.get("LIBREYOLO_DIST_BACKEND", "")
    if asked:
        return asked
    return "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"


def rank_device(device: str) -> torch.device:
    """The device of this process: ``cuda:LOCAL_RANK`` unless ``device`` is ``cpu`` or there is no CUDA.

    Raises:
        DeviceError: more processes than CUDA devices on this node.
    """
    if str(device).strip().lower() == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local >= there:
        raise DeviceError(
            f"local rank {local} has no CUDA device of its own, this node has {there}",
            where="LOCAL_RANK",
            mend=f"Start at most {there} processes per node (--nproc_per_node={there}).",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def agreed_name(store: dist.Store, rank: int, size: int) -> str:
    """A name that all ranks have from rank 0 and that no earlier start of the job had, whose entries may still be in
    the store. Numbers of restarts will not do: torchrun counts them on each node for itself.

    Every rank asks under a word of its own, which only the rank 0 of the same start can answer.

    Raises:
        TrainingError: on rank 0, when others do not come within the time that a collective may take.
    """
    word = uuid.uuid4().hex
    if rank:
        store.set(f"libreyolo/ask/{rank}", word)
        name: str = store.get(f"libreyolo/answer/{word}").decode()
        store.set(f"libreyolo/heard/{name}/{rank}", "")
        return name
    missing, end = set(range(1, size)), time.monotonic() + timeout_s()
    while missing:
        for other in sorted(missing):
            if store.check([f"libreyolo/ask/{other}"]):
                store.set(f"libreyolo/answer/{store.get(f'libreyolo/ask/{other}').decode()}", word)
            if store.check([f"libreyolo/heard/{word}/{other}"]):
                missing.discard(other)
        if missing and time.monotonic() > end:
            raise TrainingError(
                f"of {size} ranks these did not start within {timeout_s():g} s: {', '.join(map(str, sorted(missing)))}",
                where="rank 0",
                mend="See what their nodes print; LIBREYOLO_DIST_TIMEOUT (seconds) is how long to wait.",
            )
        time.sleep(0.02 if missing else 0)
    return word


class World(Ranks):
    """The ranks of a run as one of them sees it; made by ``join``.

    Attributes:
        again: the launcher has started this job before.
    """

    def __init__(self, device: torch.device, *, again: bool = False) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.device = device
        self._control: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s()))
        self.again = bool(self.max(int(again)))  # a node where no process failed counts no restart

    @classmethod
    def join(cls, device: str) -> World:
        """Meet the other processes of a launched run."""
        mine, starts = rank_device(device), 0
        if not dist.is_initialized():
            patience = timedelta(seconds=timeout_s())
            store, rank, size = next(dist.rendezvous("env://", timeout=patience))
            # A launcher that restarts keeps its store: without a prefix a rank that comes back first finds the address
            # that another one had before the restart.
            starts = store.add(f"libreyolo/starts/{training()}", 1) if rank == 0 else 0
            store = dist.PrefixStore(f"libreyolo/{agreed_name(store, rank, size)}", store)
            dist.init_process_group(choose_backend(mine), store=store, rank=rank, world_size=size, timeout=patience)
        return cls(mine, again=restarts() > 0 or starts > 1)

    def leave(self) -> None:
        """End the group; the last thing a rank does."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def sum(self, value: Tensor) -> Tensor:
        """The sum of ``value`` over all ranks (no gradient)."""
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def max(self, value: int) -> int:
        """The largest ``value`` of all ranks."""
        held = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(held, dist.ReduceOp.MAX, group=self._control)
        return int(held)

    def gather(self, value: T) -> list[T]:
        """``value`` of every rank, in rank order, on every rank; anything that can be pickled."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def on_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` on rank 0 alone; every rank gets what it returned. Its failure reaches all of them at once
        instead of leaving them waiting.

        Raises:
            TrainingError: on the other ranks, with what went wrong on rank 0, which raises the exception itself.
        """
        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.rank == 0:
            try:
                answer[0] = function()
            except BaseException as error:  # also Ctrl-C: the others must hear of it before it goes on
                failure = error
                answer = [None, error if isinstance(error, LibreYOLOError) else f"{type(error).__name__}: {error}"]
        dist.broadcast_object_list(answer, src=0, group=self._control)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise TrainingError(f"rank 0 failed: {answer[1]}", where=f"rank {self.rank}", mend="See its message.")
        return answer[0]

    @torch.no_grad()
    def average_buffers(self, network: nn.Module) -> None:
        """Give every rank the mean of the floating-point buffers (running statistics that each took from its own
        shard), so that what is validated and saved holds what all ranks saw."""
        buffers = [b for b in network.buffers() if b.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([b.reshape(-1).double() for b in buffers])
        dist.all_reduce(flat)
        flat /= self.size
        for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
            buffer.copy_(mean.reshape(buffer.shape))


def check_batch(batch: int, world: int) -> None:
    """``batch`` is global: every rank takes an equal share of it.

    Raises:
        ConfigError: it cannot be shared, with the nearest that can.
    """
    from libreyolo_core.errors import ConfigError

    if batch % world:
        below, above = batch // world * world, (batch // world + 1) * world
        use = f"batch={below} or batch={above}" if below else f"batch={above}"
        raise ConfigError(
            f"batch={batch} is the global batch and must be divisible by world_size={world}: each rank trains at "
            "batch // world_size, so this value would silently train at a different global batch than requested",
            mend=f"Use {use}.",
        )
