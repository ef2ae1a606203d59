"""Operations dispatched per training step, beside those of the recorded reference; no clock is involved.

Batch 2 (and 16 for the loss), forward, loss and backward; without the optimizer, and without modules that exist in
training only, which the references were recorded without.

python benchmarks/operations.py            # every family that has a reference file
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import libreyolo  # noqa: F401  (before torch: bounds the spin of its threads)
from libreyolo_core.data.batch import prepare
from libreyolo_core.testing import count_step, training_step

REFERENCES = sorted(Path(__file__).parents[1].glob("plugins/libreyolo-family-*/tests/reference/*.json"))


def count(key: str, size: str, batch: int, *, draw: bool) -> dict[str, dict[str, int]]:
    """Operations of the forward pass, the loss and the backward pass of one step."""
    run = training_step(key, size=size, batch=batch, draw=draw, training=False)
    step, data = run.step, run.data  # type: ignore[attr-defined]
    images = prepare(data.images, step.rule)
    parts = count_step(step.network, step.loss, images, data.targets, data.draw)._asdict()
    return {n: {"total": c.total, "without_views": c.without_views} for n, c in parts.items()}


def rows() -> list[dict]:
    """One row per reference and mode."""
    out = []
    for file in REFERENCES:
        content = json.loads(file.read_text())
        for draw, recorded in ((False, "aten_ops"), (True, "aten_ops_default_training")):
            if draw and content["loss"]["aten_ops_default_training"] == content["loss"]["aten_ops"]:
                continue
            ours = {b: count(content["family"], str(content["size"]), b, draw=draw) for b in (2, 16)}
            out.append(
                {
                    "model": f"{content['family']}-{content['size']}",
                    "random parts": draw,
                    "loss": ours[2]["loss"]["total"],
                    "loss at batch 16": ours[16]["loss"]["total"],
                    "reference loss": content["loss"][recorded]["loss"]["total"],
                    "step": sum(part["total"] for part in ours[2].values()),
                    "reference step": content["loss"][recorded]["all"]["total"],
                }
            )
    return out


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    found = rows()
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
        return
    print("| " + " | ".join(found[0]) + " |\n|" + "---|" * len(found[0]))
    for row in found:
        print("| " + " | ".join("on" if v is True else "off" if v is False else str(v) for v in row.values()) + " |")


if __name__ == "__main__":
    main()
