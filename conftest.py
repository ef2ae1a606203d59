"""Imported first by pytest: bounds the spin of OpenMP threads before anything loads torch."""

import libreyolo_core  # noqa: F401
