"""The command line: click commands, each a thin translation to ``libreyolo_core.api``, loaded only when called.

To add a command, write it with ``libreyolo_core.cli.command.command`` (or as any click command or group) and register
it with the hook ``libreyolo_commands``; its help line then appears in ``libreyolo --help`` without its module being
imported.
"""
