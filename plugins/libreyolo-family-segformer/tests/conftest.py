"""Makes ``segformer_cases`` importable under pytest's importlib mode, and keeps the tests on one thread."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    """Inputs of 64 pixels leave a second thread nothing to do but wait for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
