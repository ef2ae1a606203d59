"""Weight files are read and written in schema 1.0, and nothing in them is ever executed."""

from __future__ import annotations

import collections
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from checkpoint_toys import Toy
from torch import nn

from libreyolo_core.checkpoint import payload, read, write
from libreyolo_core.errors import CheckpointError

IDENTITY = {"family": "toy", "size": "s", "task": "detect", "nc": 3, "imgsz": 64}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return sorted(a) == sorted(b) and all(torch.equal(a[k], b[k]) for k in a)


def one_line(caught) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def content(names=None, **more):
    return payload(Toy(nc=3).state_dict(), **IDENTITY, names=names or {0: "cat", 1: "dög", 2: "class"}, **more)


@pytest.mark.parametrize("suffix", ["pt", "pth", "safetensors"])
def test_a_written_file_reads_back_with_all_its_metadata(suffix, tmp_path):
    stored = content()
    file = read(write(tmp_path / f"a.{suffix}", stored))
    assert same(file.state, stored["model"])
    assert file.meta == {k: v for k, v in stored.items() if k != "model"}
    assert file.training == {}


def test_the_file_is_a_plain_dictionary_of_schema_1_0(tmp_path):
    stored = torch.load(write(tmp_path / "a.pt", content()), weights_only=True)
    assert list(stored) == [
        "model", "schema_version", "libreyolo_version", "model_family", "size", "task", "nc", "names", "imgsz"
    ]  # fmt: skip
    assert stored["schema_version"] == "1.0"
    assert stored["names"] == {0: "cat", 1: "dög", 2: "class"}


def test_every_class_gets_a_name():
    assert content(names={1: "dog"})["names"] == {0: "class_0", 1: "dog", 2: "class_2"}


@pytest.mark.parametrize("names", [["a", "b", "c"], {"0": "a", "1": "b", "2": "c"}])
def test_names_of_other_writers_become_a_mapping_of_integers(names, tmp_path):
    torch.save({**content(), "names": names}, tmp_path / "a.pt")
    assert read(tmp_path / "a.pt").meta["names"] == {0: "a", 1: "b", 2: "c"}


def test_a_training_checkpoint_gives_back_its_training_state(tmp_path):
    network = Toy(nc=3)
    optimizer = torch.optim.AdamW(network.parameters())
    network.box.weight.sum().backward()
    optimizer.step()
    training = {
        "raw": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {},
        "epoch": 7,
        "best": {"fitness": 0.25, "epoch": 5},
        "rng_state": {"cpu": torch.get_rng_state(), "cuda": []},
        "train_args": {"lr0": {"value": 1e-3, "from": "user"}},
        "unset": None,
    }
    file = read(write(tmp_path / "last.pt", content(training=training)))
    assert set(file.training) >= set(training)
    assert same(file.training["raw"], network.state_dict())
    assert torch.equal(file.training["optimizer"]["state"][4]["exp_avg"], optimizer.state_dict()["state"][4]["exp_avg"])
    assert torch.equal(file.training["rng_state"]["cpu"], training["rng_state"]["cpu"])
    assert file.training["train_args"] == training["train_args"]


def test_training_state_may_not_take_the_name_of_metadata():
    with pytest.raises(ValueError, match="names"):
        content(training={"names": []})


def test_safetensors_refuses_training_state_instead_of_losing_it(tmp_path):
    with pytest.raises(CheckpointError, match="would lose the training state optimizer"):
        write(tmp_path / "a.safetensors", content(training={"optimizer": {"state": torch.zeros(1)}}))
    assert list(tmp_path.iterdir()) == []


def test_safetensors_metadata_is_text_that_others_can_read(tmp_path):
    from safetensors import safe_open

    with safe_open(write(tmp_path / "a.safetensors", content()), framework="pt") as opened:
        meta = opened.metadata()
    assert meta["size"] == "s"
    assert json.loads(meta["names"]) == {"0": "cat", "1": "dög", "2": "class"}


def test_a_size_that_looks_like_a_number_stays_text(tmp_path):
    for suffix in ("pt", "safetensors"):
        stored = {**content(), "size": "18"}
        assert read(write(tmp_path / f"a.{suffix}", stored)).meta["size"] == "18"


def test_weights_are_stored_once_even_when_they_are_views_or_shared(tmp_path):
    big = torch.zeros(1000, 1000)
    whole = write(tmp_path / "view.pt", {**content(), "model": payload({"a": big[0]}, **IDENTITY, names={})["model"]})
    assert whole.stat().st_size < 50_000
    shared = payload({"a": big, "b": big}, **IDENTITY, names={})
    assert write(tmp_path / "shared.pt", shared).stat().st_size < 4_100_000


@pytest.mark.parametrize(
    "container", ["ema.module", "ema", "ema_state_dict", "params_ema", "params", "net", "model", "state_dict", ""]
)
def test_state_dicts_of_other_projects_are_found_in_their_containers(container, tmp_path):
    state = Toy(nc=3).state_dict()
    held: object = state
    for part in reversed(container.split(".") if container else []):
        held = {part: held, "epoch": 3}
    torch.save(held, tmp_path / "a.pth")
    file = read(tmp_path / "a.pth")
    assert same(file.state, state)
    assert file.meta == {}


def test_averaged_weights_come_before_raw_ones_in_files_of_other_projects(tmp_path):
    torch.save(
        {"model": {"w": torch.zeros(1)}, "ema": {"module": {"w": torch.ones(1)}, "updates": 9}}, tmp_path / "a.pth"
    )
    assert read(tmp_path / "a.pth").state["w"].item() == 1


