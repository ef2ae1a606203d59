"""Weight files: the four layouts, encoders without a head, sizes from shapes."""

import logging
import re

import pytest
import torch
from segformer_cases import FAMILY, SHEET, batch, network, on_meta

from libreyolo_core.checkpoint import File, identify, load_into, read
from libreyolo_core.errors import CheckpointError
from libreyolo_family_segformer.checkpoint import fresh_head, inspect

KNOWN = {"segformer": FAMILY}


def as_transformers(state):
    """Names of a model saved with transformers today."""
    return {re.sub(r"^encoder\.", "segformer.", key): value for key, value in state.items()}


def as_hub(state):
    """Names of the files on the Hugging Face hub."""
    table = (
        (r"^encoder\.stages\.(\d)\.patch_embeddings\.", r"segformer.encoder.patch_embeddings.\1."),
        (r"^encoder\.stages\.(\d)\.blocks\.(\d+)\.", r"segformer.encoder.block.\1.\2."),
        (r"^encoder\.stages\.(\d)\.layer_norm\.", r"segformer.encoder.layer_norm.\1."),
        (r"\.layernorm_before\.", ".layer_norm_1."),
        (r"\.layernorm_after\.", ".layer_norm_2."),
        (r"\.q_proj\.", ".self.query."),
        (r"\.k_proj\.", ".self.key."),
        (r"\.v_proj\.", ".self.value."),
        (r"\.sequence_reduction\.sequence_reduction\.", ".self.sr."),
        (r"\.sequence_reduction\.layer_norm\.", ".self.layer_norm."),
        (r"\.o_proj\.", ".output.dense."),
        (r"\.mlp\.fc(\d)\.", r".mlp.dense\1."),
        (r"linear_projections\.(\d)\.", r"linear_c.\1."),
    )
    out = {}
    for key, value in state.items():
        for pattern, replacement in table:
            key = re.sub(pattern, replacement, key)
        out[key] = value
    return out


def as_authors(state, prefix="backbone."):
    """Names of the original authors' files, keys stacked on values."""
    out = {}
    for key, value in state.items():
        key = re.sub(
            r"^encoder\.stages\.(\d)\.patch_embeddings\.proj\.",
            lambda m: f"{prefix}patch_embed{int(m[1]) + 1}.proj.",
            key,
        )
        key = re.sub(
            r"^encoder\.stages\.(\d)\.patch_embeddings\.layer_norm\.",
            lambda m: f"{prefix}patch_embed{int(m[1]) + 1}.norm.",
            key,
        )
        key = re.sub(r"^encoder\.stages\.(\d)\.blocks\.", lambda m: f"{prefix}block{int(m[1]) + 1}.", key)
        key = re.sub(r"^encoder\.stages\.(\d)\.layer_norm\.", lambda m: f"{prefix}norm{int(m[1]) + 1}.", key)
        key = re.sub(r"\.sequence_reduction\.sequence_reduction\.", ".sr.", key)
        key = re.sub(r"\.sequence_reduction\.layer_norm\.", ".norm.", key)
        key = key.replace(".layernorm_before.", ".norm1.").replace(".layernorm_after.", ".norm2.")
        key = re.sub(r"\.attention\.", ".attn.", key)
        key = key.replace(".o_proj.", ".proj.").replace(".q_proj.", ".q.")
        key = re.sub(r"linear_projections\.(\d)\.", lambda m: f"linear_c{int(m[1]) + 1}.", key)
        key = key.replace("linear_fuse.weight", "linear_fuse.conv.weight").replace("batch_norm", "linear_fuse.bn")
        key = key.replace("decode_head.classifier", "decode_head.linear_pred")
        out[key] = value
    for key in [k for k in out if ".k_proj." in k]:
        out[key.replace(".k_proj.", ".kv.")] = torch.cat((out.pop(key), out.pop(key.replace(".k_proj.", ".v_proj."))))
    if prefix == "backbone." and any(k.startswith("decode_head.") for k in out):
        out["decode_head.conv_seg.weight"] = torch.zeros(3, 256, 1, 1)
        out["decode_head.conv_seg.bias"] = torch.zeros(3)
    return out


