"""Makes ``segformer_cases`` importable under pytest's importlib mode, and keeps the tests on one thread."""

import sys
from pathlib import Path

from libreyolo_core.testing.fixtures import one_thread  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
