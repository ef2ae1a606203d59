"""The data sheet of a model family: frozen, torch-free dataclasses.

A family is declared once, as one ``Family`` returned by the hook ``libreyolo_families``. Code is named by
reference (``"package.module:Name"``) and imported only when a model is built, so a sheet costs nothing to list.
To add a family read an existing ``plugin.py`` next to this page; ``libreyolo check-family KEY`` proves the result.

Everything below can be addressed by a dotted path, which is how sizes, variants, changes and the user's training
arguments override it: ``recipe.optimizer.lr``, ``augment.mosaic.p``, ``input.pad``, ``post.nms``, ``loss.l1``.
Two more roots reach live objects: ``model.*`` are keyword arguments of the network's constructor, ``network.*``
options of ``Network.configure``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from libreyolo_core.augment import Augment
from libreyolo_core.errors import ConfigError, PluginError, suggestion

T = TypeVar("T")
SCRATCH = "scratch"
"""``Change(at=SCRATCH, ...)``: applies to a run that starts without weights."""
TAIL = "tail"
"""``Change(at=TAIL, ...)``: applies from the first of the last ``recipe.tail`` (no_aug_epochs) epochs."""


class Keywords:
    """A reference or size with free keyword options, immutable and comparable like the dataclasses around it."""

    options: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(vars(self).items(), key=lambda kv: kv[0]))))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one")

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if v not in ({}, (), None))
        return f"{type(self).__name__}({inner})"

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Size(Keywords):
    """One size of a family.

    Args:
        imgsz: default input side in pixels.
        params: number of parameters at the family's default class count (checked by ``check_family``).
        set: overrides by dotted path for anything else that depends on the size.
        options: what the network's constructor needs.
    """

    imgsz: int
    params: int
    set: dict[str, Any]

    def __init__(self, imgsz: int, *, params: int, set: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._set(imgsz=imgsz, params=params, set=dict(set or {}), options=options)


class Loss(Keywords):
    """A reference to a loss class and its typed options; options are addressed as ``loss.<name>``.

    Args:
        code: the class, see ``libreyolo_core.losses``.
        static: all its shapes follow from the shapes of outputs and padded targets, and it reads nothing on the host.
            Then ``cuda_graph="full"`` may record it with the network, and the check ``capture`` proves it.
        options: keywords of the class.
    """

    code: str
    static: bool

    def __init__(self, code: str, *, static: bool = False, **options: Any) -> None:
        self._set(code=code, static=static, options=options)


@dataclass(frozen=True)
class Optimizer:
    """``name`` is ``sgd``, ``adam`` or ``adamw``; ``lr`` the base rate, ``decay`` the weight decay."""

    name: str = "adamw"
    lr: float = 1e-3
    decay: float = 1e-4
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)


def SGD(lr: float, *, decay: float = 0.0, momentum: float = 0.9, nesterov: bool = False) -> Optimizer:
    """Stochastic gradient descent."""
    return Optimizer("sgd", lr, decay, momentum, nesterov)


def AdamW(lr: float, *, decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    return Optimizer("adamw", lr, decay, betas=betas)


@dataclass(frozen=True)
class Group:
    """An optimizer group; the first group that matches a parameter takes it, the rest forms the last group.

    Args:
        match: regular expression searched in the parameter's name, "" for any.
        of: restricts to parameters of a kind: ``norm`` (weights and biases of normalisation layers), ``bias``
            (any other bias), ``weight`` (any other weight), "" for any; several joined by ``|``.
        lr: factor on the base learning rate.
        decay: weight decay of the group; ``None`` keeps the optimizer's.
        lr_fixed: an absolute learning rate instead of a factor.
        layer_decay: factor per layer of depth, for networks that offer ``layer_of(name) -> int``.
    """

    match: str = ""
    of: str = ""
    lr: float = 1.0
    decay: float | None = None
    lr_fixed: float | None = None
    layer_decay: float | None = None


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run, as a factor of each group's own rate.

    Args:
        anneal: ``constant``, ``linear`` or ``cosine``.
        to: final factor.
        warmup: epochs of warm-up (fractions allowed); ``warmup_steps`` is a floor in optimizer steps.
        power: warm-up factor is ``start + (1 - start) * (step / warm) ** power``.
        start: factor at the first warm-up step.
        momentum: momentum at the start of warm-up (reaches the optimizer's own linearly), ``None`` for none.
        flat: share of the steps after warm-up that stay at 1 before annealing begins; ``"tail"``: those up to the last
            ``recipe.tail`` epochs.
        hold: epochs at the end that stay at ``to``; ``"tail"`` means ``recipe.tail``.
    """

    anneal: str = "cosine"
    to: float = 0.01
    warmup: float = 0.0
    warmup_steps: int = 0
    power: float = 1.0
    start: float = 0.0
    momentum: float | None = None
    flat: float | str = 0.0
    hold: int | str = 0


