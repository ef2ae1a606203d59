"""Fixtures shared by all tests."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


def pytest_collection_modifyitems(items):
    """Tests that share something costly go to one process when several run: wheels, and processes joined over gloo."""
    for item in items:
        if "wheel_store" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("wheels"))
        elif getattr(item, "callspec", None) and item.callspec.params.get("check") == "ranks":
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture
def entry_points(monkeypatch):
    """``entry_points(toy="toy_family")`` makes modules look installed, beside what really is."""
    from libreyolo_core import registry

    real = importlib.metadata.entry_points

    def install(*, alone: bool = False, **modules: str):
        extra = [importlib.metadata.EntryPoint(n, v, "libreyolo") for n, v in modules.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [*([] if alone else real(group=group)), *extra])
        registry.registry.cache_clear()
        return registry.registry()

    yield install
    registry.registry.cache_clear()


@pytest.fixture
def toy(entry_points):
    """The toy family installed."""
    return entry_points(toy="toy_family").family("toy")


@pytest.fixture(scope="session")
def wheel_store(tmp_path_factory):
    """Wheels of packages of this repository, each built once."""
    from environments import Wheels

    return Wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def boxes_set(tmp_path):
    """A data set of 10 + 4 small pictures with coloured squares; returns the path of its YAML."""
    return make_boxes_set(tmp_path / "boxes", train=10, val=4)


def make_boxes_set(root: Path, *, train: int, val: int, side: int = 64, seed: int = 0) -> Path:
    """Pictures of bright squares of two classes on noise, in YOLO layout."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    for split, count in (("train", train), ("val", val)):
        (root / "images" / split).mkdir(parents=True)
        (root / "labels" / split).mkdir(parents=True)
        for i in range(count):
            image = rng.integers(0, 80, (side, side, 3), dtype=np.uint8)
            rows = []
            for _ in range(rng.integers(1, 4)):
                w, h = rng.integers(side // 5, side // 2, 2)
                x, y = rng.integers(0, side - w), rng.integers(0, side - h)
                label = int(rng.integers(0, 2))
                image[y : y + h, x : x + w, label] = 230
                rows.append(f"{label} {(x + w / 2) / side:.6f} {(y + h / 2) / side:.6f} {w / side:.6f} {h / side:.6f}")
            Image.fromarray(image).save(root / "images" / split / f"{i:03}.png")
            (root / "labels" / split / f"{i:03}.txt").write_text("\n".join(rows) + "\n")
    file = root / "boxes.yaml"
    file.write_text("path: .\ntrain: images/train\nval: images/val\nnames: [red, green]\n")
    return file
