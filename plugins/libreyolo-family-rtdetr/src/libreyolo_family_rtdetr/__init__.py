"""RT-DETR (Zhao et al., CVPR 2024) for LibreYOLO."""
