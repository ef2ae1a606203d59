"""Data sets: catalogue, scan, decoding, augmentation, loading."""
