"""``libreyolo density data=my.yaml``."""

from __future__ import annotations

from typing import Any

from libreyolo_core.cli.command import command
from libreyolo_core.cli.options import Option
from libreyolo_core.cli.output import Answer, Table

DATA = Option("data", "Data set with boxes.", required=True, section="Required", example="my.yaml")


@command("density", summary="Objects per photo of a data set.", options=(DATA,), example="data=my.yaml")
def density(given: dict[str, Any]) -> Answer:
    """Scan every split as the detection task does, and count."""
    from libreyolo_core.data.catalogue import load_data
    from libreyolo_core.errors import UsageError
    from libreyolo_core.registry import registry

    if "data" not in given:
        raise UsageError("data= is missing", where="density", mend="Give it, e.g. data=my.yaml.")
    spec = load_data(given["data"], "detect")
    counts = {}
    for split in spec.splits:
        found = registry().task("detect").scan(spec, split)
        counts[split] = [len(image.labels) for image in found.images]
    rows = tuple(
        (split, str(len(n)), f"{sum(n) / len(n):.1f}", str(min(n)), str(max(n))) for split, n in counts.items()
    )
    return Answer({"objects": counts}, (Table(("split", "photos", "mean", "fewest", "most"), rows),))
