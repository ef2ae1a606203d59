"""Batches of an epoch, from worker processes that live as long as the run.

What a worker is to do travels with every request (index, epoch, size, augmentation), so a change of augmentation or of
size in the middle of a run reaches persistent workers by construction. The order of an epoch is a function of
(seed, epoch); which batches there are does not depend on the number of workers, and a rank gets its share of the very
batch that one process would see.
"""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from libreyolo_core.augment import Augment
from libreyolo_core.data.batch import Batch, Sample, SampleRequest
from libreyolo_core.data.randomness import epoch_order
from libreyolo_core.data.scratch import keep_freed_memory
from libreyolo_core.errors import ConfigError, LibreYOLOError, TrainingError

log = logging.getLogger("libreyolo")

Size = tuple[int, int]
Collate = Callable[[list[Sample]], Batch]


class Loader:
    """Owns the data loading of a run. Use as a context manager, or call ``close``.

    Args:
        dataset: answers ``SampleRequest``; ``prepare(canvas)`` is called once if it has that.
        collate: makes a ``Batch`` of samples.
        batch: images per step, over all ranks (training); per batch (evaluation).
        seed: decides the order.
        workers: processes that decode and augment; 0 for none.
        shuffle: a new order every epoch and every rank its share of each batch (training); otherwise in the order of
            the scan and every rank each ``world``-th batch, whole (evaluation).
        drop_last: leave out an incomplete last batch, unless it is the only one.
        rank, world: this process and their number.
        pin: page-locked memory, for copies to a GPU.
        canvas: the largest (height, width) of the run; ``None`` means the ``size`` of the first epoch. Give it when
            ``sizes`` varies.
    """

    def __init__(
        self,
        dataset: Dataset,
        collate: Collate,
        *,
        batch: int,
        seed: int = 0,
        workers: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        pin: bool = False,
        canvas: Size | None = None,
    ) -> None:
        self.count, self.batch, self.seed, self.workers = len(dataset), batch, seed, workers  # type: ignore[arg-type]
        self.shuffle, self.rank, self.world, self.canvas = shuffle, rank, world, canvas
        self.drop_last = drop_last and self.count >= batch
        if batch < 1 or (shuffle and batch % world):
            raise ConfigError(
                f"batch={batch} cannot be shared by {world} ranks",
                where="data loader",
                mend=f"Use a multiple of {world}, e.g. batch={max(1, batch // world) * world}.",
            )
        rest = self.count % batch
        if shuffle and not self.drop_last and 0 < rest < world:
            log.info("the last %d samples of an epoch are too few for %d ranks and are left out of it", rest, world)
        self._dataset, self._requests, self._named = dataset, _Requests(), set[str]()
        self._running: Iterator[Batch] | None = None
        self._batches: Any = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # the user asked for that many workers
            self._torch: DataLoader | None = DataLoader(
                _Guarded(dataset),
                batch_sampler=self._requests,  # type: ignore[arg-type]
                num_workers=workers,
                collate_fn=_Packing(collate),
                pin_memory=pin,
                persistent_workers=workers > 0,
                worker_init_fn=_quiet_worker,
                generator=torch.Generator().manual_seed(0),  # torch would draw from the global one at every epoch
            )

    def __len__(self) -> int:
        """Batches per epoch on this rank."""
        total = self.count // self.batch if self.drop_last else -(-self.count // self.batch)
        if not self.shuffle:
            return len(range(self.rank, total, self.world))
        short = 0 < self.count % self.batch < self.world
        return total - (short and not self.drop_last)

    def epoch(
        self,
        epoch: int,
        *,
        size: Size,
        augment: tuple[Augment, ...] = (),
        start_batch: int = 0,
        sizes: Callable[[int], Size] | None = None,
    ) -> Iterator[Batch]:
        """The batches of an epoch.

        Args:
            epoch: counts from 0.
            size: (height, width) of the input.
            augment: what to apply, in order.
            start_batch: first batch to deliver, for a run resumed in the middle of an epoch.
            sizes: size by batch index, for multi-scale; default ``size`` for all.
        """
        if self._torch is None:
            raise TrainingError("The loader is closed", where="data loader", mend="Make a new one.")
        self._stop_running()
        if hasattr(self._dataset, "prepare"):
            self._dataset.prepare(self.canvas or size)
        self.canvas = self.canvas or size
        self._requests.batches = [
            [SampleRequest(i, epoch, tuple(sizes(b) if sizes else size), augment) for i in indices]  # type: ignore[arg-type]
            for b, indices in self._shares(epoch)
            if b >= start_batch
        ]
        self._running = self._deliver(self._torch)
        return self._running

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._stop_running()
        # torch ends workers when the last reference to its iterator goes, which a traceback can hold for long
        end_workers = getattr(self._batches, "_shutdown_workers", None)
        try:
            if end_workers is not None:
                end_workers()
        except RuntimeError as error:  # torch's signal handler tells of a worker's death wherever the process is
            if not _is_death(error):
                raise
        self._batches = self._torch = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is not None and _is_death(error):
            raise self._death(error) from None

    def _death(self, error: BaseException) -> TrainingError:
        return TrainingError(
            f"A data loading process died: {' '.join(str(error).split())[:200] or type(error).__name__}",
            where=f"workers={self.workers}",
            mend="Usually memory ran out: use fewer workers, or cache=disk instead of ram.",
        )

    def _stop_running(self) -> None:
        if self._running is not None:
            self._running.close()  # type: ignore[attr-defined]
            self._running = None

    def _shares(self, epoch: int) -> Iterator[tuple[int, list[int]]]:
        """Batch index and sample indices of every batch of this rank."""
        order = epoch_order(self.count, self.seed, epoch) if self.shuffle else np.arange(self.count)
        total = self.count // self.batch if self.drop_last else -(-self.count // self.batch)
        if not self.shuffle:
            for b in range(self.rank, total, self.world):
                yield b, order[b * self.batch : (b + 1) * self.batch].tolist()
            return
        for b in range(len(self)):
            whole = order[b * self.batch : (b + 1) * self.batch]
            first, last = (len(whole) * r // self.world for r in (self.rank, self.rank + 1))
            yield b, whole[first:last].tolist()

    def _deliver(self, loader: DataLoader) -> Iterator[Batch]:
        self._batches = iter(loader)
        while True:
            try:
                packed = next(self._batches)
            except StopIteration:
                return
            except (EOFError, ConnectionError) as error:  # it died while it handed a batch over
                raise self._death(error) from None
            except RuntimeError as error:
                if not _is_death(error):
                    raise
                raise self._death(error) from None
            if packed.error is not None:
                raise packed.error
            self._name(packed.unreadable)
            yield packed.batch

    def _name(self, unreadable: list[tuple[str, str]]) -> None:
        for path, problem in unreadable:
            if path not in self._named:
                self._named.add(path)
                log.warning("%s became unreadable (%s); other photos stand in for it", path, problem)


def _is_death(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "DataLoader worker" in str(error)


def train_loader(dataset: Dataset, collate: Collate, *, batch: int, seed: int, **options: Any) -> Loader:
    """A shuffling loader; ``loader.epoch(...)`` gives the batches. Options as ``Loader``."""
    return Loader(dataset, collate, batch=batch, seed=seed, shuffle=True, **options)


def eval_loader(dataset: Dataset, collate: Collate, *, batch: int, size: Size, **options: Any) -> EvalLoader:
    """The photos of a split in order, fitted and not augmented. Options as ``Loader``."""
    return EvalLoader(Loader(dataset, collate, batch=batch, shuffle=False, **options), size)


class EvalLoader:
    """The batches of an evaluation: iterate, as often as needed, with the same workers; then ``close``, or use as a
    context manager."""

    def __init__(self, loader: Loader, size: Size) -> None:
        self._loader, self.size = loader, size

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        return self._loader.epoch(0, size=self.size)

    def close(self) -> None:
        """End the workers. Safe to call twice."""
        self._loader.close()

    def __enter__(self) -> EvalLoader:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._loader.__exit__(kind, error, trace)


class _Requests:
    """The batch sampler of torch's loader: what it yields is sent to the workers."""

    def __init__(self) -> None:
        self.batches: list[list[SampleRequest]] = []

    def __iter__(self) -> Iterator[list[SampleRequest]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Guarded(Dataset):
    """Answers with the user's error instead of raising it, so that it arrives without torch's traceback around it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, request: SampleRequest) -> Sample | LibreYOLOError:
        try:
            return self.dataset[request]
        except LibreYOLOError as error:
            return error


@dataclass
class _Packed:
    """What a worker sends: a batch or an error, and the photos it could not read."""

    batch: Batch | None = None
    unreadable: list[tuple[str, str]] | tuple = ()
    error: LibreYOLOError | None = None

    def pin_memory(self) -> _Packed:
        return _Packed(self.batch.pin_memory() if self.batch is not None else None, self.unreadable, self.error)


@dataclass
class _Packing:
    """The collate function of torch's loader."""

    collate: Collate

    def __call__(self, samples: list[Sample | LibreYOLOError]) -> _Packed:
        good = []
        for sample in samples:
            if isinstance(sample, LibreYOLOError):
                return _Packed(error=sample)
            good.append(sample)
        unreadable = [problem for s in good for problem in s.extra.get("unreadable", ())]
        try:
            return _Packed(self.collate(good), unreadable)
        except LibreYOLOError as error:
            return _Packed(error=error)


def _quiet_worker(_: int) -> None:
    """Ctrl-C is the main process's to handle."""
    tune_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def tune_process() -> None:
    """Make this process one that loads and does nothing else: one thread, because threads that spin beside the
    training step slow it several times, and freed memory is kept."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    keep_freed_memory()