@dataclass(frozen=True)
class Ema:
    """Moving average of weights with decay ``decay * (1 - exp(-updates / ramp))``; ``on=False`` switches it off."""

    decay: float = 0.9998
    ramp: float = 2000.0
    on: bool = True


@dataclass(frozen=True)
class Recipe:
    """How a family trains unless the user says otherwise.

    Args:
        tail: last epochs without strong augmentation (the training argument ``no_aug_epochs``).
        clip: global gradient norm limit, ``None`` for none.
        nbs: nominal batch: gradients accumulate until this many images, ``None`` for no accumulation.
        freeze: patterns of parameter names that do not train.
        multi_scale: half-width of the random size range as a share of imgsz, 0 for none.
        multi_scale_base: how many times as often imgsz itself is drawn as any other size of that range.
        eval_every: epochs between validations.
        imgsz: training side in pixels, ``None`` for the size's own.
        patience: epochs without a better metric before the run stops, 0 for never.
        drop_last: leave out the last partial batch of an epoch when there is a full one.
    """

    epochs: int = 100
    batch: int = 16
    imgsz: int | None = None
    tail: int = 0
    optimizer: Optimizer = Optimizer()
    groups: tuple[Group, ...] = ()
    schedule: Schedule = Schedule()
    ema: Ema = Ema()
    clip: float | None = None
    nbs: int | None = None
    freeze: tuple[str, ...] = ()
    multi_scale: float = 0.0
    multi_scale_base: int = 1
    eval_every: int = 1
    patience: int = 50
    drop_last: bool = False


@dataclass(frozen=True)
class Change:
    """Something that differs in a part of a run.

    ``at`` is SCRATCH, TAIL, an epoch (int) or a share of the run (float).
    """

    at: str | int | float
    set: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Input:
    """How a photo becomes the network's input; one rule for training, validation, prediction and export.

    Args:
        fit: ``letterbox`` (keep the aspect, pad), ``stretch`` (to the square), ``crop`` (shorter side to
            imgsz / ``margin``, centre crop) or ``native`` (the photo's own size, padded bottom and right to
            ``multiple``; imgsz is then the side of training crops).
        side: where a letterboxed image sits: ``top-left`` or ``centre``.
        pad: value of the padding, 0 to 255.
        border: what fills the padding of ``native``: ``constant`` (the value ``pad``) or ``reflect`` (the photo
            mirrored at its edge; its last pixel repeated where it is too small for that).
        colour: ``rgb`` or ``bgr``, the channel order that the network expects.
        scale: factor on the 0 to 255 pixel value (``1/255`` or 1).
        mean, std: per channel in the network's order, after ``scale``.
        multiple: sides must be a multiple of this many pixels.
        resample: ``linear`` (OpenCV bilinear, no antialias), ``pil-linear`` or ``pil-bicubic`` (antialiased).
        predict_resample: another one for prediction, "" for the same.
        round: ``floor`` or ``nearest`` for the resized sides of a letterbox.
        fixed: only the size's own side is possible.
        margin: crop share of ``fit="crop"``.
    """

    fit: str = "letterbox"
    side: str = "top-left"
    pad: int = 114
    border: str = "constant"
    colour: str = "rgb"
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    multiple: int = 32
    resample: str = "linear"
    predict_resample: str = ""
    round: str = "floor"
    fixed: bool = False
    margin: float = 1.0


@dataclass(frozen=True)
class Post:
    """How canonical predictions become results.

    Args:
        pick: ``best`` (best class of each row) or ``topk`` (best pairs of row and class over the image).
        nms: class-wise non-maximum suppression afterwards.
        iou: its default threshold, ``conf`` the default confidence of prediction, ``max_det`` the most results.
        val_conf, val_iou: the thresholds of validation, the same in training and in ``val``.
        per_level: keep at most this many rows of each level first, 0 for all.
        clamp: clip boxes to the photo.
        radius: point: half-width in cells of the square around a peak in which others are suppressed.
    """

    pick: str = "best"
    nms: bool = True
    conf: float = 0.25
    iou: float = 0.45
    max_det: int = 300
    val_conf: float = 0.001
    val_iou: float = 0.65
    per_level: int = 0
    clamp: bool = True
    radius: int = 1


@dataclass(frozen=True)
class Capture:
    """What of a network a CUDA graph may hold.

    Args:
        label: the captured region of training, in words.
        numerics: how a captured run compares with an eager one, ``exact`` or ``spread``.
        off_reason: why nothing is captured, "" where it is.
        inference_off_reason: why predictions alone are not.
    """

    label: str = ""
    numerics: str = "exact"
    off_reason: str = ""
    inference_off_reason: str = ""


@dataclass(frozen=True)
class Precision:
    """Mixed-precision default of a family and the reason in words."""

    amp: bool = True
    dtype: str = "float16"
    why: str = ""


@dataclass(frozen=True)
class Ranks:
    """Multi-GPU defaults: SyncBatchNorm, whether a device list may spawn workers, and for a family whose N ranks do not
    compute the gradients of one the reason why (``exempt``)."""

    sync_bn: bool = False
    spawn: bool = True
    exempt: str = ""


