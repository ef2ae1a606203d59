"""Errors that evaluators share."""

from __future__ import annotations

from libreyolo_core.errors import DataError


def nothing_labelled(images: int, split: str, *, what: str, files: str) -> DataError:
    """A split in which no metric is defined.

    Args:
        images: how many were validated.
        what: what each image may have, e.g. ``labelled object``.
        files: where it is written, e.g. ``label files``.
    """
    return DataError(
        f"None of the {images} validated images has a {what}, so there is nothing to measure",
        where=f"split {split}",
        mend=f"Check the {files} of this split (libreyolo check shows where they were looked for).",
    )
