"""How the ranks of a start find each other in a store that still holds what earlier starts left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch.distributed as dist

from libreyolo_core.engine.distributed import agreed_name
from libreyolo_core.errors import TrainingError


def test_all_ranks_of_a_start_have_one_name_and_the_next_start_another():
    store = dist.HashStore()
    store.set("libreyolo/ask/1", "of a start that died before it heard an answer")
    with ThreadPoolExecutor(3) as pool:
        first, second = (set(pool.map(partial(agreed_name, store, size=3), (2, 0, 1))) for _ in range(2))
    assert len(first) == len(second) == 1 and first != second


def test_rank_0_names_those_who_do_not_come(monkeypatch):
    monkeypatch.setenv("LIBREYOLO_DIST_TIMEOUT", "0.1")
    with pytest.raises(TrainingError, match=r"of 3 ranks these did not start within 0.1 s: 1, 2"):
        agreed_name(dist.HashStore(), 0, 3)
