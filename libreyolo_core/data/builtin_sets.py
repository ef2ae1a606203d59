"""The data sets known by name. Each function returns the path of a data YAML, whose ``download`` fetches the photos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from libreyolo_core.checkpoint.atomic import replacing
from libreyolo_core.data.download import cache_dir

# fmt: off
COCO_NAMES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear",
    "hair drier", "toothbrush",
)
# fmt: on
"""The 80 classes of COCO in the order of their category ids (which run from 1 to 90 with gaps)."""

_COCO = "http://images.cocodataset.org"
_SMALL = "https://github.com/ultralytics/assets/releases/download/v0.0.0"


def coco() -> Path:
    """COCO 2017: 118,287 photos to train, 5,000 to validate, 80 classes; read from its own annotation files."""
    return _written(
        "coco",
        {
            "train": "annotations/instances_train2017.json",
            "val": "annotations/instances_val2017.json",
            "names": list(COCO_NAMES),
            "download": [
                f"{_COCO}/annotations/annotations_trainval2017.zip",
                f"{_COCO}/zips/val2017.zip",
                f"{_COCO}/zips/train2017.zip",
            ],
        },
    )


def coco128() -> Path:
    """The first 128 photos of COCO train 2017, to train and to validate on the same: a smoke test, not a benchmark."""
    facts = {"train": "images/train2017", "val": "images/train2017"}
    return _written("coco128", facts | {"names": list(COCO_NAMES), "download": f"{_SMALL}/coco128.zip"})


def coco8() -> Path:
    """Eight photos of COCO, four to train and four to validate."""
    facts = {"train": "images/train", "val": "images/val"}
    return _written("coco8", facts | {"names": list(COCO_NAMES), "download": f"{_SMALL}/coco8.zip"})


def _written(name: str, facts: dict[str, Any]) -> Path:
    """The YAML in the cache directory. Its ``path`` does not exist, so that the first use downloads."""
    path = cache_dir() / "datasets" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"path": f"{name}-data", **facts}, sort_keys=False)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with replacing(path) as file:
            file.write(text.encode())
    return path
