"""With ``--json`` standard output is one JSON document, whatever happens."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from libreyolo_core.cli.output import plain, stdout_goes_to_stderr
from libreyolo_core.errors import DataError
from profiles import gpu_profile

CALLS = {
    "train": ["train", "model=toy-a", "data=x"],
    "dry run": ["train", "model=toy-a", "data=x", "--dry-run"],
    "val": ["val", "model=toy-a", "data=x"],
    "predict": ["predict", "model=toy-a", "source=x"],
    "export": ["export", "model=toy-a"],
    "check": ["check", "x.yaml"],
    "profile": ["profile", "summary", "profile.json"],
    "families": ["families"],
    "family": ["families", "toy"],
    "plugins": ["plugins"],
    "check-family": ["check-family", "toy"],
    "new-family": ["new-family", "river"],
    "demo": ["demo"],
    "env": ["env"],
}
KEYS = {
    "train": "metrics",
    "dry run": "epochs",
    "val": "per_class",
    "predict": "results",
    "export": "path",
    "check": "report",
    "profile": "verdict",
    "families": "families",
    "family": "tasks",
    "plugins": "plugins",
    "check-family": "checks",
    "new-family": "folder",
    "demo": "pictures",
    "env": "torch",
}


@pytest.fixture
def heavy(monkeypatch, model, tmp_path):
    """Stand-ins for everything slow; each of them prints, as libraries do."""

    def check(data, task, progress=None):
        print("a library prints")
        return {"data": data, "report": "fine", "usable": True, "splits": {}}

    def check_family(key, **options):
        print("a library prints")
        return SimpleNamespace(ok=True, rows=[{"check": "split", "status": "passed", "detail": ""}])

    monkeypatch.setitem(sys.modules, "libreyolo_core.data.scan", SimpleNamespace(check=check))
    monkeypatch.setitem(sys.modules, "libreyolo_core.testing", SimpleNamespace(check_family=check_family))
    demo = "libreyolo_core.cli.commands.demo"
    monkeypatch.setattr(f"{demo}.demo_settings", lambda: {"model": "toy-a", "settings": {}})
    monkeypatch.setattr(f"{demo}.validation_photos", lambda model: [])
    monkeypatch.chdir(tmp_path)
    Path("profile.json").write_text(json.dumps(gpu_profile()))
    return model


@pytest.mark.parametrize("name", CALLS)
def test_every_command_prints_one_document_and_nothing_else(run, heavy, name):
    out = run(*CALLS[name], "--json")
    assert out.exit_code == 0, out.stderr
    assert KEYS[name] in json.loads(out.stdout)


def test_every_command_of_the_core_is_tried_here(run):
    listed = {c["name"] for c in json.loads(run("--help", "--json").stdout)["commands"]}
    assert listed == {words[0] for words in CALLS.values()}


@pytest.mark.parametrize("place", ["before", "after", "as a key"])
def test_json_may_stand_anywhere(run, heavy, place):
    words = CALLS["train"]
    out = {"before": ["--json", *words], "after": [*words, "--json"], "as a key": ["train", "json=true", *words[1:]]}
    assert json.loads(run(*out[place]).stdout)["metrics"]


def test_what_libraries_print_goes_to_standard_error(run, heavy):
    assert "a library prints" in run(*CALLS["train"], "--json").stderr


def test_a_figure_that_is_not_a_number_becomes_null(run, heavy):
    assert json.loads(run(*CALLS["train"], "--json").stdout)["metrics"]["metrics/mAP50-95"] is None


@pytest.mark.parametrize("name", [n for n in CALLS if n in ("train", "val", "predict", "export")])
def test_a_failure_is_a_document_with_message_place_and_mend(run, heavy, name):
    heavy.raises = DataError("no photos", where="my.yaml", mend="Add some.")
    out = run(*CALLS[name], "--json")
    assert out.exit_code == 1
    assert json.loads(out.stdout)["error"] == {
        "type": "DataError",
        "message": "no photos",
        "where": "my.yaml",
        "mend": "Add some.",
        "exit_code": 1,
    }


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (["trian"], "UnknownNameError", 2),
        (["train", "epoch=3"], "UsageError", 2),
        (["train"], "ConfigError", 2),
        (["families", "toi"], "UnknownNameError", 2),
        (["train", "model=toy-a", "data=x", "epochs=0"], "ConfigError", 2),
    ],
)
def test_wrong_usage_is_a_document_too(run, heavy, words, kind, code):
    out = run(*words, "--json")
    error = json.loads(out.stdout)["error"]
    assert (out.exit_code, error["type"], error["exit_code"]) == (code, kind, code)


@pytest.mark.parametrize(
    ("raised", "kind", "code"), [(KeyboardInterrupt(), "KeyboardInterrupt", 130), (OSError("x"), "OSError", 1)]
)
def test_interrupts_and_faults_are_documents_too(run, heavy, raised, kind, code):
    heavy.raises = raised
    out = run(*CALLS["train"], "--json")
    assert (out.exit_code, json.loads(out.stdout)["error"]["type"]) == (code, kind)


@pytest.mark.parametrize("name", sorted({words[0] for words in CALLS.values()}))
def test_the_help_page_of_every_command_is_a_document_too(run, name):
    page = json.loads(run(name, "--help", "--json").stdout)
    assert page["command"] == name
    assert page["example"].startswith(f"libreyolo {name}")
    names = [o["name"] for o in page["options"]]
    assert {"json", "traceback", "help"} <= set(names)
    text = run(name, "--help").stdout
    assert all(n in text or n.upper() in text for n in names)


def test_version_and_overview_are_documents_too(run):
    assert json.loads(run("--version", "--json").stdout) == {"libreyolo-core": "0.1.0"}
    assert json.loads(run("--json", "--help").stdout)["commands"][0]["name"] == "train"


def test_values_of_other_libraries_become_plain_ones():
    document = {1: np.float32(0.5), "b": np.arange(2), "c": (Path("x"), {math.inf}), "d": np.array(math.nan)}
    assert plain(document) == {"1": 0.5, "b": [0, 1], "c": ["x", [None]], "d": None}


def test_an_unknown_type_is_an_error_rather_than_its_repr():
    with pytest.raises(TypeError, match="object has no form in JSON"):
        plain(object())


def test_prints_of_c_code_and_of_children_stay_off_standard_output():
    script = (
        "import ctypes, os, subprocess, sys\n"
        "from libreyolo_core.cli.output import stdout_goes_to_stderr\n"
        "with stdout_goes_to_stderr():\n"
        "    print('from python')\n"
        "    ctypes.CDLL(None).puts(b'from c')\n"
        "    subprocess.run(['echo', 'from a child'])\n"
        "    os.write(1, b'from a descriptor')\n"
        "print('{}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n"
    for source in ("python", "c", "a child", "a descriptor"):
        assert f"from {source}" in done.stderr


def test_standard_output_is_back_after_a_failure(capfd):
    with pytest.raises(ValueError, match="x"), stdout_goes_to_stderr():
        raise ValueError("x")
    print("here", flush=True)
    os.write(1, b"and here\n")
    assert capfd.readouterr().out == "here\nand here\n"


@pytest.mark.parametrize(("rank", "prints"), [("0", True), ("1", False)])
def test_of_a_launched_job_rank_0_prints_the_answer(run, heavy, monkeypatch, rank, prints):
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    out = run("train", "model=toy-a", "data=x", "--json")
    assert out.exit_code == 0
    assert (out.stdout == "") != prints
    assert not prints or json.loads(out.stdout)["metrics"]
