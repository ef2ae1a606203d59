"""The data sheet: what it names exists, and what it states is true."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import torch

from libreyolo_core.family import resolve
from libreyolo_core.registry import registry
from libreyolo_core.testing.context import Context, Failed


def registration(context: Context) -> str:
    """Hooks answer, references resolve, every size builds with its declared parameters, the plugin imports no torch."""
    family = context.family
    for name, task in family.tasks.items():
        registry().task(name)
        for reference in (family.network, task.loss.code, *(a.code for a in task.augment)):
            resolve(reference, declared_by=f"{family.key} {name}")
        for size in task.sizes:
            sheet = task.for_size(size)
            with torch.device("meta"):
                network = resolve(family.network)(nc=task.classes, **sheet.model)
            count = sum(p.numel() for p in network.parameters())
            if count != task.sizes[size].params:
                raise Failed(f"{name} {size} has {count:,} parameters, the sheet says {task.sizes[size].params:,}")
    if family.checkpoint.adapter:
        resolve(family.checkpoint.adapter, declared_by=family.key)
    module = _plugin_module(family.key)
    if module:
        code = f"import {module}, sys; print([m for m in ('torch','numpy','torchvision','cv2') if m in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if found.stdout.strip() != "[]":
            raise Failed(f"importing {module} also imports {found.stdout.strip() or found.stderr.strip()[-200:]}")
    sizes = sum(len(t.sizes) for t in family.tasks.values())
    return f"{sizes} sizes build" + (f", {module} is torch-free" if module else "")


def _plugin_module(key: str) -> str:
    """The plugin module that brought a family, "" when it did not come through an entry point."""
    for plugin in registry().plugins:
        if key in plugin.entries.get("families", ()):
            for point in entry_points(group="libreyolo"):
                if point.name == plugin.name:
                    return point.value
    return ""
