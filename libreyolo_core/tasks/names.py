"""Which class of the model each class of a data set is; a mismatch is an error or a log line, never a guess."""

from __future__ import annotations

import logging
import re

from libreyolo_core.errors import DataError

log = logging.getLogger("libreyolo")


def class_map(data: dict[int, str], model: dict[int, str], *, where: str = "") -> dict[int, int]:
    """For each class index of the data set, the index of the model's class of the same name.

    Equal lists map by index; a data set whose names all occur in the model's maps by name (one log line when that
    changes an index); two lists of the same length with other names map by index, with a warning.

    Raises:
        DataError: the data set has classes that the model does not know.
    """
    if data == model:
        return {i: i for i in data}
    by_name = {name: i for i, name in model.items()}
    unknown = [name for name in data.values() if name not in by_name]
    if not unknown and len(by_name) == len(model):
        found = {i: by_name[name] for i, name in data.items()}
        if any(i != j for i, j in found.items()):
            log.info("Classes of the data set are matched to the model's by name: %s.", _pairs(data, found))
        return found
    if sorted(data) == sorted(model):
        first = next(i for i in data if data[i] != model[i])
        log.warning(
            "The data set and the model name their classes differently (class %d is %r and %r); matched by index. "
            "If that is wrong, correct 'names' in the data YAML.",
            first,
            data[first],
            model[first],
        )
        return {i: i for i in data}
    raise DataError(
        f"The data set has {len(data)} classes, of which the model's {len(model)} do not include {_some(unknown)}",
        where=where,
        mend="Validate with the model that was trained on these classes, or correct 'names' in the data YAML.",
    )


def folder_map(folders: dict[int, str], model: dict[int, str], *, where: str = "") -> dict[int, int]:
    """For each class folder, the index of the model's class of the same name (classification).

    A complete set of 1000 WordNet ids is also understood by a model whose names are ImageNet-1k's: its indices are
    the sorted ids.

    Raises:
        DataError: a folder that is no class of the model; lists unknown and missing names.
    """
    by_name = {name: i for i, name in model.items()}
    unknown = [name for name in folders.values() if name not in by_name]
    if not unknown and len(by_name) == len(model):
        return {i: by_name[name] for i, name in folders.items()}
    if folders == model:  # names that occur twice (ImageNet has two cranes) still agree by index
        return {i: i for i in folders}
    wordnet = all(re.fullmatch(r"n\d{8}", name) for name in folders.values())
    if wordnet and len(folders) == len(model) == 1000 and is_imagenet(model):
        order = {name: i for i, name in enumerate(sorted(folders.values()))}
        return {i: order[name] for i, name in folders.items()}
    missing = [name for name in model.values() if name not in folders.values()]
    mend = "Rename the folders to the model's class names, or fine-tune the model on these classes first."
    if wordnet and is_imagenet(model):
        mend = "WordNet ids are understood only when all 1000 folders are there; else use the model's class names."
    raise DataError(
        f"Class folders do not fit the model: unknown {_some(unknown)}; missing {_some(missing)}",
        where=where,
        mend=mend,
    )


def is_imagenet(names: dict[int, str]) -> bool:
    """Whether names are ImageNet-1k's in their canonical order, judged by the list that torchvision ships.

    Lists in use differ in synonyms and in a few disambiguations, so 95 of 100 first synonyms must agree.
    """
    if sorted(names) != list(range(1000)):
        return False
    from torchvision.models import AlexNet_Weights

    canonical = AlexNet_Weights.IMAGENET1K_V1.meta["categories"]
    same = sum(_plain(names[i]) == _plain(canonical[i]) for i in range(1000))
    return same >= 950


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.split(",")[0]).strip().lower()


def _some(names: list[str], most: int = 10) -> str:
    shown = ", ".join(repr(n) for n in names[:most]) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _pairs(data: dict[int, str], found: dict[int, int]) -> str:
    moved = [f"{data[i]!r} {i} -> {j}" for i, j in found.items() if i != j]
    return ", ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
