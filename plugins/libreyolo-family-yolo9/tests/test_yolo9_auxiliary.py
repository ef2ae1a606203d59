"""The auxiliary branch: there in training, trained, weighed, and nowhere else."""

import cv2
import numpy as np
import pytest
import torch

from libreyolo_core.api import LibreYOLO
from libreyolo_core.checkpoint import load_into, matches, read
from libreyolo_core.family import with_path
from libreyolo_core.losses import Step
from libreyolo_family_yolo9.loss import YOLO9Loss
from libreyolo_family_yolo9.plugin import YOLO9 as FAMILY

AUXILIARY = ("aux_box", "aux_dfl", "aux_cls")


@pytest.fixture
def squares(tmp_path):
    """Arguments of a quick training on two photos of squares."""
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
        for i in range(2):
            photo = np.full((64, 64, 3), 60, np.uint8)
            photo[16:48, 8:40] = 220
            cv2.imwrite(str(tmp_path / "images" / split / f"{i}.png"), photo)
            (tmp_path / "labels" / split / f"{i}.txt").write_text("0 0.375 0.5 0.5 0.5\n")
    (tmp_path / "data.yaml").write_text(f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: [square]\n")
    return {
        "data": str(tmp_path / "data.yaml"), "imgsz": 64, "batch": 2, "workers": 0, "plots": False, "device": "cpu",
        "project": str(tmp_path / "runs"),
    }  # fmt: skip


@pytest.fixture
def network(build):
    """A network with its auxiliary branch."""
    return build("t", nc=3, auxiliary=True).train()


@pytest.fixture
def step(network, random_targets):
    """Outputs and targets of a training step."""
    return network(torch.rand(2, 3, 64, 64)), random_targets([3, 1], 64, 3, smallest=16.0)


def test_the_sheet_trains_with_the_branch_and_knows_its_keys(build, sheet, network):
    assert sheet.training == {"auxiliary": True}
    known = FAMILY.checkpoint.training_only
    without = build("t", nc=3).state_dict()
    extra = set(network.state_dict()) - set(without)
    assert extra and {k for k in network.state_dict() if matches(k, known)} == extra


def test_its_loss_reaches_it_and_through_it_the_backbone_but_not_the_neck(network, step):
    terms = YOLO9Loss(network)(*step, Step()).terms
    sum(terms[name] for name in AUXILIARY).backward()
    reached = {name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert {name.partition(".")[0] for name in reached} == {"backbone", "aux", "aux_head"}
    for part in ("backbone.conv0.conv", "backbone.elan4.cv4.conv", "aux.elan_a3.cv1.conv", "aux_head.cv3.2.2"):
        assert f"{part}.weight" in reached
    # The backbone's pooling belongs to the neck's way; the branch pools for itself.
    assert not any(name.startswith("backbone.spp") for name in reached)


def test_every_parameter_learns_from_the_whole_loss(network, step):
    YOLO9Loss(network)(*step, Step()).total.backward()
    for name, p in network.named_parameters():
        # A box tower learns where some target takes a cell of its level.
        assert p.grad is not None and (p.grad.any() or ".cv2." in name), name


def test_its_terms_are_those_of_its_own_head_at_a_quarter(network, step):
    outputs, targets = step
    terms = YOLO9Loss(network)(outputs, targets, Step()).named()
    alone = {name.removeprefix("aux_"): value for name, value in outputs.items() if name.startswith("aux_")}
    own = YOLO9Loss(network)({**alone, "cells": outputs["cells"]}, targets, Step()).named()
    for name in ("box", "dfl", "cls"):
        torch.testing.assert_close(terms[f"aux_{name}"], 0.25 * own[name])


def test_it_changes_none_of_the_other_terms(network, step):
    outputs, targets = step
    both = YOLO9Loss(network)(outputs, targets, Step())
    main = {name: outputs[name] for name in ("distributions", "classes", "cells")}
    without = YOLO9Loss(network)(main, targets, Step())
    assert set(both.named()) == {*without.named(), *AUXILIARY}
    for name, value in without.named().items():
        # The sums of both branches are formed together, in another order.
        torch.testing.assert_close(both.named()[name], value, rtol=1e-5, atol=1e-6)


def test_its_weight_is_an_option_of_the_loss(network, step, sheet):
    loss = with_path(sheet, "loss.aux", 0.5).loss
    half = YOLO9Loss(network, **loss.options)(*step, Step()).named()
    quarter = YOLO9Loss(network, **sheet.loss.options)(*step, Step()).named()
    assert all(torch.equal(half[name], 2 * quarter[name]) for name in AUXILIARY)


def test_evaluation_never_computes_it(network):
    def refuse(*_):
        raise AssertionError("the auxiliary branch ran")

    network.aux.forward = network.aux_head.forward = refuse
    with torch.no_grad():
        assert list(network.eval()(torch.zeros(1, 3, 64, 64))) == ["distributions", "classes", "cells"]
    with pytest.raises(AssertionError, match="ran"):
        network.train()(torch.zeros(1, 3, 64, 64))


def test_weights_with_and_without_it_load_both_ways(build, network):
    full, plain = network.state_dict(), build("t", nc=3)
    report = load_into(plain, full, FAMILY.checkpoint)
    assert report.missing == () and all(k.startswith("aux") for k in report.unexpected)
    kept = {k: v for k, v in full.items() if not matches(k, FAMILY.checkpoint.training_only)}
    assert set(kept) == set(plain.state_dict())
    report = load_into(network, kept, FAMILY.checkpoint)
    assert report.unexpected == () and all(k.startswith("aux") for k in report.missing)


def test_a_run_keeps_it_in_the_last_weights_alone_and_a_resume_goes_on_with_it(squares):
    model = LibreYOLO("yolo9-t", pretrained=False, device="cpu")
    folder = model.train(epochs=1, **squares).save_dir / "weights"
    with_it = {f: any(k.startswith("aux") for k in read(folder / f"{f}.pt").state) for f in ("best", "last")}
    assert with_it == {"best": False, "last": True}
    before = read(folder / "last.pt").state["aux_head.cv3.0.2.bias"]
    LibreYOLO(folder / "last.pt", device="cpu").train(resume=str(folder / "last.pt"), epochs=2)
    after = read(folder / "last.pt").state["aux_head.cv3.0.2.bias"]
    assert not torch.equal(before, after) and (before - after).abs().max() < 1


def test_a_run_can_do_without_it_and_a_resume_then_does_too(squares, build):
    model = LibreYOLO("yolo9-t", pretrained=False, device="cpu")
    folder = model.train(epochs=1, auxiliary=False, **squares).save_dir
    LibreYOLO(folder / "weights/last.pt", device="cpu").train(resume=str(folder / "weights/last.pt"), epochs=2)
    assert set(read(folder / "weights/last.pt").state) == set(build("t", nc=1).state_dict())
    columns, *rows = (folder / "results.csv").read_text().splitlines()
    assert len(rows) == 2 and "train/box" in columns and "aux" not in columns
