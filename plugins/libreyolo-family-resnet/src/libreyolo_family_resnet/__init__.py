"""ResNet image classifiers for LibreYOLO."""
