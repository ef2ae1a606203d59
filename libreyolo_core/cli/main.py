"""The entry point. The overview and the version are answered before click is imported: they are asked for most often,
and click alone costs as much as the whole answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line on ``arguments`` (default: the process's own) and exit.

    Exit codes: 0 fine, 1 failed, 2 usage, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--help"], ["-h"]):
        from libreyolo_core.cli.overview import installed_commands, overview

        print(overview(installed_commands()))
        sys.exit(0)
    if given == ["--version"]:
        from libreyolo_core import __version__

        print(f"libreyolo-core {__version__}")
        sys.exit(0)
    from libreyolo_core.cli.group import cli

    cli.main(given)
