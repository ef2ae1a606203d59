"""A run from beginning to end, as each of its processes goes through it: check everything first, then make the folder,
then train. ``launch.train`` decides how many processes there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from libreyolo_core.checkpoint import fit_classes, marks, read
from libreyolo_core.data.batch import Batch
from libreyolo_core.data.catalogue import load_data
from libreyolo_core.data.loader import Loader, eval_loader, train_loader
from libreyolo_core.draw import key
from libreyolo_core.engine import autobatch, elastic
from libreyolo_core.engine.callbacks import Callback
from libreyolo_core.engine.optimizer import freeze
from libreyolo_core.engine.plan import Plan, make_plan
from libreyolo_core.engine.progress import Progress
from libreyolo_core.engine.request import Request
from libreyolo_core.engine.rundir import environment, log_to, new_directory, write_yaml
from libreyolo_core.engine.snapshot import Snapshots, restore
from libreyolo_core.engine.sync_bn import synchronise_norms, warn_of_small_shards
from libreyolo_core.engine.trainer import Trainer, TrainResult
from libreyolo_core.family import resolve
from libreyolo_core.losses import Ranks
from libreyolo_core.network import Network
from libreyolo_core.profiler.measuring import profilers
from libreyolo_core.registry import registry
from libreyolo_core.tasks.base import Metrics
from libreyolo_core.threads import default_workers
from libreyolo_core.validator import validate

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

log = logging.getLogger("libreyolo")


def train_here(model: LibreYOLO, wanted: Request, device: torch.device, ranks: Ranks) -> TrainResult:
    """The run itself, as each of its processes goes through it."""
    args = wanted.resolved.args
    spec = load_data(args.data, model.task_name)
    train_scan = model.task.scan(spec, "train", strict=args.strict)
    val_scan = model.task.scan(spec, "val", strict=args.strict) if "val" in spec.splits else None
    resolved = wanted.resolved
    if resolved.sheet.recipe.batch == -1 and device.type == "cuda":
        found = ranks.on_first(lambda: autobatch.fitting_batch(model, resolved, train_scan, device, ranks.size))
        resolved = autobatch.with_batch(resolved, found)
    plan = make_plan(
        resolved,
        samples=len(train_scan.images),
        default_imgsz=model.base_imgsz,
        device_type=device.type,
        world=ranks.size,
    )
    callbacks: list[Callback] = []
    if ranks.rank == 0:
        callbacks = [*_loggers(args.loggers), *args.callbacks, *profilers(args, ranks), Progress()]
    torch.manual_seed(args.seed)
    network = _network_for(model, plan, spec.names, wanted)
    if ranks.size > 1:
        if plan.sheet.ranks.sync_bn:
            synchronise_norms(network, device)
        else:
            warn_of_small_shards(network, plan.batch, ranks.size)
        # torch's own generator serves whatever does not draw from the samples' keys, third-party dropout above all
        torch.manual_seed(key(args.seed, ranks.rank))
    workers = default_workers(device.type, ranks.local_size) if args.workers is None else args.workers
    with ExitStack() as stack:
        stack.enter_context(_numerics(args.deterministic, args.tf32))
        dataset = model.task.dataset(train_scan, plan.sheet, seed=args.seed, cache=args.cache)
        loader = stack.enter_context(
            train_loader(
                dataset,
                partial(model.task.collate, sheet=plan.sheet),
                batch=plan.batch,
                seed=args.seed,
                workers=workers,
                drop_last=plan.sheet.recipe.drop_last,
                pin=device.type == "cuda",
                canvas=plan.canvas,
                rank=ranks.rank,
                world=ranks.size,
            )
        )
        check = _validation(stack, model, plan, spec.names, val_scan, device, workers, ranks)
        directory = ranks.on_first(lambda: _directory(wanted, args))
        folder = directory / "weights"
        if ranks.rank == 0:
            folder.mkdir(exist_ok=True)
            stack.enter_context(log_to(directory / "train.log"))
            elastic.remember(directory)
        else:
            directory.mkdir(parents=True, exist_ok=True)  # on a disk of its own; a report of a hanging rank goes there
        identity = {
            "family": model.key,
            "size": model.size,
            "task": model.task_name,
            "nc": len(spec.names),
            "names": spec.names,
            "imgsz": plan.imgsz,
            **marks(plan.sheet.input),
        }
        arguments = {"args": wanted.resolved.table(), "from_scratch": wanted.from_scratch}
        draws = args.plots and ranks.rank == 0
        trainer = Trainer(
            plan,
            network,
            model.task,
            device=device,
            batches=_batches(loader, directory if draws else None, model, plan, spec.names),
            validate=check,
            snapshots=Snapshots(folder, identity, arguments, model.family.checkpoint.training_only),
            directory=directory,
            callbacks=callbacks,
            ranks=ranks,
        )
        if wanted.checkpoint is not None:
            restore(trainer, wanted.checkpoint)

        def opening() -> None:
            _describe(directory, wanted, plan, trainer, [train_scan, val_scan])
            if draws:
                model.task.plot_labels(train_scan, spec.names, directory / "labels.png")

        ranks.on_first(opening)
        result = trainer.fit()
        if check is None:
            result.best = trainer.snapshots.last
        model.adopt(ranks.on_first(lambda: read(result.best)), device)  # rank 0 wrote it, on its disk
        if draws:
            _final_pictures(model, val_scan, plan, result, directory, workers)
        log.info("done: %s, best %s, weights %s", directory, _best_line(trainer), result.best)
    return result


def _network_for(model: LibreYOLO, plan: Plan, names: dict[int, str], wanted: Request) -> Network:
    """The network to train: fresh under the seed, with whatever weights the model has, fitted to the data's classes."""
    nc = len(names)
    options = {**plan.sheet.model, **plan.sheet.training}
    network: Network = resolve(model.family.network, declared_by=model.key)(nc=nc, **options)
    if wanted.checkpoint is None and not wanted.from_scratch:
        state, old = model.network.state_dict(), model.nc
        fit_classes(
            network, state, model.family.checkpoint, old_nc=old, new_nc=nc, names=[names[i] for i in sorted(names)]
        )
    freeze(network, plan.sheet, given=wanted.resolved.origins["freeze"] in ("user", "yaml"))
    return network


