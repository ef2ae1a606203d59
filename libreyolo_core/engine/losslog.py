"""Loss terms of an epoch, kept on the device and read in one copy every so often."""

from __future__ import annotations

import math

import torch

from libreyolo_core.errors import TrainingError
from libreyolo_core.losses import LossTerms, Ranks


class LossLog:
    """Collects the named terms of every step.

    Reading a tensor of a GPU waits for it, so terms are stacked there and copied once per ``interval`` steps (on a CPU,
    where it costs nothing, at once). A loss that is not finite is found at that moment and named: which term, which
    step, which files.
    """

    def __init__(self, device: torch.device, interval: int) -> None:
        self.interval = 1 if device.type == "cpu" else interval
        self._pending: list[torch.Tensor] = []
        self._files: list[tuple[int, list[str]]] = []
        self._weights: list[int] = []
        self._names: list[str] = []
        self.sums: dict[str, float] = {}
        self.count = 0

    def add(self, terms: LossTerms, weight: int, step: int, paths: list[str]) -> None:
        """Take the terms of one batch of ``weight`` images.

        Raises:
            TrainingError: a term of a step read now is not finite.
        """
        named = terms.named()
        if list(named) != self._names:
            self.read()
            self._names = list(named)
        self._pending.append(torch.stack([v.float() for v in named.values()] + [terms.total.detach().float()]))
        self._files.append((step, paths))
        self._weights.append(weight)
        if len(self._pending) >= self.interval:
            self.read()

    def read(self) -> None:
        """Copy what is pending to the host and check it."""
        if not self._pending:
            return
        values = torch.stack(self._pending).tolist()
        files, weights = self._files, self._weights
        self._pending, self._files, self._weights = [], [], []
        for row, (step, paths), weight in zip(values, files, weights, strict=True):
            bad = [n for n, v in zip([*self._names, "total"], row, strict=True) if not math.isfinite(v)]
            if bad:
                shown = ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
                raise TrainingError(
                    f"The loss is not finite at step {step}: {', '.join(bad)}",
                    where=f"batch of {shown}",
                    mend="Lower lr0, check those files, try amp=false, or on_nonfinite=skip.",
                )
            for name, value in zip([*self._names, "loss"], row, strict=True):
                self.sums[name] = self.sums.get(name, 0.0) + value * weight
            self.count += weight

    def means(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Mean of every term over the images of the epoch so far, ``train/loss`` first.

        Args:
            ranks: take the mean over all of them (a collective); without, this rank's own.
        """
        self.read()
        shares = (ranks or Ranks()).gather((self.sums, self.count))
        count = sum(c for _, c in shares)
        names = ["loss", *(n for n in self.sums if n != "loss")]
        return {f"train/{n}": sum(s[n] for s, _ in shares) / count for n in names if n in self.sums}

    def reset(self) -> None:
        """Start a new epoch."""
        self.read()
        self.sums, self.count = {}, 0

    def state_dict(self) -> dict:
        """For a checkpoint in the middle of an epoch."""
        self.read()
        return {"sums": dict(self.sums), "count": self.count}

    def load_state_dict(self, state: dict) -> None:
        """From a checkpoint."""
        self.sums, self.count = dict(state["sums"]), state["count"]
