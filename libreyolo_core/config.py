"""Arguments of every verb, declared once.

A field of the dataclasses below is the single source of an argument: its type, default, range and help text. The Python
API, the command line, the YAML reader, validation and the documentation's tables are derived from it. To add a training
argument, add a field to ``TrainArgs``.

A training argument with a ``path`` overrides that place in the family's data sheet; its default is whatever the sheet
says there. If the sheet has no such place (a classifier has no mosaic), giving the argument is an error, never a no-op.
Values win in this order: user > YAML file (``cfg=``) > family recipe > core.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from libreyolo_core.conversion import convert
from libreyolo_core.errors import ConfigError, suggestion
from libreyolo_core.family import Task, get_path, with_path


def arg(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] = (),
    path: str = "",
    needs: str = "",
    also: tuple[Any, ...] = (),
    example: str = "",
    python_only: bool = False,
) -> Any:
    """A dataclass field that is an argument.

    Args:
        low, high: inclusive range of numbers (of each number of a tuple).
        choices: the only values allowed.
        path: place in the data sheet, alternatives joined by ``|`` (the first that exists counts).
        needs: place in the data sheet that must be true, else the argument is one the family does not offer.
        also: special values outside the range, e.g. ``batch=-1``.
        python_only: cannot be given on a command line.
    """
    meta = {"help": help, "low": low, "high": high, "choices": choices, "path": path, "needs": needs, "also": also}
    return field(default=default, metadata={**meta, "example": example, "python_only": python_only})


@dataclass(frozen=True)
class TrainArgs:
    """Arguments of ``train``. A default of ``None`` means: the family's recipe decides."""

    data: str = arg(MISSING, "Data set: YAML file, registered name, folder, or COCO JSON pair.", example="my.yaml")
    epochs: int | None = arg(None, "Passes over the training images.", low=1, path="recipe.epochs")
    batch: int | None = arg(
        None,
        "Images per optimizer step, over all devices; -1 finds the largest that fits.",
        low=1,
        also=(-1,),
        path="recipe.batch",
    )
    imgsz: int | None = arg(None, "Side of the network's input in pixels.", low=32, high=8192, path="recipe.imgsz")
    device: str = arg("auto", "auto, cpu, mps, cuda, a CUDA index such as 0, or a list such as 0,1.")
    workers: int | None = arg(None, "Loader processes; default: sized to the machine.", low=0, high=256)
    seed: int = arg(0, "Seed of everything random in a run.", low=0, high=2**31 - 1)
    deterministic: bool = arg(False, "Only deterministic algorithms, on devices that have faster ones too.")

    optimizer: str | None = arg(None, "Optimizer.", choices=("sgd", "adam", "adamw"), path="recipe.optimizer.name")
    lr0: float | None = arg(None, "Base learning rate.", low=1e-12, high=100.0, path="recipe.optimizer.lr")
    lrf: float | None = arg(
        None, "Final learning rate as a share of lr0.", low=0.0, high=1.0, path="recipe.schedule.to"
    )
    momentum: float | None = arg(None, "SGD momentum.", low=0.0, high=0.9999, path="recipe.optimizer.momentum")
    weight_decay: float | None = arg(None, "Weight decay.", low=0.0, high=10.0, path="recipe.optimizer.decay")
    scheduler: str | None = arg(
        None,
        "How the learning rate falls after warm-up.",
        choices=("constant", "linear", "cosine"),
        path="recipe.schedule.anneal",
    )
    warmup_epochs: float | None = arg(None, "Epochs of warm-up.", low=0.0, high=1000.0, path="recipe.schedule.warmup")
    nbs: int | None = arg(None, "Nominal batch: accumulate gradients up to this many images.", low=1, path="recipe.nbs")
    clip: float | None = arg(None, "Limit of the global gradient norm; 0 for none.", low=0.0, path="recipe.clip")
    ema: bool | None = arg(None, "Keep a moving average of the weights and validate it.", path="recipe.ema.on")
    ema_decay: float | None = arg(None, "Decay of the moving average.", low=0.0, high=1.0, path="recipe.ema.decay")
    ema_ramp: float | None = arg(
        None,
        "Optimizer steps over which that decay builds up; make it short for short runs.",
        low=0.0,
        path="recipe.ema.ramp",
    )
    freeze: tuple[str, ...] | None = arg(
        None, "Patterns of parameter names that do not train.", path="recipe.freeze", example="backbone"
    )
    patience: int | None = arg(
        None, "Epochs without a better metric before stopping, 0: never.", low=0, path="recipe.patience"
    )
    eval_interval: int | None = arg(None, "Epochs between validations.", low=1, path="recipe.eval_every")
    val_iou: float | None = arg(
        None,
        "Overlap threshold of NMS in the run's validations.",
        low=0.0,
        high=1.0,
        path="post.val_iou",
        needs="post.nms",
    )
    no_aug_epochs: int | None = arg(None, "Last epochs without strong augmentation.", low=0, path="recipe.tail")
    multi_scale: float | None = arg(
        None,
        "Random input size per step, this share of imgsz either way.",
        low=0.0,
        high=0.9,
        path="recipe.multi_scale",
    )
    multi_scale_base: int | None = arg(
        None,
        "With multi_scale: how many times as often imgsz itself is drawn as another size.",
        low=1,
        high=1000,
        path="recipe.multi_scale_base",
    )

    mosaic_prob: float | None = arg(None, "Probability of mosaic.", low=0.0, high=1.0, path="augment.mosaic.p")
    mosaic_scale: tuple[float, float] | None = arg(
        None, "Range of the zoom of mosaic.", low=0.01, high=10.0, path="augment.mosaic.scale", example="0.5,1.5"
    )
    mixup_prob: float | None = arg(
        None, "Probability of mixup.", low=0.0, high=1.0, path="augment.mixup.p|augment.mix.mixup"
    )
    mixup_scale: tuple[float, float] | None = arg(
        None, "Range of the zoom of mixup's partner.", low=0.01, high=10.0, path="augment.mixup.scale"
    )
    cutmix_prob: float | None = arg(None, "Probability of CutMix.", low=0.0, high=1.0, path="augment.mix.cutmix")
    degrees: float | None = arg(
        None, "Rotation either way, degrees.", low=0.0, high=180.0, path="augment.mosaic.rotate|augment.affine.rotate"
    )
    translate: float | None = arg(
        None, "Shift, share of the side.", low=0.0, high=1.0, path="augment.mosaic.translate|augment.affine.translate"
    )
    shear: float | None = arg(
        None, "Shear either way, degrees.", low=0.0, high=80.0, path="augment.mosaic.shear|augment.affine.shear"
    )
    hsv_prob: float | None = arg(None, "Probability of colour jitter.", low=0.0, high=1.0, path="augment.hsv.p")
    hsv_h: int | None = arg(None, "Hue jitter, OpenCV degrees.", low=0, high=90, path="augment.hsv.hue")
    hsv_s: int | None = arg(None, "Saturation jitter.", low=0, high=255, path="augment.hsv.saturation")
    hsv_v: int | None = arg(None, "Value jitter.", low=0, high=255, path="augment.hsv.value")
    flip_prob: float | None = arg(None, "Probability of a left-right mirror.", low=0.0, high=1.0, path="augment.flip.p")
    flip_vertical_prob: float | None = arg(
        None, "Probability of a top-bottom mirror.", low=0.0, high=1.0, path="augment.flip_vertical.p"
    )
    rotate90_prob: float | None = arg(
        None, "Probability of a quarter turn (photos from above).", low=0.0, high=1.0, path="augment.rotate90.p"
    )
    crop_scale: tuple[float, float] | None = arg(
        None, "Area range of random crops.", low=0.01, high=1.0, path="augment.crop.scale"
    )
    crop_zoom: tuple[float, float] | None = arg(
        None,
        "Range of the zoom before a random crop (semantic).",
        low=0.01,
        high=10.0,
        path="augment.scale_crop.scale",
        example="0.5,2.0",
    )
    crop_class_share: float | None = arg(
        None,
        "A crop in which one class fills more than this is drawn anew (semantic).",
        low=0.0,
        high=1.0,
        path="augment.scale_crop.most",
    )
    photometric_prob: float | None = arg(
        None, "Probability of photometric distortion.", low=0.0, high=1.0, path="augment.photometric.p"
    )
    zoom_out_prob: float | None = arg(
        None, "Probability of zooming out onto a larger canvas.", low=0.0, high=1.0, path="augment.zoom_out.p"
    )
    zoom_out_scale: tuple[float, float] | None = arg(
        None, "Range of that canvas's size.", low=1.0, high=10.0, path="augment.zoom_out.scale", example="1,4"
    )
    iou_crop_prob: float | None = arg(
        None, "Probability of a crop that overlaps some box.", low=0.0, high=1.0, path="augment.iou_crop.p"
    )
    erase_prob: float | None = arg(None, "Probability of random erasing.", low=0.0, high=1.0, path="augment.erase.p")
    auto_augment: str | None = arg(
        None, "Augmentation policy.", choices=("", "randaugment", "autoaugment", "augmix"), path="augment.auto.policy"
    )

    auxiliary: bool | None = arg(
        None,
        "Train with the branch that serves training alone, where the family has one.",
        path="training.auxiliary",
    )
    loss: str = arg("default", "Loss by name; plugins may add some for any family.")
    amp: bool | None = arg(None, "Mixed precision.", path="precision.amp")
    amp_dtype: str | None = arg(
        None, "Type of mixed precision.", choices=("float16", "bfloat16"), path="precision.dtype"
    )
    channels_last: bool | None = arg(None, "Memory format of convolutional networks; default: where it is faster.")
    tf32: bool = arg(False, "TensorFloat-32 matrix products on GPUs that have them.")
    fused: bool | None = arg(None, "Fused optimizer kernel; default: where torch has one for the device.")
    sync_bn: bool | None = arg(None, "Batch statistics over all devices of a distributed run.", path="ranks.sync_bn")
    cuda_graph: bool | str = arg(
        False,
        "Launch the network's forward and backward as CUDA graphs; full: together with the loss, as one.",
        choices=(False, True, "full"),
    )
    compile: bool | str = arg(
        False,
        "torch.compile on the network; true means default.",
        choices=(False, True, "default", "reduce-overhead", "max-autotune"),
    )
    profile: bool = arg(False, "Profile a window of real steps, then go on.")
    profile_warmup: int = arg(5, "With profile: steps to discard first.", low=0, high=100000)
    profile_steps: int = arg(20, "With profile: steps to measure after those.", low=4, high=1000)

    cache: str = arg("", "Keep decoded images: ram or disk.", choices=("", "ram", "disk"))
    strict: bool = arg(False, "Make every fault of the data set an error.")
    pretrained: bool = arg(True, "Start from weights when the model name has released ones.")
    resume: bool | str = arg(False, "Continue a run: true for the newest under project/, or its folder or checkpoint.")
    project: str = arg("runs/train", "Folder of runs.")
    name: str = arg("", "Name of this run; default: exp, exp2, ...")
    exist_ok: bool = arg(False, "Write into an existing run folder of that name.")
    save_period: int = arg(0, "Keep a checkpoint of every so many epochs, 0: only best and last.", low=0)
    save_steps: int = arg(0, "Also save last.pt every so many optimizer steps, 0: only at the end of an epoch.", low=0)
    log_interval: int = arg(10, "Steps between readings of the loss.", low=1)
    on_nonfinite: str = arg("stop", "What a loss that is not finite does.", choices=("stop", "skip"))
    plots: bool = arg(True, "Write pictures into the run folder.")
    loggers: tuple[str, ...] = arg(
        ("csv",), "Loggers by name: csv, tensorboard, or a plugin's.", example="csv,tensorboard"
    )
    callbacks: tuple[Any, ...] = arg((), "Callback objects.", python_only=True)