@dataclass(frozen=True)
class Weights:
    """Released files: ``pattern`` such as ``LibreABC{size}.pt``, further names of the same as ``aliases``, and the
    ``organisation`` on the Hugging Face hub that holds them, "" when none were released."""

    pattern: str
    licence: str = ""
    organisation: str = "LibreYOLO"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """How weight files of this family are recognised and read.

    Args:
        signature: key patterns (shell style) that must all be present in a bare state dict.
        rename: (regular expression, replacement) pairs applied to every key in order.
        drop: key patterns (shell style, or a plain ending) that are ignored.
        optional: key patterns whose absence is no fault.
        training_only: key patterns that exist only while training.
        tied: (alias, original) names of one tensor.
        classes: the key whose first axis counts the classes, "" when only ``adapter`` can tell.
        containers: keys tried for the state dict inside a file without metadata.
        adapter: reference to code with ``inspect(state) -> Found | None`` and optionally
            ``fit(key, old, new, names) -> tensor | None``; see ``libreyolo_core.checkpoint``.
    """

    signature: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    drop: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    training_only: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    classes: str = ""
    containers: tuple[str, ...] = (
        "ema.module",
        "ema",
        "ema_state_dict",
        "params_ema",
        "params",
        "ema_net",
        "net",
        "model",
        "state_dict",
        "encoder",
    )
    adapter: str = ""


@dataclass(frozen=True)
class Task:
    """What a family does for one task (``detect``, ``classify`` ...).

    Args:
        training: keywords of the network's constructor that hold while training only, for modules that inference
            drops, e.g. ``{"auxiliary": True}``, which the training argument of that name overrides. Their keys are
            ``checkpoint.training_only``: best weights are written without them, ``last.pt`` with them. The parameter
            counts of the sizes are those without.
        unused: patterns of parameter names that never get a gradient.
        model: keywords of the network's constructor common to all sizes.
    """

    sizes: Mapping[str, Size]
    loss: Loss
    recipe: Recipe = Recipe()
    input: Input = Input()
    augment: tuple[Augment, ...] = ()
    post: Post = Post()
    capture: Capture = Capture(off_reason="the family registers no region")
    precision: Precision = Precision()
    ranks: Ranks = Ranks()
    changes: tuple[Change, ...] = ()
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 80

    def for_size(self, size: str) -> Task:
        """This sheet with the overrides of ``size`` applied and its constructor options under ``model``."""
        chosen = self.sizes[size]
        sheet = replace(self, model={**self.model, **chosen.options})
        for path, value in chosen.set.items():
            sheet = with_path(sheet, path, value)
        return sheet


@dataclass(frozen=True)
class Family:
    """One model family. ``network`` refers to a ``libreyolo_core.network.Network`` subclass whose constructor takes
    the class count ``nc`` and the options of the size as keywords."""

    key: str
    title: str
    network: str
    tasks: Mapping[str, Task]
    weights: Weights
    checkpoint: Checkpoint = Checkpoint()
    paper: str = ""
    default_size: str = ""
    replaces: str = ""

    @property
    def default_task(self) -> str:
        """The first task of the sheet."""
        return next(iter(self.tasks))


def resolve(reference: str, *, declared_by: str = "") -> Any:
    """Import what ``"package.module:Name"`` (or a module alone) refers to; the error names reference and declarer."""
    module, _, name = reference.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{reference!r} cannot be imported: {error}",
            where=declared_by,
            mend="Reinstall the package that declares it.",
        ) from error


def get_path(sheet: Any, path: str) -> Any:
    """The value at a dotted path of a sheet; raises ``ConfigError`` naming the part that does not exist."""
    value = sheet
    for part in path.split("."):
        value = _child(value, part, path)
    return value


def with_path(sheet: T, path: str, value: Any) -> T:
    """A copy of ``sheet`` in which the value at the dotted path is another one."""
    head, _, rest = path.partition(".")
    if isinstance(sheet, tuple):
        _child(sheet, head, path)
        return tuple(with_path(e, rest, value) if e.name == head else e for e in sheet)  # type: ignore[return-value]
    if isinstance(sheet, Loss):
        return type(sheet)(sheet.code, static=sheet.static, **{**sheet.options, path: value})  # type: ignore[return-value]
    if isinstance(sheet, Mapping):
        return {**sheet, path: value}  # type: ignore[return-value]
    child = _child(sheet, head, path)
    return replace(sheet, **{head: with_path(child, rest, value) if rest else value})  # type: ignore[type-var]


def _child(value: Any, part: str, path: str) -> Any:
    if isinstance(value, tuple):
        named = {e.name: e for e in value}
    elif isinstance(value, Loss):
        named = value.options
    elif isinstance(value, Mapping):
        named = dict(value)
    elif is_dataclass(value):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
    else:
        named = {}
    if part not in named:
        raise ConfigError(f"{part!r} is no part of the sheet", where=path, mend=suggestion(part, named, what="parts"))
    return named[part]
