"""Tasks: what a sample, a target, a metric and a result are."""
