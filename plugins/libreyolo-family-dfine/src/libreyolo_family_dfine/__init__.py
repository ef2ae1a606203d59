"""D-FINE (Peng et al., 2024) for LibreYOLO."""
