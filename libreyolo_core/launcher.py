"""Whether torchrun or its like started this process; asked by the command line too, which does not import torch."""

from __future__ import annotations

import os

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher (torchrun, SLURM, Kubernetes) sets for every process."""


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return all(name in os.environ for name in VARIABLES)
