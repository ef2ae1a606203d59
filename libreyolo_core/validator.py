"""The one validation loop: for each batch, infer and collect; then merge the ranks' shards and compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor

from libreyolo_core.data.batch import Batch
from libreyolo_core.predictions import Predictions
from libreyolo_core.tasks.base import Evaluator, Metrics
from libreyolo_core.timing import Stopwatch, device_of, synchronise


class Gather(Protocol):
    """What sharded validation needs of the processes of a run."""

    size: int

    def gather(self, value: Any) -> list[Any]:
        """``value`` of every rank, in rank order, on every rank."""
        ...


def validate(
    infer: Callable[[Tensor], Predictions],
    loader: Iterable[Batch],
    evaluator: Evaluator,
    *,
    on_batch: Callable[[int], None] | None = None,
    ranks: Gather | None = None,
) -> Metrics:
    """Run a network over a split.

    Args:
        infer: uint8 images [N, 3, H, W] in the network's channel order, as the loader gives them (on any device), to
            predictions, without gradients.
        loader: evaluation batches with placements; under several ranks this rank's shard.
        evaluator: made by the task for this split.
        on_batch: called after every batch with the number of images done so far.
        ranks: merges the shards; the metrics are those of one process over all images, on every rank.

    Returns:
        Metrics with ``speed`` in milliseconds per image of this rank: ``preprocess`` (the wait for the loader, which
        works ahead when it has workers), ``inference`` (with the copy to the device, synchronised), ``postprocess``.
    """
    clock, images, batches = Stopwatch(), 0, iter(loader)
    while True:
        with clock("preprocess"):
            batch = next(batches, None)
        if batch is None:
            break
        with clock("inference"):
            predictions = infer(batch.images)
            synchronise(device_of(predictions))
        with clock("postprocess"):
            evaluator.update(predictions, batch)
        images += len(batch)
        if on_batch is not None:
            on_batch(images)
    if ranks is not None and ranks.size > 1:
        evaluator.merge(ranks.gather(evaluator.state()))
    metrics = evaluator.compute()
    metrics.speed = clock.per_image(images)
    return metrics
