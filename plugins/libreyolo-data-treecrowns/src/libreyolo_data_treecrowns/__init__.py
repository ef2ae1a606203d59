"""47 aerial photos with 918 tree crowns, and crops of them to classify."""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """The data YAML of the photos, which lie beside it in this package."""
    return Path(__file__).resolve().parent / "treecrowns" / "treecrowns.yaml"


def classify_path() -> Path:
    """The folder of the crops with and without a tree; cut from the photos at the first call."""
    from libreyolo_data_treecrowns.crops import cut_crops

    return cut_crops(path().parent)
