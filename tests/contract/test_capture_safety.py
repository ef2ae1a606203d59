"""The check ``capture`` finds what a CUDA graph cannot hold, on a machine without a GPU, and names it."""

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import toy_family
from libreyolo_core.family import Capture, Loss
from libreyolo_core.testing import check_family
from libreyolo_core.testing.safety import autocast_set


def found(monkeypatch, entry_points, region=None, loss=None, static=True):
    """The verdict on the toy family with another region or loss."""
    family = toy_family.FAMILY
    task = replace(family.tasks["detect"], loss=Loss("toy_family:ToyLoss", static=static))
    monkeypatch.setattr(toy_family, "FAMILY", replace(family, tasks={"detect": task}))
    if region is not None:

        class Other(toy_family.ToyNetwork):
            def region(self, images, draw=None):
                return {k: region(self, v) for k, v in super().region(images, draw).items()}

        monkeypatch.setattr(toy_family, "ToyNetwork", Other)
    if loss is not None:

        class OtherLoss(toy_family.ToyLoss):
            def compute(self, boxes, logits, targets, step):
                terms = super().compute(boxes, logits, targets, step)
                return type(terms)({k: loss(v, targets) for k, v in terms.terms.items()})

        monkeypatch.setattr(toy_family, "ToyLoss", OtherLoss)
    entry_points(toy="toy_family")
    (row,) = check_family("toy", only=["capture"]).rows
    return row["status"], row["detail"]


def line_of(function):
    """Where a lambda or the marked line of a function stands, as the check writes it."""
    lines, first = inspect.getsourcelines(function)
    marked = [i for i, text in enumerate(lines) if "# here" in text]
    return f"test_capture_safety.py:{first + (marked[0] if marked else 0)}"


def test_a_clean_family_passes_with_its_loss(monkeypatch, entry_points):
    status, detail = found(monkeypatch, entry_points)
    assert status == "passed", detail
    assert re.match(r"network and loss, \d+ operations forward and backward, with and without autocast$", detail)


BAD_REGIONS = {
    "a tensor made on the host": (
        lambda net, x: x + torch.arange(x.shape[-1]).to(x.device),
        "_to_copy",
        "copy between",
    ),
    "a tensor made from a list": (
        lambda net, x: x * torch.tensor([1.0] * x.shape[-1], device=x.device),
        "_to_copy",
        "copy between devices (cpu, cuda)",
    ),
    "a list used as an index": (lambda net, x: x[:, [0, 1]], "_to_copy", "copy between"),
    "a host tensor beside a device one": (lambda net, x: x * torch.ones(x.shape[-1]), "mul", "copy between"),
    "item": (lambda net, x: x * x.mean().item(), "_local_scalar_dense", "read on the host"),
    "a branch on a value": (lambda net, x: x if x.sum() > 0 else -x, "_local_scalar_dense", "read on the host"),
    "tolist": (lambda net, x: x * x[0, 0].tolist()[0], "_local_scalar_dense", "read on the host"),
    "equal": (lambda net, x: x * int(torch.equal(x, x)), "equal", "read on the host"),
    "a boolean index": (lambda net, x: x[x > 0].sum() * x, "index", "shape depends on data"),
    "writing through a boolean index": (
        lambda net, x: x.clone().index_put_((x > 0,), x.mean()),
        "index_put_",
        "shape depends on data",
    ),
    "nonzero": (lambda net, x: x * len(torch.nonzero(x)), "nonzero", "shape depends on data"),
    "cpu": (lambda net, x: x.cpu().to(x.device), "_to_copy", "a copy from cuda to the host"),
    "numpy": (lambda net, x: x * float(np.asarray(x.detach()).max()), "RuntimeError", "numpy"),
}


@pytest.mark.parametrize("name", BAD_REGIONS)
def test_what_a_region_may_not_do_is_named_with_operation_file_and_line(monkeypatch, entry_points, name):
    region, operation, why = BAD_REGIONS[name]
    status, detail = found(monkeypatch, entry_points, region)
    assert status == "failed"
    assert detail.startswith(f"forward: {operation} at ")
    assert re.search(r"at contract/test_capture_safety.py:\d+ \(<lambda>\)", detail)
    assert why in detail


class ReadsTheHost(torch.nn.Module):
    """A layer of somebody else's."""

    def forward(self, x, draw):
        return x * x.mean().item()  # here