@dataclass(frozen=True)
class ValArgs:
    """Arguments of ``val``."""

    data: str = arg(MISSING, "Data set, as for train.", example="my.yaml")
    split: str = arg("val", "Which split.", choices=("train", "val", "test"))
    batch: int = arg(16, "Images per batch.", low=1)
    imgsz: int | None = arg(None, "Side of the input in pixels; default: the model's.", low=32, high=8192)
    device: str = arg("auto", "One device, as for train.")
    workers: int | None = arg(None, "Loader processes; default: sized to the machine.", low=0, high=256)
    conf: float | None = arg(None, "Confidence threshold; default: the family's for validation.", low=0.0, high=1.0)
    iou: float | None = arg(None, "Overlap threshold of NMS; default: the family's.", low=0.0, high=1.0)
    max_det: int | None = arg(None, "Most detections per image.", low=1, high=100000)
    strict: bool = arg(False, "Make every fault of the data set an error.")
    plots: bool = arg(True, "Write pictures.")
    project: str = arg("runs/val", "Folder of runs.")
    name: str = arg("", "Name of this run; default: exp, exp2, ...")
    exist_ok: bool = arg(False, "Write into an existing folder of that name.")


@dataclass(frozen=True)
class PredictArgs:
    """Arguments of ``predict``."""

    source: Any = arg(MISSING, "File, folder, glob, list, URL, video, webcam index; in Python also PIL, numpy, tensor.")
    conf: float | None = arg(None, "Confidence threshold; default: the family's.", low=0.0, high=1.0)
    iou: float | None = arg(None, "Overlap threshold of NMS; default: the family's.", low=0.0, high=1.0)
    max_det: int | None = arg(None, "Most detections per image.", low=1, high=100000)
    imgsz: int | None = arg(None, "Side of the input in pixels; default: the model's.", low=32, high=8192)
    batch: int = arg(1, "Images per forward pass.", low=1)
    classes: tuple[int, ...] | None = arg(None, "Keep only these class ids; default: all.", example="0,2")
    agnostic: bool = arg(False, "NMS over all classes together.")
    radius: int | None = arg(
        None, "Points: half-width in cells of the square that a point clears of others.", low=0, high=64
    )
    tile: int | None = arg(
        None,
        "Native-size models: side in pixels of the tiles of a large photo, 0 for never; default: photos above 4 "
        "megapixels in tiles of 1024.",
        low=32,
        high=16384,
        also=(0,),
    )
    tile_overlap: int | None = arg(None, "Pixels that neighbouring tiles share; default: 128.", low=0, high=4096)
    device: str = arg("auto", "One device, as for train.")
    cuda_graph: bool | str = arg(
        False, "Replay the network from a CUDA graph; auto: where that is possible.", choices=(False, True, "auto")
    )
    vid_stride: int = arg(1, "Use every n-th frame of a video.", low=1)
    save: bool = arg(False, "Write annotated pictures.")
    save_txt: bool = arg(False, "Write label files.")
    save_conf: bool = arg(False, "Add confidences to the label files.")
    save_crop: bool = arg(False, "Write a picture of every detection.")
    save_mask: bool = arg(False, "Semantic: write the class of every pixel as a PNG, 255 for none.")
    show: bool = arg(False, "Show pictures in a window.")
    stream: bool = arg(False, "Return a generator.", python_only=True)
    verbose: bool = arg(True, "One line per image.")
    project: str = arg("runs/predict", "Folder of runs.")
    name: str = arg("", "Name of this run; default: exp, exp2, ...")
    exist_ok: bool = arg(False, "Write into an existing folder of that name.")


