"""The options that say which model a command works on, and the way from them to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libreyolo_core.cli.options import Option
from libreyolo_core.errors import UsageError

if TYPE_CHECKING:
    from libreyolo_core.api import LibreYOLO

MODEL = (
    Option(
        "model",
        "A weight file, the name of released weights, or family-size; see libreyolo families.",
        required=True,
        section="Required",
        example="best.pt",
    ),
    Option("task", "The task, where the file does not say it.", default="the family's first"),
)


def load_model(given: dict[str, Any], *, verb: str, pretrained: bool = True) -> tuple[LibreYOLO, dict[str, Any]]:
    """The model that ``model=`` and ``task=`` mean, and the remaining options.

    Raises:
        UsageError: no ``model=``; otherwise what ``LibreYOLO(...)`` raises.
    """
    rest = {k: v for k, v in given.items() if k not in ("model", "task")}
    require_model(given, verb=verb)
    from libreyolo_core.api import LibreYOLO

    model = LibreYOLO(given["model"], pretrained=pretrained, task=given.get("task"))
    return model, rest


def require_model(given: dict[str, Any], *, verb: str) -> None:
    """Raise ``UsageError`` when there is no ``model=``."""
    if not given.get("model"):
        raise UsageError("model= is missing", where=verb, mend=f"Give it, e.g. model={example_model()}.")


def example_model() -> str:
    """Released weights of an installed family, for examples; a plain file name when there is no family."""
    from libreyolo_core.registry import registry

    for family in registry().families().values():
        sizes = family.tasks[family.default_task].sizes
        return family.weights.pattern.format(size=family.default_size or next(iter(sizes)))
    return "best.pt"
