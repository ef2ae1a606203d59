"""FOMO point detectors for LibreYOLO."""
