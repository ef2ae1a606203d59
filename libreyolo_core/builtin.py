"""The core's own plugin: its tasks, commands, data sets, loggers and export formats come through the hooks that
everybody uses."""

from libreyolo_core.hookspecs import NamedEntry, hookimpl


@hookimpl
def libreyolo_tasks():
    return [
        NamedEntry("detect", "libreyolo_core.tasks.detect:DetectTask", "boxes with classes"),
        NamedEntry("classify", "libreyolo_core.tasks.classify:ClassifyTask", "one class per image"),
        NamedEntry("semantic", "libreyolo_core.tasks.semantic:SemanticTask", "a class for every pixel"),
        NamedEntry("restore", "libreyolo_core.tasks.restore:RestoreTask", "a clean image from a degraded one"),
        NamedEntry("point", "libreyolo_core.tasks.point:PointTask", "object centres with classes"),
    ]


@hookimpl
def libreyolo_commands():
    commands = "libreyolo_core.cli.commands"
    return [
        NamedEntry("train", f"{commands}.train:train", "Train a model on a data set."),
        NamedEntry("val", f"{commands}.val:val", "Measure a model on a data set."),
        NamedEntry("predict", f"{commands}.predict:predict", "Run a model on images, folders or videos."),
        NamedEntry("export", f"{commands}.export:export", "Write a model as ONNX or TorchScript."),
        NamedEntry("check", f"{commands}.check:check", "Check a data set and report every fault."),
        NamedEntry("profile", f"{commands}.profile:profile", "Measure training steps, or read what was measured."),
        NamedEntry("families", f"{commands}.families:families", "List installed model families, or show one."),
        NamedEntry("plugins", f"{commands}.plugins:plugins", "List plugins, what they brought and what failed."),
        NamedEntry("check-family", f"{commands}.check_family:check_family", "Prove that a family keeps the contract."),
        NamedEntry(
            "new-family", f"{commands}.new_family:new_family", "Write the package of a new family, ready to install."
        ),
        NamedEntry("demo", f"{commands}.demo:demo", "Train, validate and predict on the embedded data set."),
        NamedEntry("env", f"{commands}.env:env", "Print versions, devices and folders, for a bug report."),
    ]


@hookimpl
def libreyolo_datasets():
    sets = "libreyolo_core.data.builtin_sets"
    return [
        NamedEntry("coco", f"{sets}:coco", "COCO 2017, 118,287 + 5,000 photos, 80 classes (downloads 20 GB)"),
        NamedEntry("coco128", f"{sets}:coco128", "the first 128 photos of COCO train 2017 (downloads 7 MB)"),
        NamedEntry("coco8", f"{sets}:coco8", "8 photos of COCO (downloads 1 MB)"),
    ]


@hookimpl
def libreyolo_loggers():
    return [
        NamedEntry("csv", "libreyolo_core.engine.loggers:CsvLogger", "results.csv, one row per epoch"),
        NamedEntry("tensorboard", "libreyolo_core.engine.loggers:TensorBoardLogger", "TensorBoard events"),
    ]


@hookimpl
def libreyolo_exporters():
    return [
        NamedEntry("onnx", "libreyolo_core.export.onnx:export_onnx", "ONNX, for onnxruntime and others"),
        NamedEntry("torchscript", "libreyolo_core.export.torchscript:export_torchscript", "TorchScript"),
    ]
