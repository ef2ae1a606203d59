"""One module per command. They are named by ``libreyolo_core.builtin`` and imported when called."""