@pytest.mark.parametrize("layout", [dict, as_transformers, as_hub, as_authors])
def test_a_file_of_each_layout_fills_every_parameter(layout, tmp_path):
    source, target = network(), network(seed=1)
    path = tmp_path / "anything.pth"
    content = layout(source.state_dict())
    torch.save({"state_dict": content} if layout is as_authors else content, path)
    found = identify(read(path), KNOWN)
    assert (found.family, found.task, found.size, found.nc) == ("segformer", "semantic", "b0", 3)
    report = load_into(target, found.state, FAMILY.checkpoint)
    assert not report.missing and all("conv_seg" in key for key in report.unexpected)
    ours = target.state_dict()
    assert all(torch.equal(value, ours[key]) for key, value in source.state_dict().items())


@pytest.mark.parametrize("size", SHEET.sizes)
def test_size_and_classes_are_read_from_shapes(size):
    found = inspect(on_meta(size, nc=7).state_dict())
    assert (found.size, found.nc) == (size, 7)


def test_files_of_other_networks_are_left_alone():
    state = network().state_dict()
    assert inspect({k: v for k, v in state.items() if "decode_head" not in k}) is None
    heads = {  # later re-trainings have a convolution and a norm per level instead of the linear layers
        re.sub(r"decode_head\.linear_projections\.(\d)\.proj", r"decode_head.convs.\1.conv", key): value
        for key, value in as_authors(state).items()
        if "linear_fuse" not in key and "linear_pred" not in key
    }
    with pytest.raises(CheckpointError, match="no installed family recognises"):
        identify(File(heads, content=heads), KNOWN, "other.pth")


def test_a_full_file_that_lacks_a_tensor_is_refused():
    state = network().state_dict()
    del state["decode_head.batch_norm.weight"]
    with pytest.raises(CheckpointError, match=r"missing \(decode_head.batch_norm.weight\)"):
        load_into(network(), state, FAMILY.checkpoint)


def encoder_files():
    whole = network().state_dict()
    encoder = {key: value for key, value in whole.items() if key.startswith("encoder.")}
    image_classes = torch.zeros(1000, 256)
    return {
        "own": {"encoder": {key.removeprefix("encoder."): v for key, v in encoder.items()}, "size": "b0"},
        "hub": {**as_hub(encoder), "classifier.weight": image_classes, "classifier.bias": torch.zeros(1000)},
        "authors": {**as_authors(encoder, prefix=""), "head.weight": image_classes, "head.bias": torch.zeros(1000)},
    }


@pytest.mark.parametrize("kind", ["own", "hub", "authors"])
def test_an_encoder_alone_gets_a_fresh_head_and_one_warning(kind, tmp_path, caplog):
    fresh_head.cache_clear()
    path = tmp_path / "mit_b0.pth"
    torch.save(encoder_files()[kind], path)
    with caplog.at_level(logging.WARNING, "libreyolo"):
        found = identify(read(path), KNOWN)
        assert (found.family, found.size, found.nc) == ("segformer", "b0", 150)
        target = network(nc=150, seed=1)
        report = load_into(target, found.state, FAMILY.checkpoint)
    assert not report.missing and not report.unexpected
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "without a decode head" in warning and "train" in warning
    ours = target.state_dict()
    assert all(torch.equal(v, ours[k]) for k, v in network().state_dict().items() if k.startswith("encoder."))
    assert 0.015 < target.decode_head.linear_fuse.weight.std() < 0.025
    images, _, _ = batch(1)
    assert torch.isfinite(target.eval()(images)).all()


def test_making_the_head_of_an_encoder_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fresh_head.cache_clear()
    fresh_head("b0", 0)
    assert torch.equal(torch.rand(3), expected)