def _validation(stack, model, plan, names, scan, device, workers, ranks):
    """``validate(network) -> Metrics`` on the validation split, ``None`` without one. Every rank takes its share of the
    photos and gets the metrics of all of them."""
    if scan is None:
        log.warning("the data set has no val split: nothing is measured, and the last weights count as the best")
        return None
    loader = eval_loader(
        model.task.dataset(scan, plan.sheet),
        partial(model.task.collate, sheet=plan.sheet),
        batch=plan.batch,
        size=(plan.imgsz, plan.imgsz),
        workers=min(workers, 2),
        pin=device.type == "cuda",
        rank=ranks.rank,
        world=ranks.size,
    )
    stack.enter_context(loader)

    def check(network: Network) -> Metrics:
        network.eval()
        evaluator = model.task.evaluator(scan, plan.sheet, names)
        return validate(model.inference(network, plan.sheet.input, device), loader, evaluator, ranks=ranks)

    return check


def _batches(loader: Loader, directory: Path | None, model: LibreYOLO, plan: Plan, names: dict[int, str]):
    """``batches(run, epoch, start)``; the first batches of a run are also drawn into ``directory``."""

    def batches(run: Trainer, epoch: int, start: int) -> Iterator[Batch]:
        augment = plan.phase(epoch).sheet.augment
        source = loader.epoch(
            epoch,
            size=(plan.imgsz, plan.imgsz),
            sizes=lambda index: plan.size(epoch, index),
            augment=augment,
            start_batch=start,
        )
        for index, batch in enumerate(source, start):
            if directory is not None and epoch == 0 and index < 3:
                model.task.plot_batch(batch, names, directory / f"train_batch{index}.jpg", plan.sheet)
            yield batch

    return batches


def _final_pictures(model, scan, plan, result, directory, workers) -> None:
    """Curves of the run, and the best weights' figures and pictures on the validation split."""
    from libreyolo_core.pictures.runs import plot_results

    plot_results(directory / "results.csv", directory / "results.png")
    if scan is not None:
        metrics, evaluator = model.measure(scan, plan.imgsz, plan.batch, workers)
        result.per_class = metrics.per_class
        result.speed = metrics.speed
        evaluator.plot(metrics, directory)


def _loggers(names: tuple[str, ...]) -> list[Callback]:
    return [registry().named("loggers", name, what="logger")() for name in names]


def _directory(wanted: Request, args: Any) -> Path:
    """The run's folder: a new one, or for a resume the one it was."""
    if wanted.checkpoint is not None:
        assert wanted.checkpoint.path is not None
        return wanted.checkpoint.path.resolve().parent.parent
    return new_directory(args.project, args.name, exist_ok=args.exist_ok)


def _describe(directory: Path, wanted: Request, plan: Plan, trainer: Trainer, scans: list) -> None:
    """args.yaml, dataset_report.txt, environment.txt, and the opening lines of the log."""
    table = wanted.resolved.table()
    for name in ("batch", "imgsz", "warmup_epochs", "no_aug_epochs"):
        value = getattr(plan.args, name)
        if table[name]["value"] != value:
            table[name] = {"value": value, "from": f"{table[name]['from']}, fitted to the run"}
    write_yaml(directory / "args.yaml", table)
    (directory / "dataset_report.txt").unlink(missing_ok=True)
    for scan in filter(None, scans):
        scan.write(directory / "dataset_report.txt")
    lines = [f"{k}: {v}" for k, v in {**environment(), "precision": trainer.mode.name}.items()]
    (directory / "environment.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for note in plan.notes:
        log.info("%s", note)
    trainable = sum(p.numel() for p in trainer.parameters)
    log.info(
        "%s in %s: %d images, %d epochs of %d steps at batch %d%s, %d px, %s on %s, %s trainable parameters",
        "resuming" if wanted.checkpoint else "training",
        directory,
        plan.samples,
        plan.epochs,
        plan.updates_per_epoch,
        plan.batch,
        f" x {plan.accumulate}" if plan.accumulate > 1 else "",
        plan.imgsz,
        trainer.mode.name,
        trainer.device,
        f"{trainable:,}",
    )


def _best_line(trainer: Trainer) -> str:
    best = trainer.best
    return (
        f"{trainer.task.fitness} {best['fitness']:.4f} at epoch {best['epoch']}"
        if best["fitness"] is not None
        else "unmeasured"
    )


@contextmanager
def _numerics(deterministic: bool, tf32: bool) -> Iterator[None]:
    """Process-wide switches of a run, put back afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    # Also stops MKL from choosing the number of threads by itself, call by call: another number sums in another order,
    # and whether it may choose depends on what the process did before.
    torch.set_num_threads(torch.get_num_threads())
    if deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if tf32:
        if not torch.cuda.is_available():
            log.info("tf32: there is no CUDA device, float32 products stay as they are")
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.use_deterministic_algorithms(before)
        torch.set_float32_matmul_precision(precision)
