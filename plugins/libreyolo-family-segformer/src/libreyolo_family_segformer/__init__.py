"""SegFormer semantic segmentation for LibreYOLO."""
