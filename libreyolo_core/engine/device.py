"""Which device a run uses: one strict parser for the Python API and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from libreyolo_core.errors import DeviceError

FORMS = 'auto, cpu, mps, cuda, "cuda:0", 0, or for several GPUs "0,1" or [0, 1]'


def parse_device(device: str | int | Sequence[int] | torch.device) -> list[torch.device]:
    """The devices that ``device=`` means, checked against what exists.

    Returns:
        One device, or several CUDA devices for a list of more than one index.

    Raises:
        DeviceError: any other form, an index that does not exist, or one given twice.
    """
    if isinstance(device, bool) or not isinstance(device, (str, int, list, tuple, torch.device)):
        raise _not_a_form(device)
    text = ",".join(str(d) for d in device) if isinstance(device, (list, tuple)) else str(device)
    text = text.strip().lower()
    if text == "auto":
        return [_best()]
    if text == "cpu":
        return [torch.device("cpu")]
    if text == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError("device=mps is not available here", where="device", mend="Use device=cpu or device=auto.")
        return [torch.device("mps")]
    if text == "cuda":
        text = "0"
    if not re.fullmatch(r"(cuda:)?\d+|\d+(\s*,\s*\d+)+", text):
        raise _not_a_form(device)
    indices = [int(part) for part in text.removeprefix("cuda:").split(",")]
    existing = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in indices:
        if index >= existing:
            there = ", ".join(str(i) for i in range(existing)) or "none"
            raise DeviceError(
                f"device={device!r}: CUDA device {index} does not exist",
                where=f"existing CUDA devices: {there}",
                mend="Use device=cpu or device=auto." if not existing else f"Use one of: {there}.",
            )
    if len(set(indices)) != len(indices):
        raise DeviceError(f"device={device!r} names a device twice", where="device", mend="Give each index once.")
    return [torch.device("cuda", index) for index in indices]


def one_device(device: str | int | Sequence[int] | torch.device, *, verb: str) -> torch.device:
    """The single device of a verb that uses one."""
    devices = parse_device(device)
    if len(devices) > 1:
        raise DeviceError(
            f"device={device!r}: {verb} uses one device",
            where="device",
            mend=f"Use one of them, e.g. device={devices[0].index}.",
        )
    return devices[0]


def _best() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _not_a_form(device: object) -> DeviceError:
    return DeviceError(f"device={device!r} means nothing", where="device", mend=f"Accepted: {FORMS}.")
