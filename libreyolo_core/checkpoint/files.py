"""Reading and writing weight files: ``.pt`` and ``.pth`` of schema 1.0 or of other projects, and ``.safetensors``.

Schema 1.0 is one dictionary: ``model`` (state dict), ``schema_version``, ``libreyolo_version``, ``model_family``,
``size``, ``task``, ``nc``, ``names`` ({0: "cat", ...}, every key), ``imgsz``. A training checkpoint adds what a resume
needs beside them: optimizer, scaler, epoch, step, best metric, RNG state, arguments. ``model`` holds the EMA where
there is one; raw weights are stored as well only in a checkpoint that a resume starts from.

Reading never executes code: pickles go through torch's weights-only unpickler, and one that needs more is refused.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libreyolo_core import __version__
from libreyolo_core.checkpoint.atomic import replacing
from libreyolo_core.errors import CheckpointError, nearest
from libreyolo_core.family import Checkpoint

SCHEMA = "1.0"
META = ("schema_version", "libreyolo_version", "model_family", "size", "task", "nc", "names", "imgsz")
"""The metadata every file of schema 1.0 has."""
_TEXT = ("schema_version", "libreyolo_version", "model_family", "size", "task")

State = dict[str, Tensor]


@dataclass
class File:
    """What a weight file holds.

    Args:
        state: the state dict on the CPU, wrapper prefixes (``module.``, ``_orig_mod.``) stripped.
        meta: plain metadata by name; ``names`` is {index: name}. Empty for files of other projects.
        training: everything else a training checkpoint carries, by name.
        path: where it came from.
        content: the dictionary as stored, for files without metadata.
    """

    state: State
    meta: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def state_in(self, containers: tuple[str, ...]) -> State:
        """The state dict of a file without metadata, looked for under ``containers`` (dotted keys) in order, then in
        the dictionary itself; ``state`` when the file has metadata or none of them holds one."""
        for name in containers if not self.meta else ():
            inner = _inside(self.content, name)
            if _is_state(inner):
                return _cleaned(inner, str(self.path))
        return self.state


def payload(
    state: Mapping[str, Tensor],
    *,
    family: str,
    size: str,
    task: str,
    nc: int,
    names: Mapping[int, str],
    imgsz: int,
    training: Mapping[str, Any] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """The dictionary of schema 1.0.

    Args:
        state: the weights (EMA where there is one), on any device; stored detached on the CPU.
        names: class index to name; classes without one are called ``class_<index>``.
        training: what a resume needs, merged beside the metadata.
        extra: further plain metadata such as ``letterbox_pad``.
    """
    meta = {
        "schema_version": SCHEMA,
        "libreyolo_version": __version__,
        "model_family": family,
        "size": size,
        "task": task,
        "nc": int(nc),
        "names": complete_names(names, nc),
        "imgsz": int(imgsz),
        **extra,
    }
    taken = {"model", *meta} & set(training or {})
    if taken:
        raise ValueError(f"training state may not be called {sorted(taken)}: schema 1.0 uses those names")
    return {"model": on_cpu(state), **meta, **(training or {})}


def complete_names(names: Mapping[int, str], nc: int) -> dict[int, str]:
    """One name for each of ``nc`` classes; absent ones become ``class_<index>``."""
    return {i: str(names.get(i, f"class_{i}")) for i in range(nc)}


def on_cpu(state: Mapping[str, Tensor]) -> State:
    """Detached CPU tensors that own no more storage than they show; names of one tensor keep sharing it."""
    done: dict[tuple[Any, ...], Tensor] = {}
    out: State = {}
    for key, value in state.items():
        identity = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0 or identity not in done:
            copy = value.detach().cpu()
            whole = copy.numel() * copy.element_size() == copy.untyped_storage().nbytes()
            done[identity] = copy if whole else copy.clone()
        out[key] = done[identity]
    return out


def write(path: str | Path, content: Mapping[str, Any]) -> Path:
    """Write what ``payload`` returned, atomically: see ``replacing``. The suffix decides: ``.safetensors`` holds
    weights and metadata only, anything else is a ``torch.save`` file.

    Raises:
        TrainingError: the disk is full; the previous file is intact.
        CheckpointError: the folder cannot be written.
    """
    target = Path(path)
    if target.suffix == ".safetensors":
        _write_safetensors(target, content)
    else:
        with replacing(target) as sink:
            torch.save(dict(content), sink)  # type: ignore[arg-type]  # anything with write and flush will do
    return target


def _write_safetensors(target: Path, content: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    extra = [k for k, v in content.items() if k != "model" and not _is_plain(v)]
    if extra:
        raise CheckpointError(
            f"{target} would lose the training state {', '.join(extra)}",
            where="safetensors holds weights only",
            mend="Use the suffix .pt, or leave the training state out.",
        )
    meta = {k: v if isinstance(v, str) else json.dumps(v) for k, v in content.items() if k != "model"}
    # the format refuses tensors that share memory, so each name gets its own copy
    data = save({k: v.contiguous().clone() for k, v in content["model"].items()}, metadata=meta)
    with replacing(target) as sink:
        sink.write(data)


def read(path: str | Path) -> File:
    """Read a weight file. Nothing in it is executed.

    Raises:
        CheckpointError: missing, empty, truncated, no weight file at all, or a pickle that needs code.
    """
    file = Path(path)
    kind = _kind(file)
    content = _read_safetensors(file) if kind == "safetensors" else _read_pickle(file, kind)
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{file} holds a {type(content).__name__}, not a dictionary of weights",
            mend="Save the model's state_dict() instead.",
        )
    if isinstance(content.get("model_family"), str) and _is_state(content.get("model")):
        return _with_metadata(file, content)
    for name in (*Checkpoint().containers, ""):
        inner = _inside(content, name)
        if _is_state(inner):
            return File(_cleaned(inner, str(file)), path=file, content=content)
    raise CheckpointError(
        f"{file} holds no state dict",
        where=f"its keys are {', '.join(map(str, list(content)[:6])) or 'none'}",
        mend="Save the model's state_dict(), alone or under the key 'model'.",
    )


def _with_metadata(file: Path, content: Mapping[str, Any]) -> File:
    version = str(content.get("schema_version", SCHEMA))
    if version.partition(".")[0] != SCHEMA.partition(".")[0]:
        raise CheckpointError(
            f"{file} has schema version {version!r}, this version reads {SCHEMA}",
            mend="Update: pip install -U libreyolo-core",
        )
    rest = {k: v for k, v in content.items() if k != "model"}
    meta = {k: v for k, v in rest.items() if _is_plain(v)}
    meta["names"] = _names(content.get("names"))
    for name in _TEXT:
        if meta.get(name) is not None:
            meta[name] = str(meta[name])
    training = {k: v for k, v in rest.items() if k not in META}
    return File(_cleaned(content["model"], str(file)), meta, training, file)


def _names(value: Any) -> dict[int, str]:
    """Class names from a list, or a mapping with integer or numeric-string keys."""
    pairs = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    return {int(k): str(v) for k, v in pairs if isinstance(k, int) or str(k).isdigit()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, (str, int)) and _is_plain(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))


def _inside(content: Any, dotted: str) -> Any:
    for part in filter(None, dotted.split(".")):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _is_state(value: Any) -> bool:
    """A mapping of names to tensors (other scalars may stand between them), nested nowhere."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        return False
    values = list(value.values())
    return any(isinstance(v, Tensor) for v in values) and not any(isinstance(v, (Mapping, list, tuple)) for v in values)


