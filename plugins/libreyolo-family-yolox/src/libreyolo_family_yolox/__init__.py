"""YOLOX (Ge et al., 2021) for LibreYOLO."""

__version__ = "0.1.0"
