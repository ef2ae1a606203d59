"""Counting with LibreYOLO, by people who have nothing to do with it."""