def _cleaned(state: Mapping[str, Any], where: str) -> State:
    tensors = {k.replace("_orig_mod.", ""): v.detach() for k, v in state.items() if isinstance(v, Tensor)}
    while tensors and all(k.startswith("module.") for k in tensors):
        tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
    for key, value in tensors.items():
        # a crafted file can show one stored number as a tensor of any size, which the first copy would allocate
        if value.layout is torch.strided and value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise CheckpointError(
                f"{key!r} claims {value.numel()} numbers but stores fewer", where=where, mend="Do not trust this file."
            )
    return tensors


def _kind(file: Path) -> str:
    """``zip``, ``pickle`` or ``safetensors`` by the first bytes; everything else is an error that says what it is."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(16)
    except FileNotFoundError:
        near = (
            nearest(file.name, [p.name for p in file.parent.iterdir() if p.is_file()]) if file.parent.is_dir() else []
        )
        raise CheckpointError(
            f"{file} does not exist", mend=f"Did you mean {near[0]!r}?" if near else "Check the path."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}", mend="Give a weight file.") from error
    if size == 0:
        raise CheckpointError(f"{file} is empty (0 bytes)", mend="Fetch or save it again.")
    if head[:4] == b"PK\x03\x04":
        return "zip"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "pickle"
    if file.suffix == ".safetensors" or (head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size):
        return "safetensors"
    if head.startswith(b"version https:/"):
        raise CheckpointError(
            f"{file} is a Git LFS pointer, not the weights", mend="Run 'git lfs pull', or fetch the file itself."
        )
    text = "a text file" if all(b in b"\t\n\r" or 32 <= b < 127 for b in head) else "of an unknown format"
    raise CheckpointError(
        f"{file} is no weight file: it is {text}",
        where=f"it begins with {head[:12]!r}",
        mend="Give a .pt, .pth or .safetensors file.",
    )


def _read_safetensors(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(file), framework="pt", device="cpu") as opened:
            meta = opened.metadata() or {}
            state = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    if "model_family" not in meta:
        return state
    return {"model": state, **{k: v if k in _TEXT else _json_or_text(v) for k, v in meta.items()}}


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _read_pickle(file: Path, kind: str) -> Any:
    if kind == "zip":
        _check_zip(file)
    try:
        with torch.serialization.safe_globals(_harmless()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch warns of here ends in one of the errors below
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        needs = _needed(str(error))
        if not needs:
            raise _damaged(file, error) from error
        raise CheckpointError(
            f"{file} is refused: unpickling it {needs}",
            where="only tensors and plain values are read, nothing is executed",
            mend="Where it was made, save the state_dict() alone, or as .safetensors.",
        ) from error
    except Exception as error:  # a broken pickle can make the unpickler raise anything
        raise _damaged(file, error) from error


def _check_zip(file: Path) -> None:
    """torch stores tensors uncompressed; a compressed entry could unpack to any size."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    if any(e.filename.endswith("/constants.pkl") for e in entries):
        raise CheckpointError(
            f"{file} is a TorchScript program, not a weight file",
            mend="Give it the suffix .torchscript to run it as an exported model.",
        )
    if any(e.compress_type != zipfile.ZIP_STORED for e in entries):
        raise CheckpointError(
            f"{file} is a compressed archive, not a weight file",
            mend="Unpack it, and give the .pt or .safetensors file inside.",
        )


def _harmless() -> list[Any]:
    """NumPy scalars, which trainers store as metrics; making one runs nothing."""
    module = np._core if hasattr(np, "_core") else np.core
    scalar = module.multiarray.scalar
    kinds = {type(np.dtype(t)) for t in ("f8", "f4", "f2", "i8", "i4", "i2", "u1", "?")}
    return [(scalar, "numpy._core.multiarray.scalar"), (scalar, "numpy.core.multiarray.scalar"), np.dtype, *kinds]


def _needed(message: str) -> str:
    """What a refused pickle wanted to do, from the unpickler's message; "" when it is merely damaged."""
    if found := re.search(r"GLOBAL ([\w.]+)", message):
        return f"would run {found[1]}"
    if found := re.search(r"unrecognized function (.+?)(?: which| at 0x|$)|but got (<class .+?>)", message):
        return f"would run {(found[1] or found[2]).strip('<>')}"
    if found := re.search(r"Unsupported operand (\d+)", message):
        return f"needs pickle instruction {found[1]}, which weight files do not use"
    return ""


def _damaged(file: Path, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return CheckpointError(f"{file} is truncated or damaged: {reason}", mend="Fetch or save it again.")