def test_a_family_may_look_in_another_order(tmp_path):
    torch.save({"model": {"w": torch.zeros(1)}, "ema": {"w": torch.ones(1)}}, tmp_path / "a.pth")
    file = read(tmp_path / "a.pth")
    assert file.state_in(("model", "ema"))["w"].item() == 0
    assert file.state_in(("nothing",))["w"].item() == 1


def test_prefixes_of_wrappers_are_stripped(tmp_path):
    torch.save({"module._orig_mod.a.w": torch.ones(1), "module.b._orig_mod.w": torch.ones(1)}, tmp_path / "a.pth")
    assert list(read(tmp_path / "a.pth").state) == ["a.w", "b.w"]


def test_a_submodule_called_module_keeps_its_name(tmp_path):
    torch.save({"module.w": torch.ones(1), "head.w": torch.ones(1)}, tmp_path / "a.pth")
    assert list(read(tmp_path / "a.pth").state) == ["module.w", "head.w"]


def test_parameters_numpy_metrics_and_half_precision_are_read(tmp_path):
    state = collections.OrderedDict(w=nn.Parameter(torch.ones(2, dtype=torch.float16)))
    extras = {"best": np.float64(0.5), "n": np.int64(3), "f": np.float32(1), "metrics": {"ap": np.float64(0.1)}}
    torch.save({"model": state, **extras}, tmp_path / "a.pth")
    file = read(tmp_path / "a.pth")
    assert file.state["w"].dtype == torch.float16
    assert not file.state["w"].requires_grad
    assert file.content["best"] == 0.5


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, target) -> None:
        self.target = str(target)

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


class HostileBuiltin(Hostile):
    def __reduce__(self):
        return (eval, (f"open({self.target!r}, 'w')",))


@pytest.mark.parametrize("kind", [Hostile, HostileBuiltin])
@pytest.mark.parametrize("how", ["zip", "legacy", "pickle2", "pickle5"])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(kind, how, tmp_path):
    target = tmp_path / "created"
    stored = {"model": {"w": torch.ones(1)}, "extra": kind(target)}
    path = tmp_path / "evil.pt"
    if how in ("zip", "legacy"):
        torch.save(stored, path, _use_new_zipfile_serialization=how == "zip")
    else:
        path.write_bytes(pickle.dumps({"extra": kind(target)}, protocol=int(how[-1])))
    with pytest.raises(CheckpointError, match="is refused: unpickling it") as caught:
        read(path)
    text = one_line(caught)
    assert how == "pickle5" or "system" in text or "eval" in text
    assert not target.exists()


def test_a_pickled_module_is_refused_naming_its_class(tmp_path):
    torch.save({"model": Toy(nc=3)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"would run checkpoint_toys.Toy .*state_dict") as caught:
        read(tmp_path / "a.pt")
    one_line(caught)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_one_line(suffix, share, tmp_path):
    path = write(tmp_path / f"a.{suffix}", content())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="truncated or damaged") as caught:
        read(path)
    assert path.name in one_line(caught)


def test_a_truncated_legacy_file_is_one_line(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(content(), path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    for length in (5, len(data) // 3, len(data) - 10):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError) as caught:
            read(path)
        one_line(caught)


def test_damaged_bytes_inside_the_pickle_are_one_line(tmp_path):
    path = write(tmp_path / "a.pt", content())
    data = bytearray(path.read_bytes())
    at = data.index(b"schema_version")
    for offset in range(-6, 6):
        broken = bytearray(data)
        broken[at + offset] = 0x93
        path.write_bytes(broken)
        try:
            read(path)  # a changed letter of a name may still be a valid file
        except CheckpointError as error:
            assert "\n" not in str(error)


def test_files_that_are_no_weights_say_what_they_are(tmp_path):
    cases = {
        "missing.pt": (None, "does not exist"),
        "empty.pt": (b"", "is empty"),
        "text.pt": (b"<html><body>404 not found</body></html>", "is no weight file: it is a text file"),
        "photo.pt": (b"\xff\xd8\xff\xe0\x00\x10JFIF" + b"\0" * 50, "of an unknown format"),
        "pointer.pt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a Git LFS pointer"),
    }
    for name, (data, expected) in cases.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=expected) as caught:
            read(tmp_path / name)
        assert name in one_line(caught)


def test_a_folder_is_no_weight_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(tmp_path)


def test_a_mistyped_path_names_the_nearest_file(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="Did you mean 'best.pt'"):
        read(tmp_path / "bset.pt")


def test_a_torchscript_program_is_not_a_weight_file(tmp_path):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(1, 1)), tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="is a TorchScript program"):
        read(tmp_path / "a.pt")


@pytest.mark.parametrize("held", [[1, 2], {"epoch": 3}, {}, {"model": {}}, {"model": {"a": {"b": torch.ones(1)}}}])
def test_a_file_without_a_state_dict_says_so(held, tmp_path):
    torch.save(held, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="holds (no state dict|a list)"):
        read(tmp_path / "a.pt")


def test_an_archive_that_could_unpack_to_any_size_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 1_000_000)
    with pytest.raises(CheckpointError, match="is a compressed archive"):
        read(tmp_path / "bomb.pt")


def test_a_tensor_that_claims_more_numbers_than_it_stores_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="claims 1000000000000 numbers but stores fewer"):
        read(tmp_path / "a.pt")


def test_a_file_of_a_newer_schema_asks_for_an_update(tmp_path):
    torch.save({**content(), "schema_version": "2.0"}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="schema version '2.0'.*pip install -U"):
        read(tmp_path / "a.pt")
