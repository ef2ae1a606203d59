"""Measuring training steps, and reading what was measured. This file imports neither torch nor numpy."""

PROJECT, NAME = "runs/profile", "prof"
"""Where a run that only profiles writes, and under which name."""
UNUSED = ("profile", "plots", "loggers", "resume", "save_period", "save_steps", "eval_interval", "patience")
"""Training arguments that mean nothing to a run that only profiles: it validates nothing and writes no checkpoint."""
