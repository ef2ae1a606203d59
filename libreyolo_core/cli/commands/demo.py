"""``libreyolo demo``: from nothing to pictures with boxes, on the photos that the data set ``treecrowns`` brings.

The settings are not the core's: the data set's module says in ``DEMO`` (``model``, ``settings``, ``use``) which model
learns its photos best from scratch, how, and with what size and thresholds it is used afterwards.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.options import Option, check_values
from libreyolo_core.cli.output import Answer
from libreyolo_core.config import TrainArgs
from libreyolo_core.errors import PluginError, UnknownNameError

DATA = "treecrowns"
OPTIONS = (
    Option("model", "Model to train from scratch.", default="the data set's choice"),
    Option("epochs", "Passes over the photos.", allowed="1 or more", default="the data set's choice"),
    Option("device", "Device, as for train.", default="auto"),
    Option("seed", "Seed of everything random.", type="whole number", default="0"),
    Option("out", "Folder to write to; when it exists, the next free one with a number.", default="runs/demo"),
)

log = logging.getLogger("libreyolo")


@command(
    "demo",
    summary="Train, validate and predict on the embedded data set.",
    options=OPTIONS,
    example="epochs=5",
    notes="Trains on 40 photos from above, measures on the others, and draws the tree crowns it finds on those.",
)
def demo(given: dict[str, Any]) -> Answer:
    """Train, validate, predict, and say where the pictures are."""
    chosen = demo_settings()
    wanted = {k: v for k, v in given.items() if k in ("epochs", "device", "seed")}
    check_values(TrainArgs, wanted, verb="demo", complete=False)
    name = given.get("model", chosen["model"])
    settings, use = (chosen["settings"], chosen.get("use", {})) if name == chosen["model"] else ({}, {})
    if name != chosen["model"]:
        log.info("model=%s: the demo's settings are for %s, so the family's recipe is used", name, chosen["model"])
    from libreyolo_core.api import LibreYOLO

    out = _free_folder(Path(given.get("out", "runs/demo")))
    result = LibreYOLO(name, pretrained=False).train(
        **{**settings, **wanted, "data": DATA, "project": str(out), "name": "train"}
    )
    model = LibreYOLO(str(result.best))
    metrics = model.val(**use, data=DATA, project=str(out), name="val")
    photos = validation_photos(model)
    confidence = metrics.values.get("metrics/conf_best_f1")
    if confidence is not None:
        log.info("predicting with conf=%.3f, where precision and recall balance best on the val split", confidence)
    model.predict(photos, **use, conf=confidence, save=True, project=str(out), name="predict")
    pictures = sorted(p for p in (out / "predict").rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    document = {
        "model": name,
        "metrics": metrics.values,
        "best": result.best,
        "save_dir": out,
        "pictures": pictures,
    }
    figures = tuple(f"{key:<24} {value:.4f}" for key, value in metrics.values.items())
    shown = tuple(f"picture  {p}" for p in pictures)
    return Answer(document, (*figures, f"weights  {result.best}", *shown))


def demo_settings() -> dict[str, Any]:
    """What the data set says about the demo.

    Raises:
        PluginError: the data set is not installed, or says nothing.
    """
    from libreyolo_core.registry import registry

    try:
        claim = registry().get("datasets", DATA, what="data set")
    except UnknownNameError as error:
        raise PluginError(
            f"The demo's data set {DATA!r} is not installed",
            where="libreyolo demo",
            mend=f"Install it: pip install libreyolo-data-{DATA}",
        ) from error
    module = importlib.import_module(claim.entry.code.partition(":")[0])
    settings = getattr(module, "DEMO", None)
    if not isinstance(settings, dict) or not {"model", "settings"} <= set(settings):
        raise PluginError(
            f"{module.__name__} has no DEMO with model and settings",
            where=claim.distribution,
            mend=f"Update it: pip install -U {claim.distribution}",
        )
    return settings


def validation_photos(model: Any) -> list[str]:
    """Paths of the photos of the val split."""
    from libreyolo_core.data.catalogue import load_data

    scan = model.task.scan(load_data(DATA, model.task_name), "val")
    return [image.path for image in scan.images]


def _free_folder(wanted: Path) -> Path:
    number, folder = 2, wanted
    while folder.exists():
        folder, number = wanted.with_name(f"{wanted.name}{number}"), number + 1
    return folder
