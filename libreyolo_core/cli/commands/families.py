"""``libreyolo families``: everything here is read from the data sheets; no family's code is imported."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from libreyolo_core.cli.command import Positional, command
from libreyolo_core.cli.output import Answer, Table
from libreyolo_core.family import Family, Recipe, Task
from libreyolo_core.support import split_point, support, yes

HEADINGS = ("key", "title", "task", "sizes", "parameters", "captured", "amp", "sync_bn", "spawn", "package")


@command(
    "families",
    summary="List installed model families, or show one.",
    positional=Positional("family", "A family's key: show its data sheet.", required=False),
    notes="captured: what of the network a CUDA graph can hold. amp: mixed precision by default.\n"
    "sync_bn: batch statistics over all GPUs by default. spawn: device=0,1 starts one process per GPU.",
)
def families(given: dict[str, Any]) -> Answer:
    """List all, or show one sheet."""
    from libreyolo_core.registry import registry

    if "family" in given:
        family = registry().family(given["family"])
        return Answer(describe(family), tuple(_sheet(family)))
    found = list(registry().families().values())
    if not found:
        hint = "No family is installed. Each is a package of its own: pip install libreyolo-family-NAME"
        return Answer({"families": []}, (hint,))
    rows = tuple(_row(family, name) for family in found for name in family.tasks)
    return Answer({"families": [describe(f) for f in found]}, (Table(HEADINGS, rows),))


def package_of(key: str) -> str:
    """Distribution and version a family comes from."""
    from libreyolo_core.registry import registry

    distribution = registry().entries("families")[key].distribution
    version = next((p.version for p in registry().plugins if p.distribution == distribution), "")
    return f"{distribution} {version}".strip()


def describe(family: Family) -> dict[str, Any]:
    """A sheet as plain values."""
    return {
        "key": family.key,
        "title": family.title,
        "package": package_of(family.key),
        "paper": family.paper,
        "default_size": default_size(family),
        "weights": asdict(family.weights),
        "tasks": {name: _describe_task(task) for name, task in family.tasks.items()},
    }


def default_size(family: Family) -> str:
    """The size a bare family name means."""
    return family.default_size or next(iter(family.tasks[family.default_task].sizes))


def millions(parameters: int) -> str:
    """``8.97M``; ``62.4k`` below a tenth of a million."""
    if parameters < 1e5:
        return f"{parameters / 1e3:.3g}k"
    return f"{parameters / 1e6:.3g}M" if parameters < 1e8 else f"{parameters / 1e6:.0f}M"


def _describe_task(task: Task) -> dict[str, Any]:
    return {
        "sizes": {name: {"imgsz": s.imgsz, "parameters": s.params} for name, s in task.sizes.items()},
        "classes": task.classes,
        "variants": list(task.variants),
        "recipe": asdict(task.recipe),
        "augment": [{"name": a.name, **asdict(a)} for a in task.augment],
        "input": asdict(task.input),
        "post": asdict(task.post),
        "loss": {"code": task.loss.code, "static": task.loss.static, **task.loss.options},
        "training": dict(task.training),
        "capture": asdict(task.capture),
        "support": support(task),
        "precision": asdict(task.precision),
        "ranks": asdict(task.ranks),
    }


def _row(family: Family, name: str) -> tuple[str, ...]:
    task = family.tasks[name]
    counts = [s.params for s in task.sizes.values()]
    low, high = millions(min(counts)), millions(max(counts))
    return (
        family.key,
        family.title,
        name,
        " ".join(task.sizes),
        low if low == high else f"{low} to {high}",
        split_point(task),
        yes(task.precision.amp),
        yes(task.ranks.sync_bn),
        yes(task.ranks.spawn),
        package_of(family.key),
    )


def _sheet(family: Family) -> list[str | Table]:
    parts: list[str | Table] = [
        f"{family.title} ({family.key})",
        f"package   {package_of(family.key)}",
        f"paper     {family.paper or 'not stated'}",
        f"weights   {_weights(family)}",
    ]
    for name, task in family.tasks.items():
        rows = tuple(
            (size + (" *" if size == default_size(family) else ""), str(s.imgsz), millions(s.params))
            for size, s in task.sizes.items()
        )
        count = f"{task.classes} class" + ("es" if task.classes != 1 else "")
        parts += ["", f"Task {name}, {count} unless the data says otherwise"]
        parts += ["", Table(("size", "imgsz", "parameters"), rows), "* the default", ""]
        facts = {**recipe_in_words(task.recipe), **_behaviour(task), "loss": _losses(family.key, name)}
        width = max(len(f) for f in facts)
        parts += [f"{fact:<{width}}  {value}" for fact, value in facts.items()]
    return parts


def _weights(family: Family) -> str:
    if not family.weights.organisation:
        return "none released"
    return f"{family.weights.pattern}, licence {family.weights.licence or 'not stated'}"


def _losses(key: str, task: str) -> str:
    """The family's own, and what other packages add to it."""
    from libreyolo_core.registry import registry

    added = {k[2]: c.distribution for k, c in registry().entries("losses").items() if k[:2] == (key, task)}
    return ", ".join(["default", *(f"{name} (of {distribution})" for name, distribution in added.items())])


def recipe_in_words(recipe: Recipe) -> dict[str, str]:
    """How a family trains, one fact a line."""
    optimizer, schedule = recipe.optimizer, recipe.schedule
    batch = f"batch {recipe.batch}" + (f", gradients accumulated up to {recipe.nbs} images" if recipe.nbs else "")
    tail = f", the last {recipe.tail} without strong augmentation" if recipe.tail else ""
    warmup = f", warm-up {schedule.warmup:g} epochs" if schedule.warmup else ""
    warmup += f", at least {schedule.warmup_steps} steps of warm-up" if schedule.warmup_steps else ""
    anneal = f"{schedule.anneal} to {schedule.to:g} of the learning rate"
    return {
        "epochs": f"{recipe.epochs}, {batch}{tail}",
        "optimizer": f"{optimizer.name}, learning rate {optimizer.lr:g}, weight decay {optimizer.decay:g}",
        "schedule": ("constant" if schedule.anneal == "constant" else anneal) + warmup,
        "ema": f"decay {recipe.ema.decay:g}" if recipe.ema.on else "off",
        "clip": f"gradient norm {recipe.clip:g}" if recipe.clip else "off",
        "frozen": ", ".join(recipe.freeze) or "nothing",
    }


def _behaviour(task: Task) -> dict[str, str]:
    augment = ", ".join(a.name for a in task.augment if a.p) or "none"
    variants = {"variants": ", ".join(task.variants)} if task.variants else {}
    training = {"trained with": ", ".join(f"{k}={v}" for k, v in task.training.items())} if task.training else {}
    return {
        **variants,
        **training,
        "augmentation": augment,
        "input": f"{task.input.fit}, {task.input.colour}",
        **support(task),
    }
