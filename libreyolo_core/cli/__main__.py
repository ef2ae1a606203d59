"""``python -m libreyolo_core.cli`` is the command line."""

from libreyolo_core.cli.main import main

main()