@dataclass(frozen=True)
class ExportArgs:
    """Arguments of ``export``."""

    format: str = arg("onnx", "Format by name: onnx, torchscript, or a plugin's.")
    path: str = arg("", "File to write; default: beside the weights.")
    imgsz: int | None = arg(None, "Side of the input in pixels; default: the model's.", low=32, high=8192)
    batch: int = arg(1, "Batch size of the exported graph.", low=1)
    dynamic: bool = arg(False, "Leave the batch size open.")
    dynamic_imgsz: bool = arg(False, "Leave height and width open, where the network permits it.")
    half: bool = arg(False, "Compute in float16; inputs and outputs stay float32.")
    nms: bool = arg(False, "Put thresholds and NMS inside the graph.")
    conf: float | None = arg(None, "Confidence threshold inside the graph (with nms).", low=0.0, high=1.0)
    iou: float | None = arg(None, "Overlap threshold inside the graph (with nms).", low=0.0, high=1.0)
    max_det: int | None = arg(None, "Most detections of the graph (with nms).", low=1, high=100000)
    opset: int = arg(17, "ONNX operator set.", low=16, high=20)


Args = typing.TypeVar("Args")


@dataclass(frozen=True)
class Resolved:
    """Training arguments with every value decided.

    Args:
        args: concrete values; an argument the family does not offer stays ``None``.
        sheet: the data sheet with every path override applied.
        origins: for each argument ``user``, ``yaml``, ``family``, ``core`` or ``not offered``.
    """

    args: TrainArgs
    sheet: Task
    origins: dict[str, str]

    def table(self) -> dict[str, dict[str, Any]]:
        """``{name: {"value": ..., "from": ...}}`` for args.yaml and ``--dry-run``."""
        values = asdict(self.args)
        return {k: {"value": _plain(values[k]), "from": self.origins[k]} for k in values if k != "callbacks"}


