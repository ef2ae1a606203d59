"""``python -m libreyolo_core`` is the command line."""

from libreyolo_core.cli.main import main

main()