def test_a_line_outside_the_family_is_named_with_the_familys_line_that_led_there(monkeypatch, entry_points):
    monkeypatch.setattr(toy_family, "DropPath", lambda p, name: ReadsTheHost())
    status, detail = found(monkeypatch, entry_points)
    assert status == "failed"
    assert (
        f"_local_scalar_dense at contract/{line_of(ReadsTheHost)} (forward), called from support/toy_family.py:"
        in detail
    )


def test_a_constant_written_through_a_mask_is_allowed(monkeypatch, entry_points):
    def region(net, x):
        x = x.clone()
        x[x > 4] = 4.0  # a graph holds this as a masked fill
        return x

    status, detail = found(monkeypatch, entry_points, region)
    assert status == "passed", detail


def counts_boxes(term, targets):
    return term * len(torch.nonzero(targets.valid))


def test_a_static_loss_is_held_to_the_same_rules(monkeypatch, entry_points):
    status, detail = found(
        monkeypatch, entry_points, loss=lambda term, targets: term * len(torch.nonzero(targets.valid))
    )
    assert status == "failed"
    assert "nonzero at contract/test_capture_safety.py" in detail and "shape depends on data" in detail


def test_a_loss_that_is_not_called_static_may_read_the_host(monkeypatch, entry_points):
    status, detail = found(monkeypatch, entry_points, loss=counts_boxes, static=False)
    assert status == "passed" and detail.startswith("network, "), detail


class ReadsInBackward(torch.autograd.Function):
    """The identity, with a host read where only the backward passes."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.mean().item()  # here


class CopiesInBackward(torch.autograd.Function):
    """The identity, with a copy to the device in the backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.ones(gradient.shape[-1]).to(gradient.device)  # here


@pytest.mark.parametrize(
    ("function", "operation"), [(ReadsInBackward, "_local_scalar_dense"), (CopiesInBackward, "_to_copy")]
)
def test_a_fault_of_the_backward_alone_is_found(monkeypatch, entry_points, function, operation):
    status, detail = found(monkeypatch, entry_points, lambda net, x: function.apply(x))
    assert status == "failed"
    assert detail.startswith(f"backward: {operation} at contract/{line_of(function)} (backward): "), detail


def test_a_host_read_inside_torchs_own_backward_names_the_forward_line(monkeypatch, entry_points):
    def region(net, x):
        return x * x.abs().add(1).prod(-1, keepdim=True)  # here

    status, detail = found(monkeypatch, entry_points, region)
    assert status == "failed" and detail.startswith("backward: _local_scalar_dense at the backward of "), detail
    assert line_of(region) in detail


def test_a_branch_that_a_later_phase_switches_on_is_examined_too(monkeypatch, entry_points):
    status, detail = found(monkeypatch, entry_points, lambda net, x: x * x.mean().item() if net.sharp else x)
    assert status == "failed" and detail.startswith("forward: _local_scalar_dense"), detail


def test_predictions_are_held_to_the_same_rules_unless_the_sheet_rules_them_out(monkeypatch, entry_points):
    class Picks(toy_family.ToyNetwork):
        def predictions(self, outputs, image_size):
            outputs["boxes"] = outputs["boxes"] * len(torch.nonzero(outputs["logits"]))
            return super().predictions(outputs, image_size)

    monkeypatch.setattr(toy_family, "ToyNetwork", Picks)
    status, detail = found(monkeypatch, entry_points)
    assert status == "failed" and detail.startswith("inference: nonzero at contract/test_capture_safety.py"), detail
    family = toy_family.FAMILY
    task = replace(family.tasks["detect"], capture=Capture("network", inference_off_reason="it picks"))
    monkeypatch.setattr(toy_family, "FAMILY", replace(family, tasks={"detect": task}))
    assert found(monkeypatch, entry_points)[0] == "passed"


def test_random_numbers_from_global_state_are_named_but_allowed(monkeypatch, entry_points):
    status, detail = found(monkeypatch, entry_points, lambda net, x: torch.nn.functional.dropout(x, 0.1))
    assert status == "passed"
    assert re.search(r"draws from global random state: native_dropout at \S+test_capture_safety.py:\d+", detail)


def test_autocast_is_set_for_a_device_that_is_not_there_and_put_back():
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with autocast_set("cuda", torch.bfloat16):
        assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == before