def resolve_training(
    sheet: Task, user: Mapping[str, Any], yaml: Mapping[str, Any] | None = None, *, title: str = "this family"
) -> Resolved:
    """Decide every training argument.

    Args:
        sheet: the family's sheet for one size (changes for a start from scratch already applied).
        user: what the caller gave; strings from a command line are converted.
        yaml: what ``cfg=`` holds.
        title: the family's name, for messages.

    Raises:
        ConfigError: unknown name, wrong type, out of range, or an argument the family does not offer.
    """
    given = {name: (value, "yaml") for name, value in (yaml or {}).items()}
    given |= {name: (value, "user") for name, value in user.items()}
    known = {f.name: f for f in fields(TrainArgs)}
    hints = typing.get_type_hints(TrainArgs)
    for name in given:
        if name not in known:
            raise ConfigError(f"Unknown training argument {name!r}", where="train", mend=suggestion(name, known))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, f in known.items():
        offered = not f.metadata["needs"] or get_path(sheet, f.metadata["needs"])
        path = _existing(sheet, f.metadata["path"]) if offered else None
        if name in given and not _leaves_open(f, given[name][0]):
            raw, origins[name] = given[name]
            if f.metadata["path"] and path is None:
                raise ConfigError(
                    f"{name}={raw!r} has no meaning for {title}",
                    where=f"train argument {name}",
                    mend="Leave it out: the family's recipe has no such step.",
                )
            values[name] = convert(f, hints[name], raw, where=f"train argument {name}")
            if path is not None:
                value = None if name == "clip" and values[name] == 0 else values[name]
                sheet = with_path(sheet, path, value)
        elif f.metadata["path"]:
            values[name] = get_path(sheet, path) if path else None
            origins[name] = "family" if path else "not offered"
        elif f.default is MISSING:
            raise ConfigError(
                f"{name}= is missing", where="train", mend=f"Give it, e.g. {name}={f.metadata['example']}."
            )
        else:
            values[name], origins[name] = f.default, "core"
    return Resolved(TrainArgs(**values), sheet, origins)


