"""The tutorial, typed into a shell of an environment that has wheels alone; then its package, installed elsewhere."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from environments import ROOT, Environment, plugin

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
RUN = re.compile(
    r"^<!-- run: tutorial(, fails)? -->\n```bash\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
BLOCKS = RUN.findall(PAGE)
"""Whether it is to fail, what is typed, and the lines that the page says come of it."""


@pytest.fixture(scope="module")
def session(tmp_path_factory, wheel_store):
    """The folder that the tutorial was followed in, and what each block printed."""
    environment = Environment(tmp_path_factory.mktemp("tutorial"))
    environment.install(*wheel_store.of(ROOT, plugin("data-treecrowns")))
    folder = tmp_path_factory.mktemp("desk")
    script = "set -euo pipefail\n" + "".join(f"echo ::block::\n{_failing(b) if fails else b}" for fails, b, _ in BLOCKS)
    # What an index would offer is installed already, so pip builds with what is there.
    env = {**environment.variables(), "PIP_NO_BUILD_ISOLATION": "0"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return folder / "libreyolo-family-river-scout", done.stdout.split("::block::\n")[1:]


@pytest.fixture(scope="module")
def elsewhere(session, tmp_path_factory, wheel_store):
    """Another environment, with the wheel that the tutorial built."""
    environment = Environment(tmp_path_factory.mktemp("elsewhere"))
    (wheel,) = (session[0] / "dist").glob("*.whl")
    environment.install(*wheel_store.of(ROOT, plugin("data-treecrowns")), wheel)
    return environment


def _failing(block):
    return f"set +e\n{block}[ $? -ne 0 ] || exit 99\nset -e\n"


def words(line):
    return " ".join(line.split())


def test_every_block_says_what_the_page_says(session):
    assert len(BLOCKS) >= 7
    printed = session[1]
    assert len(printed) == len(BLOCKS)
    for (_, block, expected), output in zip(BLOCKS, printed, strict=True):
        lines = "\n".join(words(line) for line in output.splitlines())
        for line in expected.splitlines():
            assert words(line) in lines, f"{block}\nprinted\n{output}"


def test_the_package_keeps_the_whole_contract_as_generated(session):
    from libreyolo_core.testing.contract import CHECKS

    (output,) = (o for (_, b, _), o in zip(BLOCKS, session[1]) if b == "libreyolo check-family river_scout\n")
    status = {
        name: found[1]
        if (found := re.search(rf"^{re.escape(name)} +(passed|failed|not run)", output, re.MULTILINE))
        else ""
        for name in CHECKS
    }
    assert {name for name, word in status.items() if word == "not run"} == {"parity", "loss parity"}, output
    assert set(status.values()) == {"passed", "not run"}, output


def test_the_checks_are_tests_of_their_own(session):
    (output,) = (o for (_, b, _), o in zip(BLOCKS, session[1]) if b.startswith("pytest --pyargs"))
    assert "2 passed" in output and "error" not in output.lower()


def test_the_wheel_is_a_family_wherever_it_is_installed(elsewhere, tmp_path):
    listed = elsewhere.libreyolo("families", "--json", folder=tmp_path)
    assert [f["key"] for f in json.loads(listed.stdout)["families"]] == ["river_scout"]
    small = ("epochs=1", "imgsz=96", "batch=8", "workers=0", "device=cpu", "plots=false", "pretrained=false")
    done = elsewhere.libreyolo("train", "model=river_scout-n", "data=treecrowns", *small, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path, json.loads(done.stdout)["best"]).is_file()


def test_a_check_that_fails_is_a_test_that_fails_and_one_not_run_is_skipped(elsewhere, tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('{"task": "detect", "size": "n", "classes": 80, "keys": {}, "canonical": {}, "loss": null}')
    options = (
        "--pyargs",
        "libreyolo_core.testing",
        "--family",
        "river_scout",
        "-k",
        "parity",
        "-p",
        "no:cacheprovider",
    )
    done = elsewhere.run("pytest", *options, f"--reference={empty}", folder=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 skipped" in done.stdout
    assert "not run: the reference file has no loss" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--family is missing (installed families: river_scout)"),
        (("--family", "river_scot"), "Did you mean 'river_scout'?"),
        (("--family", "river_scout", "--size", "x"), "river_scout has no size 'x' (--size)"),
        (("--family", "river_scout", "--task", "point"), "river_scout has no task 'point' (--task)"),
        (("--family", "river_scout", "--reference", "no.json"), "no.json: no such file (--reference)"),
    ],
)
def test_what_pytest_cannot_mean_is_refused_before_anything_runs(elsewhere, tmp_path, options, says):
    done = elsewhere.run("pytest", "--pyargs", "libreyolo_core.testing", *options, folder=tmp_path)
    assert done.returncode == 4
    assert says in done.stderr


def test_other_runs_of_pytest_know_nothing_of_it(elsewhere, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(request):\n    assert not hasattr(request.config.option, 'family')\n"
    )
    done = elsewhere.run("pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert elsewhere.run("pytest", "--family", "x", folder=tmp_path).returncode == 4
