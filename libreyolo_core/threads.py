"""How many threads and loader processes a run uses, and how OpenMP threads wait.

A thread that spins at a barrier while a loader process wants its core turns a half-second step into many seconds, so
the OpenMP runtimes get a bounded spin before torch loads them, unless the user has set one.
"""

from __future__ import annotations

import os

SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
"""Iterations (GNU) and milliseconds (LLVM, Intel) that a waiting thread spins before it sleeps."""


def bound_spin() -> None:
    """Set a bounded spin for the OpenMP runtime of this process and its children; a user's own setting stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPIN.items():
            os.environ.setdefault(name, value)


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(device_type: str, ranks: int = 1) -> int:
    """Loader processes when the user names no number: at most 8, and on a CPU run one core stays for the model.

    Args:
        ranks: processes of the run on this machine, which share its cores.
    """
    mine = cores() // ranks
    return min(8, max(0, mine - 1)) if device_type == "cpu" else min(8, mine)
