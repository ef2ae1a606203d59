"""Weight files: reading and writing them, recognising what they belong to, filling a network from them.

    file = read("LibreABCs.pt")
    found = identify(file, registry().families())
    sheet = found.sheet(family)
    network = resolve(family.network)(nc=found.nc, **sheet.model)
    load_into(network, found.state, family.checkpoint)

Most families say in their data sheet (``Checkpoint``) all that is needed. Where only the file itself can tell, the
sheet names an *adapter*, a module or object that may have any of these functions:

    convert(state) -> state                    a foreign layout that no key renaming expresses, before ``rename``
    inspect(state) -> Found | None             size, nc, model options, overrides; ``None``: not one of ours
    fit(key, old, new, names) -> Tensor | None how ``old`` of another class count fills ``new``; ``None``: start afresh
"""

from libreyolo_core.checkpoint.atomic import replacing
from libreyolo_core.checkpoint.files import File, payload, read, write
from libreyolo_core.checkpoint.load import LoadReport, fit_classes, load_into, matches
from libreyolo_core.checkpoint.recognise import Found, identify, marks

__all__ = [
    "File",
    "Found",
    "LoadReport",
    "fit_classes",
    "identify",
    "load_into",
    "marks",
    "matches",
    "payload",
    "read",
    "replacing",
    "write",
]
