"""``check_family`` itself: it finds what is broken and never counts what it could not judge."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import toy_family
from libreyolo_core.errors import UnknownNameError
from libreyolo_core.family import Capture, Loss, Size
from libreyolo_core.testing import OperationCounter, check_family, training_step
from libreyolo_core.testing.contract import CHECKS


def sheet(monkeypatch, **changes):
    """The toy family with a changed sheet."""
    family = toy_family.FAMILY
    monkeypatch.setattr(
        toy_family, "FAMILY", replace(family, tasks={"detect": replace(family.tasks["detect"], **changes)})
    )


def status(check):
    (row,) = check_family("toy", only=[check]).rows
    return row["status"], row["detail"]


def test_a_family_outside_the_repository_passes(toy):
    # the processes of "ranks" see installed packages only, and this family is not installed
    report = check_family("toy", only=[name for name in CHECKS if name != "ranks"])
    assert report.ok, str(report)
    assert {r["check"] for r in report.rows if r["status"] == "not run"} == {"parity", "loss parity"}


def test_a_wrong_parameter_count_fails_registration(monkeypatch, toy, entry_points):
    sheet(monkeypatch, sizes={"s": Size(64, params=1, width=8)})
    entry_points(toy="toy_family")
    assert status("registration") == ("failed", "detect s has 1,528 parameters, the sheet says 1")


class Explodes(toy_family.ToyLoss):
    """Divides by the number of boxes."""

    def compute(self, boxes, logits, targets, step):
        terms = super().compute(boxes, logits, targets, step)
        count = targets.valid.sum()
        return type(terms)({k: v * count / count for k, v in terms.terms.items()})


@pytest.mark.parametrize(
    ("loss", "check", "words"), [(Explodes, "empty", "the loss of images with [0, 0] objects is nan")]
)
def test_a_broken_loss_is_found(monkeypatch, toy, loss, check, words):
    monkeypatch.setattr(toy_family, "ToyLoss", loss)
    assert status(check) == ("failed", words)


def test_a_region_that_reads_the_host_fails_to_replay(monkeypatch, toy):
    class Branches(toy_family.ToyNetwork):
        def region(self, images, draw=None):
            scale = float(images.mean())  # a value read on the host is frozen into a recording
            return {k: v * scale for k, v in super().region(images, draw).items()}

    monkeypatch.setattr(toy_family, "ToyNetwork", Branches)
    assert status("replay")[0] == "failed"


def test_a_network_that_overrides_forward_fails_the_split(monkeypatch, toy):
    class Own(toy_family.ToyNetwork):
        def forward(self, images, targets=None, draw=None):
            return self.region(images, draw)

    monkeypatch.setattr(toy_family, "ToyNetwork", Own)
    assert "overrides forward" in status("split")[1]


def test_what_cannot_be_judged_is_not_run_and_alone_not_ok(monkeypatch, toy, entry_points):
    sheet(monkeypatch, capture=Capture(off_reason="tried, too small"))
    entry_points(toy="toy_family")
    report = check_family("toy", only=["replay", "parity"])
    assert [r["status"] for r in report.rows] == ["not run", "not run"] and not report.ok


def test_an_import_error_in_the_network_is_the_finding_not_a_crash(monkeypatch, toy, entry_points):
    sheet(monkeypatch, loss=Loss("toy_family:NoSuchLoss"))
    entry_points(toy="toy_family")
    assert "toy_family:NoSuchLoss" in status("registration")[1]


def test_unknown_checks_and_families_name_the_nearest(toy):
    with pytest.raises(UnknownNameError, match="Did you mean 'learns'"):
        check_family("toy", only=["learn"])
    with pytest.raises(UnknownNameError, match="toyy"):
        check_family("toyy")


def test_the_command_prints_one_json_document_and_exits_by_the_verdict(toy):
    from libreyolo_core.cli.group import cli

    done = CliRunner().invoke(cli, ["check-family", "toy", "--only", "precision", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["checks"][0]["status"] == "passed"


def test_a_training_step_is_repeatable_and_counts_the_same(toy):
    step = training_step("toy", batch=2, imgsz=64)
    counts = []
    for _ in range(2):
        with OperationCounter() as counter:
            step().backward()
        counts.append(counter.total)
    assert counts[0] == counts[1] > 0
    assert float(training_step("toy", batch=2, imgsz=64)().detach()) == float(
        training_step("toy", batch=2, imgsz=64)().detach()
    )