def make_args(kind: type[Args], given: Mapping[str, Any], *, verb: str) -> Args:
    """An instance of ``kind`` (``ValArgs``, ``PredictArgs``, ``ExportArgs``) from what the caller gave, validated."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in given:
        if name not in known:
            raise ConfigError(f"Unknown argument {name!r}", where=verb, mend=suggestion(name, known))
    values = {}
    for name, f in known.items():
        if name in given and (given[name] is not None or type(None) in get_args(hints[name])):
            values[name] = convert(f, hints[name], given[name], where=f"{verb} argument {name}")
        elif f.default is MISSING:
            raise ConfigError(
                f"{name}= is missing", where=verb, mend=f"Give it, e.g. {name}={f.metadata['example'] or '...'}."
            )
    return kind(**values)


def read_yaml_arguments(path: str | Path) -> dict[str, Any]:
    """Training arguments from a YAML file (``cfg=``); also reads the ``args.yaml`` that a run leaves, but for what it
    was resumed from."""
    import yaml

    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8-sig")) if file.stat().st_size < 1_000_000 else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).replace("\n", " ")
        raise ConfigError(
            f"{path} cannot be read: {reason}", where="cfg", mend="Give a YAML file of arguments."
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no mapping of arguments", where="cfg", mend="Write lines such as 'epochs: 50'.")
    given: dict[str, Any] = {}
    for name, value in content.items():
        left_by_a_run = isinstance(value, dict) and set(value) == {"value", "from"}
        if not (left_by_a_run and name == "resume"):
            given[name] = value["value"] if left_by_a_run else value
    return given


def _leaves_open(f: Field, raw: Any) -> bool:
    """Whether a given value says that the family decides, as leaving the argument out does."""
    word = isinstance(raw, str) and raw.lower() in ("none", "null")
    return raw is None or (word and f.default is None and "" not in f.metadata["choices"])


def _existing(sheet: Task, paths: str) -> str | None:
    for path in filter(None, paths.split("|")):
        try:
            get_path(sheet, path)
        except ConfigError:
            continue
        return path
    return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
