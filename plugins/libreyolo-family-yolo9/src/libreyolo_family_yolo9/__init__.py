"""YOLOv9 (Wang et al., 2024) for LibreYOLO."""

__version__ = "0.1.0"
