"""Which parameters train, in which group, with which optimizer."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import torch
from torch import nn

from libreyolo_core.errors import ConfigError
from libreyolo_core.family import Group, Recipe, Task

log = logging.getLogger("libreyolo")
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def kinds(network: nn.Module) -> dict[str, str]:
    """``norm``, ``bias`` or ``weight`` for every parameter name."""
    out = {}
    for prefix, module in network.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            out[full] = "norm" if isinstance(module, NORMS) else "bias" if name.endswith("bias") else "weight"
    return out


def freeze(network: nn.Module, sheet: Task, *, given: bool) -> list[str]:
    """Stop gradients of what the recipe freezes and of parameters that are never used; returns the frozen names.

    A pattern is a regular expression searched in the parameter's name. A user's pattern that matches nothing
    is an error (``given``): it would otherwise pass in silence.
    """
    names = [n for n, _ in network.named_parameters()]
    for pattern in sheet.recipe.freeze if given else ():
        if not any(re.search(pattern, n) for n in names):
            tops = sorted({n.split(".")[0] for n in names})
            raise ConfigError(
                f"freeze={pattern!r} matches no parameter",
                where="train argument freeze",
                mend=f"Top parts: {', '.join(tops)}.",
            )
    frozen = []
    for name, parameter in network.named_parameters():
        if any(re.search(p, name) for p in (*sheet.recipe.freeze, *sheet.unused)):
            parameter.requires_grad_(False)
            frozen.append(name)
        else:
            parameter.requires_grad_(True)
    if len(frozen) == len(names):
        raise ConfigError("Every parameter is frozen", where="train argument freeze", mend="Freeze less.")
    return frozen


def frozen_norms(network: nn.Module) -> Iterator[nn.Module]:
    """Batch norms none of whose parameters train; they keep their running statistics too."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                yield module


def build_optimizer(
    network: nn.Module, recipe: Recipe, *, fused: bool | None, device: torch.device
) -> torch.optim.Optimizer:
    """The recipe's optimizer over its groups; every trainable parameter is in exactly one.

    Args:
        fused: ``True`` for torch's fused kernel, ``None`` for where it is known to help (CUDA).
    """
    kind_of, layer_of = kinds(network), getattr(network, "layer_of", None)
    rest = Group()
    members: dict[tuple[int, int], list[nn.Parameter]] = {}
    groups = (*recipe.groups, rest)
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        index = next(i for i, g in enumerate(groups) if _matches(g, name, kind_of[name]))
        layer = layer_of(name) if groups[index].layer_decay is not None and layer_of else 0
        members.setdefault((index, layer), []).append(parameter)
    deepest = max((layer for _, layer in members), default=0)
    o = recipe.optimizer
    described = []
    for (index, layer), parameters in sorted(members.items(), key=lambda item: item[0]):
        group = groups[index]
        lr = group.lr_fixed if group.lr_fixed is not None else o.lr * group.lr
        if group.layer_decay is not None:
            lr *= group.layer_decay ** (deepest - layer)
        decay = o.decay if group.decay is None else group.decay
        described.append({"params": parameters, "lr": lr, "base_lr": lr, "weight_decay": decay})
    fused = device.type == "cuda" if fused is None else fused
    if o.name == "sgd":
        for d in described:
            d["base_momentum"] = o.momentum
        return torch.optim.SGD(
            described, lr=o.lr, momentum=o.momentum, nesterov=o.nesterov and o.momentum > 0, fused=fused
        )
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o.name]
    return kind(described, lr=o.lr, betas=o.betas, fused=fused)


def _matches(group: Group, name: str, kind: str) -> bool:
    return (not group.of or kind in group.of.split("|")) and re.search(group.match, name) is not None
