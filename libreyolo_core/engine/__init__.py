"""The training engine: one loop for all families. Start reading at ``trainer.py``."""
