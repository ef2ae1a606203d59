"""``LibreYOLO``: load, train, val, predict, export. The only thing most users touch."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from libreyolo_core import checkpoint, hub
from libreyolo_core.config import ExportArgs, Resolved, ValArgs, make_args
from libreyolo_core.engine.device import one_device, parse_device
from libreyolo_core.engine.plan import check_imgsz, scratch
from libreyolo_core.errors import CheckpointError, ConfigError, UnknownNameError, UsageError, suggestion
from libreyolo_core.family import Family, Input, Task, resolve, with_path
from libreyolo_core.inference import Inference
from libreyolo_core.network import Network
from libreyolo_core.predictions import Predictions
from libreyolo_core.registry import registry
from libreyolo_core.tasks.base import Evaluator, Metrics

if TYPE_CHECKING:
    from libreyolo_core.engine.inference import CapturedInference
    from libreyolo_core.engine.trainer import TrainResult
    from libreyolo_core.results import Results

log = logging.getLogger("libreyolo")
EXPORTED = (".onnx", ".torchscript")


@dataclass
class Validation(Metrics):
    """What ``val`` returns: ``Metrics`` and the folder with its pictures."""

    save_dir: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "metrics": self.values,
            "per_class": self.per_class,
            "speed": self.speed,
            "save_dir": str(self.save_dir) if self.save_dir else None,
        }


class LibreYOLO:
    """A model: one family at one size, with weights or without.

    Args:
        model: a weight file (``runs/train/exp/weights/best.pt``, safetensors, an exported ONNX file), a released name
            (``LibreABCs.pt``), or family and size (``abc-s``).
        pretrained: ``False`` starts a named model without weights; nothing is downloaded.
        nc: number of classes of a model without weights, default the family's own.
        task: one of the family's tasks, default its first (or the file's).
        names: class names, a list or {index: name}.
        device: where predictions run; training takes its own ``device=``.

    Raises:
        CheckpointError: a file that cannot be read, is unsafe, or fits no installed family; a failed download.
        UnknownNameError: a name that no installed family has.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        pretrained: bool = True,
        nc: int | None = None,
        task: str | None = None,
        names: Mapping[int, str] | list[str] | None = None,
        device: str | int = "auto",
    ) -> None:
        _set_up_logging()
        self.device = one_device(device, verb="prediction")
        self.exported: Any = None
        self.network: Network = None  # type: ignore[assignment]
        self.recordings: CapturedInference | None = None
        self.weights: Path | None = None
        self._saved_imgsz: int | None = None
        self.family: Family
        self.base_sheet: Task
        path = Path(model)
        if path.suffix.lower() in EXPORTED:
            self._open_exported(path)
        elif path.is_file():
            self._open(path, task)
        elif pretrained:
            self._open(hub.locate(_with_size(str(model)), registry().families()), task)
        else:
            self._build(_with_size(str(model)), task, nc)
        if names is not None:
            self._rename(names)

    def _build(self, name: str, task: str | None, nc: int | None) -> None:
        """A named model without weights."""
        families = registry().families()
        found = hub.find(name, families)
        if found is None:
            known = sorted(f"{k}-{s}" for k, f in families.items() for s in f.tasks[f.default_task].sizes)
            raise UnknownNameError(
                f"Unknown model {name!r}",
                where=f"installed families: {', '.join(families) or 'none'}",
                mend=f"{suggestion(name, known, what='models')} Families come with pip install libreyolo-family-NAME.",
            )
        family, size = families[found.family], found.size
        self._become(family, size, task or family.default_task)
        for path, value in self.family.tasks[self.task_name].variants.get(found.variant, {}).items():
            self.base_sheet = with_path(self.base_sheet, path, value)
        self.nc = int(nc) if nc else self.base_sheet.classes
        if self.nc < 1:
            raise ConfigError(f"nc={nc!r} is below 1", where="nc", mend="Give the number of classes.")
        if self.nc != 1 and not self.task.has_classes:
            raise ConfigError(f"nc={nc!r}: the task {self.task_name} has no classes", where="nc", mend="Leave nc= out.")
        self.names = {i: f"class_{i}" for i in range(self.nc)} if self.task.has_classes else {0: "image"}
        self.from_scratch = True
        self.sheet = scratch(self.base_sheet)
        self._set_network(resolve(family.network, declared_by=family.key)(nc=self.nc, **self.sheet.model))

    def _open(self, path: Path, task: str | None) -> None:
        """A weight file."""
        file = checkpoint.read(path)
        families = registry().families()
        found = checkpoint.identify(file, families, path.name)
        if task and task != found.task:
            raise UsageError(f"{path} is a {found.task} model, not {task}", where="task", mend="Leave task= out.")
        self.weights = path
        self._take(families[found.family], found)

    def _take(self, family: Family, found: checkpoint.Found) -> None:
        self._become(family, found.size, found.task)
        self.sheet = self.base_sheet = found.sheet(family)
        self.nc, self.names = found.nc, dict(found.names)
        self.from_scratch = False
        self._saved_imgsz = found.imgsz
        network = resolve(family.network, declared_by=family.key)(nc=found.nc, **self.sheet.model)
        self.load_report = checkpoint.load_into(network, found.state, family.checkpoint)
        self._set_network(network)

    def _open_exported(self, path: Path) -> None:
        """An ONNX or TorchScript file that ``export`` wrote."""
        from libreyolo_core.export.runtime import load_exported

        runtime = load_exported(path)
        self.exported, self.weights = runtime, path
        self.key, self.size = runtime.family, runtime.size
        self.task_name, self.task = runtime.task, registry().task(runtime.task)
        self.sheet, self.nc, self.names = runtime.sheet, runtime.nc, dict(runtime.names)
        self.base_imgsz, self._saved_imgsz, self.from_scratch = runtime.imgsz, runtime.imgsz, False

    def _become(self, family: Family, size: str, task: str) -> None:
        if task not in family.tasks:
            raise UnknownNameError(
                f"{family.title} has no task {task!r}", where="task", mend=suggestion(task, family.tasks, what="tasks")
            )
        self.family, self.key, self.size, self.task_name = family, family.key, size, task
        self.task = registry().task(task)
        self.base_sheet = family.tasks[task].for_size(size)
        self.base_imgsz = family.tasks[task].sizes[size].imgsz

    def _set_network(self, network: Network) -> None:
        self.network = network.to(self.device).eval()
        self.recordings = None

    def _rename(self, names: Mapping[int, str] | list[str]) -> None:
        given = dict(names) if isinstance(names, Mapping) else dict(enumerate(names))
        if sorted(given) != list(range(self.nc)):
            raise ConfigError(
                f"names has {len(given)} entries, the model has {self.nc} classes",
                where="names",
                mend="Give one name per class.",
            )
        self.names = {int(k): str(v) for k, v in given.items()}

    def adopt(self, file: checkpoint.File, device: torch.device | None = None) -> None:
        """Become what a checkpoint of this family holds; what ``train`` does at its end."""
        found = checkpoint.identify(file, registry().families(), file.path.name if file.path else "")
        self.device = device or self.device
        self.weights = file.path
        self._take(registry().family(found.family), found)

    @property
    def imgsz(self) -> int:
        """Default side of the input in pixels: what the weights were trained at, else the size's own."""
        return self._saved_imgsz or self.base_imgsz

    def train(self, **arguments: Any) -> TrainResult:
        """Train on ``data=``; the model ends up with the best weights. All arguments: ``libreyolo train --help``.

        Raises:
            ConfigError, DeviceError, DataError: before anything is written.
            TrainingError: the run could not go on.
        """
        self._needs_network("train")
        from libreyolo_core.engine.launch import train

        return train(self, arguments)

    def plan(self, **arguments: Any) -> Resolved:
        """Every training argument with its value and where it comes from; nothing is read or written."""
        self._needs_network("train")
        from libreyolo_core.engine.request import request

        return request(self, arguments).resolved

    def val(self, **arguments: Any) -> Validation:
        """Measure on a split of ``data=``.

        Raises:
            ConfigError, DeviceError, DataError: bad arguments or data.
        """
        from libreyolo_core.data.catalogue import load_data
        from libreyolo_core.engine.rundir import new_directory

        args = make_args(ValArgs, arguments, verb="val")
        if args.imgsz and self.sheet.input.fit == "native":
            raise ConfigError(
                f"imgsz={args.imgsz} has no meaning for a model that is measured at the photos' own sizes",
                where="val argument imgsz",
                mend="Leave it out.",
            )
        self.to(args.device)
        spec = load_data(args.data, self.task_name)
        scan = self.task.scan(spec, args.split, strict=args.strict)
        thresholds = {"conf": args.conf, "iou": args.iou, "max_det": args.max_det}
        imgsz = check_imgsz(self.sheet, args.imgsz or self.imgsz, self.imgsz)
        metrics, evaluator = self.measure(scan, imgsz, args.batch, args.workers, **thresholds)
        directory = None
        if args.plots:
            directory = new_directory(args.project, args.name, exist_ok=args.exist_ok)
            evaluator.plot(metrics, directory)
        return Validation(
            **{k: getattr(metrics, k) for k in ("values", "per_class", "curves", "speed")}, save_dir=directory
        )

    def measure(
        self, scan: Any, imgsz: int, batch: int, workers: int | None = None, **thresholds: Any
    ) -> tuple[Metrics, Evaluator]:
        """Metrics on a scanned split, and the evaluator that holds what its pictures need."""
        from functools import partial

        from libreyolo_core.data.loader import eval_loader
        from libreyolo_core.threads import default_workers
        from libreyolo_core.validator import validate

        dataset = self.task.dataset(scan, self.sheet)
        workers = default_workers(self.device.type) if workers is None else workers
        with eval_loader(
            dataset, partial(self.task.collate, sheet=self.sheet), batch=batch, size=(imgsz, imgsz), workers=workers
        ) as loader:
            evaluator = self.task.evaluator(
                scan, self.sheet, self.names, **{k: v for k, v in thresholds.items() if v is not None}
            )
            return validate(self.infer, loader, evaluator), evaluator

    def predict(self, source: Any, **arguments: Any) -> list[Results] | Iterator[Results]:
        """Run on images, folders, videos ...; one ``Results`` per image, a generator with ``stream=True``.

        Raises:
            UsageError: a source that does not exist or means nothing.
        """
        from libreyolo_core.predictor import predict

        self.to(arguments.pop("device", "auto"))
        return predict(self, source, **arguments)

    __call__ = predict

    def export(self, **arguments: Any) -> Path:
        """Write the model in another format; returns the file.

        Raises:
            ExportError: a missing package, or a model that the format cannot hold.
        """
        self._needs_network("export")
        args = make_args(ExportArgs, arguments, verb="export")
        from libreyolo_core.export import ExportOptions

        function = registry().named("exporters", args.format, what="export format")
        options = asdict(args)
        path = options.pop("path") or str(
            (self.weights or Path(f"{self.key}-{self.size}")).with_suffix(f".{args.format}")
        )
        options.pop("format")
        options["imgsz"] = check_imgsz(self.sheet, args.imgsz or self.imgsz, self.imgsz)
        return function(self, Path(path), ExportOptions(**options))

    def save(self, path: str | Path) -> Path:
        """Write the weights with all metadata (``.pt`` or ``.safetensors``)."""
        self._needs_network("save")
        return checkpoint.write(
            path,
            checkpoint.payload(
                self.network.state_dict(),
                family=self.key,
                size=self.size,
                task=self.task_name,
                nc=self.nc,
                names=self.names,
                imgsz=self.imgsz,
                **checkpoint.marks(self.sheet.input),
            ),
        )

    def to(self, device: str | int | torch.device) -> LibreYOLO:
        """Move to a device; ``auto`` stays where it is."""
        if device != "auto":
            wanted = parse_device(device)[0]
            if self.network is not None and wanted != self.device:
                self.network.to(wanted)
                self.recordings = None
            self.device = wanted
        return self

    def infer(self, images: Tensor) -> Predictions:
        """Canonical predictions for uint8 images [N, 3, H, W] in the network's channel order."""
        if self.exported is not None:
            return self.exported.infer(images)
        return self.inference(self.network, self.sheet.input, self.device)(images)

    def infer_captured(self, cuda_graph: bool | str) -> Callable[[Tensor], Predictions]:
        """``infer`` with the network's forward replayed from a CUDA graph where that is possible, one for each shape.

        Args:
            cuda_graph: ``True``, or ``"auto"`` for where it is possible without a word where it is not.

        Returns:
            A function like ``infer``. ``self.capture`` counts what it did.
        """
        from libreyolo_core.engine.inference import CapturedInference

        if self.exported is not None:
            if cuda_graph is True:
                log.info("cuda_graph: %s is an exported model, its own runtime runs it", self.weights)
            return self.infer
        if self.recordings is None:
            self.recordings = CapturedInference.on(
                self.device, self.network, self.sheet.capture, quiet=cuda_graph == "auto"
            )
        if cuda_graph is True:
            self.recordings.insist()
        return Inference(self.network, self.sheet.input, self.device, self.recordings)

    @property
    def capture(self) -> dict[str, Any]:
        """How predictions with ``cuda_graph`` went: ``captured``, ``replayed`` and ``eager`` forward passes, and the
        ``reasons`` in words; empty without."""
        return self.recordings.counts.to_dict() if self.recordings else {}

    @staticmethod
    def inference(network: Network, rule: Input, device: torch.device) -> Inference:
        """What ``infer`` does, for any network of the family."""
        return Inference(network, rule, device)

    def info(self) -> dict[str, Any]:
        """Family, size, task, classes, parameters."""
        count = sum(p.numel() for p in self.network.parameters()) if self.network is not None else None
        return {
            "family": self.key,
            "size": self.size,
            "task": self.task_name,
            "nc": self.nc,
            "names": self.names,
            "imgsz": self.imgsz,
            "parameters": count,
            "weights": str(self.weights) if self.weights else None,
        }

    def deployed(self) -> Network:
        """A copy of the network in its inference form; the model itself stays trainable."""
        self._needs_network("deployed")
        return copy.deepcopy(self.network).deploy().eval()

    def _needs_network(self, verb: str) -> None:
        if self.network is None:
            raise CheckpointError(
                f"{self.weights} is an exported model", where=verb, mend="Load the .pt file that it was exported from."
            )

    def __repr__(self) -> str:
        return f"LibreYOLO({self.key}-{self.size}, {self.task_name}, {self.nc} classes)"


def _with_size(name: str) -> str:
    """A bare family key with the family's default size; any other name as it is."""
    family = registry().families().get(name)
    if family is None:
        return name
    sizes = [f"{name}-{s}" for s in family.tasks[family.default_task].sizes]
    if not family.default_size:
        raise UnknownNameError(f"{name!r} names no size", where=family.title, mend=f"Use one of: {', '.join(sizes)}.")
    return f"{name}-{family.default_size}"


def _set_up_logging() -> None:
    """Show the library's messages on stderr unless the application has set up logging of its own."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
