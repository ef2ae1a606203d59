"""Weight files of SegFormer: four layouts become one, encoders get a head, sizes are read from shapes.

| layout | comes from |
|---|---|
| ``encoder.stages.*``, ``decode_head.*`` | this package, and every released LibreSegformer file |
| ``segformer.stages.*`` | models saved with transformers as it is now |
| ``segformer.encoder.block.*`` | the files on the Hugging Face hub |
| ``backbone.block1.*`` | the original authors' ``.pth``, keys and values stacked in one matrix |

A file of any of these that holds the encoder alone (such as those trained on ImageNet; also without prefix, as in the
authors' ``mit_b0.pth``) gets a fresh decode head, to be trained.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from libreyolo_family_segformer.plugin import SEGFORMER

if TYPE_CHECKING:
    from libreyolo_core.checkpoint import Found

log = logging.getLogger("libreyolo")
SIZES = SEGFORMER.tasks["semantic"].sizes
PATCHES = "encoder.stages.{}.patch_embeddings.proj.weight"

HUGGING_FACE = (
    (r"^segformer\.encoder\.patch_embeddings\.(\d)\.", r"encoder.stages.\1.patch_embeddings."),
    (r"^segformer\.encoder\.block\.(\d)\.", r"encoder.stages.\1.blocks."),
    (r"^segformer\.encoder\.layer_norm\.(\d)\.", r"encoder.stages.\1.layer_norm."),
    (r"^segformer\.", "encoder."),
    (r"\.layer_norm_1\.", ".layernorm_before."),
    (r"\.layer_norm_2\.", ".layernorm_after."),
    (r"\.attention\.self\.(query|key|value)\.", lambda hit: f".attention.{hit[1][0]}_proj."),
    (r"\.attention\.self\.sr\.", ".attention.sequence_reduction.sequence_reduction."),
    (r"\.attention\.self\.layer_norm\.", ".attention.sequence_reduction.layer_norm."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.mlp\.dense(\d)\.", r".mlp.fc\1."),
    (r"^decode_head\.linear_c\.", "decode_head.linear_projections."),
)
ORIGINAL = (
    (r"^(backbone\.)?patch_embed(\d)\.proj\.", lambda hit: f"encoder.stages.{int(hit[2]) - 1}.patch_embeddings.proj."),
    (
        r"^(backbone\.)?patch_embed(\d)\.norm\.",
        lambda hit: f"encoder.stages.{int(hit[2]) - 1}.patch_embeddings.layer_norm.",
    ),
    (r"^(backbone\.)?block(\d)\.", lambda hit: f"encoder.stages.{int(hit[2]) - 1}.blocks."),
    (r"^(backbone\.)?norm(\d)\.", lambda hit: f"encoder.stages.{int(hit[2]) - 1}.layer_norm."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"\.attn\.([qkv])\.", r".attention.\1_proj."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.attn\.sr\.", ".attention.sequence_reduction.sequence_reduction."),
    (r"\.attn\.norm\.", ".attention.sequence_reduction.layer_norm."),
    (r"^decode_head\.linear_c(\d)\.", lambda hit: f"decode_head.linear_projections.{int(hit[1]) - 1}."),
    (r"^decode_head\.linear_fuse\.conv\.", "decode_head.linear_fuse."),
    (r"^decode_head\.linear_fuse\.bn\.", "decode_head.batch_norm."),
    (r"^decode_head\.linear_pred\.", "decode_head.classifier."),
)
CLASSIFIERS = ("classifier.", "head.", "backbone.head.")
"""Prefixes of the image classifier that encoders trained on ImageNet carry."""


def convert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Any of the layouts above under this package's names; keys of other networks pass unchanged."""
    if any(key.startswith("segformer.") for key in state):
        out = renamed(state, HUGGING_FACE)
    elif any(re.match(r"(backbone\.)?patch_embed1\.", key) for key in state):
        out = renamed(with_keys_and_values_apart(state), ORIGINAL)
    elif "stages.0.patch_embeddings.proj.weight" in state:
        out = {f"encoder.{key}": value for key, value in state.items()}
    else:
        out = dict(state)
    if PATCHES.format(0) in out and not any(key.startswith("decode_head.") for key in out):
        out = {key: value for key, value in out.items() if not key.startswith(CLASSIFIERS)}
        size = size_of(out)
        if size is not None:
            out.update(fresh_head(size, out[PATCHES.format(0)].data_ptr()))
    return out


def inspect(state: Mapping[str, Tensor]) -> Found | None:
    """Size and class count of a state dict under this package's names, ``None`` when it is no SegFormer."""
    from libreyolo_core.checkpoint import Found

    size = size_of(state)
    classifier = state.get("decode_head.classifier.weight")
    if size is None or classifier is None:
        return None
    return Found(size=size, nc=len(classifier))


def size_of(state: Mapping[str, Tensor]) -> str | None:
    """The size whose first width and whose number of blocks in the third stage these are."""
    patches = state.get(PATCHES.format(0))
    hits = (re.match(r"encoder\.stages\.2\.blocks\.(\d+)\.", key) for key in state)
    blocks = len({hit[1] for hit in hits if hit})
    if patches is None:
        return None
    found = (len(patches), blocks)
    return next((k for k, s in SIZES.items() if (s.options["widths"][0], s.options["depths"][2]) == found), None)


def renamed(state: Mapping[str, Tensor], table) -> dict[str, Tensor]:
    """Every key after every substitution of the table, in order."""
    out = {}
    for key, value in state.items():
        for pattern, replacement in table:
            key = re.sub(pattern, replacement, key)
        out[key] = value
    return out


def with_keys_and_values_apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``attn.kv`` [2 C, ...], keys above values, as ``attn.k`` and ``attn.v``."""
    out = {}
    for key, value in state.items():
        if ".attn.kv." in key:
            for part, half in zip("kv", value.chunk(2)):
                out[key.replace(".attn.kv.", f".attn.{part}.")] = half
        else:
            out[key] = value
    return out


@lru_cache(maxsize=1)  # recognition and loading convert a file several times: one head for it, announced once
def fresh_head(size: str, _file: int) -> dict[str, Tensor]:
    """An initialised decode head for the sheet's class count, by key; the same for every file."""
    from libreyolo_family_segformer.head import DecodeHead
    from libreyolo_family_segformer.network import initialise

    log.warning(
        "the file holds a SegFormer encoder (%s) without a decode head: the head starts from its initialisation, so "
        "train the model before you use what it predicts",
        size,
    )
    options = SIZES[size].options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head: nn.Module = DecodeHead(options["widths"], options["decoder"], SEGFORMER.tasks["semantic"].classes)
        head.apply(initialise)
    return {f"decode_head.{key}": value for key, value in head.state_dict().items()}
