"""The data sets of this package."""

from libreyolo_core.hookspecs import NamedEntry, hookimpl


@hookimpl
def libreyolo_datasets():
    return [
        NamedEntry("treecrowns", "libreyolo_data_treecrowns:path", "47 aerial photos, 918 tree crowns (no network)"),
        NamedEntry(
            "treecrowns-classify",
            "libreyolo_data_treecrowns:classify_path",
            "crops of the same photos, tree or background (no network)",
        ),
    ]
