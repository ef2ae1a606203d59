"""NAFNet image restoration for LibreYOLO."""
