"""What this package adds, all of it by reference: nothing is imported before it is used."""

from libreyolo_core.augment import Flip, Hsv
from libreyolo_core.family import AdamW, Capture, Family, Loss, Post, Precision, Recipe, Schedule, Size, Task, Weights
from libreyolo_core.hookspecs import LossEntry, NamedEntry, hookimpl

HOOK_VERSION = 1

TALLY = Family(
    "tally",
    "Tally",
    network="orchard_vision.network:Tally",
    weights=Weights("Tally{size}.pt", licence="MIT", organisation=""),
    tasks={
        "count": Task(
            classes=1,
            sizes={"s": Size(128, params=24_273, width=16)},
            augment=(Hsv(p=1.0), Flip(p=0.5)),
            recipe=Recipe(epochs=60, batch=8, optimizer=AdamW(2e-3, decay=1e-4), schedule=Schedule("cosine", warmup=2)),
            loss=Loss("orchard_vision.loss:PoissonLoss"),
            post=Post(nms=False),
            capture=Capture("network", numerics="exact"),
            precision=Precision(amp=True, why="the loss is computed in float32"),
        )
    },
)


@hookimpl
def libreyolo_families():
    return [TALLY]


@hookimpl
def libreyolo_tasks():
    return [NamedEntry("count", "orchard_vision.task:CountTask", "how many objects of each class a photo shows")]


@hookimpl
def libreyolo_losses():
    return [LossEntry("resnet", "classify", "focal", "orchard_vision.loss:FocalLoss", {"gamma": 2.0})]


@hookimpl
def libreyolo_commands():
    return [NamedEntry("density", "orchard_vision.command:density", "Objects per photo of a data set.")]
