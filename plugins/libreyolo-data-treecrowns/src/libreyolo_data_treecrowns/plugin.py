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
        NamedEntry(
            "treecrowns-semantic",
            "libreyolo_data_treecrowns:semantic_path",
            "tiles of the same photos with crown masks, outlines approximated by ellipses (no network)",
        ),
        NamedEntry(
            "treecrowns-restore",
            "libreyolo_data_treecrowns:restore_path",
            "tiles of the same photos, blurred and noisy, with the clean ones (no network)",
        ),
    ]
