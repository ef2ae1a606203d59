"""Whether N ranks compute the gradients of one: real processes over gloo, on the CPU.

The processes are started once and serve every check of a session, since importing torch costs more than the check.
"""

from __future__ import annotations

import atexit
import math
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from libreyolo_core.data.batch import Batch
from libreyolo_core.engine.launch import meeting_place, rank_environment
from libreyolo_core.engine.losslog import LossLog
from libreyolo_core.engine.optimizer import NORMS
from libreyolo_core.engine.step import TrainStep
from libreyolo_core.engine.sync_bn import synchronise_norms
from libreyolo_core.engine.trainer import distribute
from libreyolo_core.family import resolve
from libreyolo_core.losses import Ranks
from libreyolo_core.targets import BoxTargets
from libreyolo_core.testing.steps import Subject, subject

LOGGED = 1e-3
"""Largest difference between what ranks and one process log, relative or, below 1, absolute."""
ANSWER_S = 600.0
"""Longest wait for an answer of the workers."""


class Workers:
    """``count`` processes joined over gloo, which run functions named by reference."""

    def __init__(self, count: int) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.count, self._store = count, meeting_place()
        self._asks = [context.Queue() for _ in range(count)]
        self._answers = context.Queue()
        self._processes = [
            context.Process(
                target=_serve, args=(rank, count, self._store.port, self._asks[rank], self._answers), daemon=True
            )
            for rank in range(count)
        ]
        for process in self._processes:
            process.start()
        atexit.register(self.close)

    def run(self, function: str, **arguments: Any) -> list[Any]:
        """``function(ranks, **arguments)`` on every rank; the results in rank order.

        Raises:
            RuntimeError: with the traceback of a rank that failed.
        """
        for ask in self._asks:
            ask.put((function, arguments))
        found: dict[int, Any] = {}
        while len(found) < self.count:
            rank, value, failure = self._answers.get(timeout=ANSWER_S)
            if failure:
                self.close()
                workers.cache_clear()
                raise RuntimeError(f"rank {rank}:\n{failure}")
            found[rank] = value
        return [found[rank] for rank in range(self.count)]

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()


@cache
def workers(count: int = 2) -> Workers:
    """The session's processes."""
    return Workers(count)


def _serve(rank: int, count: int, port: int, asks: Any, answers: Any) -> None:
    import traceback

    os.environ |= rank_environment(rank, rank, count, port)
    torch.set_num_threads(1)
    from libreyolo_core.engine.distributed import World

    world = World.join("cpu")
    while True:
        function, arguments = asks.get()
        try:
            answers.put((rank, resolve(function)(world, **arguments), ""))
        except Exception:  # whatever fails is the caller's to see
            answers.put((rank, None, traceback.format_exc()))


def shard(batch: Batch, ranks: Ranks) -> Batch:
    """The part of a batch that a rank takes, padded by itself as its own loader would."""
    first, last = (len(batch) * r // ranks.size for r in (ranks.rank, ranks.rank + 1))
    part = slice(first, last)
    if isinstance(batch.targets, BoxTargets):
        t = batch.targets
        rows = [(t.boxes[i][t.valid[i]], t.labels[i][t.valid[i]]) for i in range(first, last)]
        targets: Any = BoxTargets.pad([b for b, _ in rows], [c for _, c in rows])
    else:
        targets = batch.targets.map(lambda tensor: tensor[part])
    return replace(
        batch,
        images=batch.images[part],
        targets=targets.agree(ranks.max),
        draw=batch.draw[part],
        indices=batch.indices[part],
        paths=batch.paths[part],
    )


def gradients(
    ranks: Ranks, *, key: str, size: str, task: str, counts: list[int], imgsz: int, live: bool, path: str = ""
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients of one training step over a seeded batch, of which this rank takes its share, and what a run would log
    of its loss.

    Args:
        live: batch statistics are computed (over all ranks); otherwise the running ones are used.
        path: where rank 0 writes them instead of returning them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        who = subject(key, size=size, task=task)
        found = _gradients(ranks, who, who.batch(counts, imgsz), live)
    finally:
        torch.set_num_threads(threads)
    if not path:
        return found
    if ranks.rank == 0:
        torch.save(found, path)
    return {}, {}


def _gradients(ranks: Ranks, who: Subject, data: Batch, live: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    network = who.network.train()
    if live:  # one process as well: the same arithmetic on both sides leaves only how the batch is shared
        synchronise_norms(network, torch.device("cpu"))
    if not live:
        for module in network.modules():
            if isinstance(module, NORMS) and isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    step: nn.Module = TrainStep(network, who.sheet.loss, who.sheet.input, ranks)
    if ranks.size > 1:
        step = distribute(step, torch.device("cpu"))  # type: ignore[arg-type]
    mine = shard(data, ranks)
    terms = step(mine)
    terms.total.backward()
    log = LossLog(torch.device("cpu"), 1)
    log.add(terms, len(mine), 1, mine.paths)
    return {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}, log.means(ranks)


def differences(
    key: str, *, size: str, task: str, counts: list[int], imgsz: int, live: bool
) -> tuple[float, float, str]:
    """Two ranks against one process.

    Returns:
        The norm of the gradients' difference relative to their norm over all parameters, the largest one of a single
        tensor relative to its own norm (tensors that hold less than a thousandth of the whole gradient relative to that
        thousandth: what is left of them is rounding), and that tensor's name.
    """
    wanted: dict[str, Any] = {"key": key, "size": size, "task": task, "counts": counts, "imgsz": imgsz, "live": live}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gradients.pt")
        workers(2).run("libreyolo_core.testing.ranks:gradients", path=path, **wanted)
        shared, logged = torch.load(path, weights_only=True)
    alone, log = gradients(Ranks(), **wanted)
    for name, value in log.items():
        if not math.isclose(logged[name], value, rel_tol=LOGGED, abs_tol=LOGGED):
            raise RuntimeError(f"two ranks log {name} {logged[name]:.6g}, one process {value:.6g}")
    if alone.keys() != shared.keys():
        odd = sorted(alone.keys() ^ shared.keys())
        raise RuntimeError(
            f"{len(odd)} parameters get a gradient only with or only without ranks: {', '.join(odd[:3])}"
        )
    whole = _norm(alone.values())
    apart = {n: _norm([shared[n].double() - alone[n].double()]) for n in alone}
    relative = {n: d / max(_norm([alone[n]]), 1e-3 * whole) for n, d in apart.items()}
    worst = max(relative, key=lambda n: relative[n])
    return _norm([torch.tensor(list(apart.values()))]) / whole, relative[worst], worst


def _norm(tensors: Any) -> float:
    return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())
