"""``libreyolo profile``: a command of commands, which read a copied profile anywhere and import nothing heavy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from libreyolo_core.cli.group import find_command
from libreyolo_core.profiler.trace import write_trace
from profiles import cpu_profile, event, gpu_profile

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "profiler" / "data" / "cpu_profile.json"
READERS = ("summary", "phases", "kernels", "ops")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with nothing but copied files: one recorded on a CPU, two made up of a GPU."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(RECORDED, "recorded.json")
    Path("gpu.json").write_text(json.dumps(gpu_profile()))
    Path("graph.json").write_text(json.dumps(gpu_profile(step_us=14_000.0, compile="default")))
    profile = gpu_profile()
    write_trace("trace.json", profile["lanes"], profile["names"])
    return tmp_path


@pytest.mark.parametrize("file", ["recorded.json", "gpu.json"])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_answers_in_words_and_as_one_document(run, folder, reader, file):
    words = run("profile", reader, file)
    assert words.exit_code == 0, words.stderr
    assert "yolox-n, detect" in words.stdout
    document = json.loads(run("profile", reader, file, "--json").stdout)
    assert reader in document or {"verdict", "numbers", "run"} <= set(document)


def test_summary_says_verdict_reason_levers_and_numbers(run, folder):
    text = run("profile", "summary", "gpu.json").stdout
    for fact in ("host/launch-bound: busy 28%", "cuda_graph=True", "20.0 ms", "800.0 images/s", "3.17 GiB"):
        assert fact in text


def test_phases_list_each_phase_with_its_share_of_a_step(run, folder):
    rows = [line.split() for line in run("profile", "phases", "gpu.json").stdout.splitlines()[2:]]
    assert rows[0] == ["phase", "per", "step", "share"]
    assert [r[0] for r in rows[1:]] == ["to_device", "forward", "backward", "optimizer"]
    assert rows[2][-1] == "34.3%"


def test_a_run_too_short_for_phases_says_so(run, folder):
    profile = gpu_profile()
    profile["phases"], profile["window"]["bracketed"] = [], 0
    Path("short.json").write_text(json.dumps(profile))
    assert "No phases: the run ended" in run("profile", "phases", "short.json").stdout


@pytest.mark.parametrize(("reader", "key"), [("kernels", "total_us"), ("ops", "self_us")])
def test_top_limits_the_rows_and_says_how_many_there_are(run, folder, reader, key):
    document = json.loads(run("profile", reader, "gpu.json", "top=2", "--json").stdout)
    assert len(document[reader]) == 2
    assert document[reader][0][key] >= document[reader][1][key]
    text = run("profile", reader, "gpu.json", "--top", "2").stdout
    assert f"2 of {document['all']} " in text
    assert f"--top {document['all']} lists all" in text
    assert "lists all" not in run("profile", reader, "gpu.json", "--top", "999").stdout


def test_kernels_of_a_cpu_are_called_operators(run, folder):
    assert "operator\n" in run("profile", "kernels", "recorded.json").stdout
    assert "kernel\n" in run("profile", "kernels", "gpu.json").stdout


@pytest.mark.parametrize("reader", ["kernels", "ops"])
def test_a_chrome_trace_lists_what_is_in_it(run, folder, reader):
    traced = [event("cpu_op", "aten::mm", 1, 0, 50), event("kernel", "gemm", 7, 10, 30, pid=0)]
    Path("any.json").write_text(json.dumps({"traceEvents": traced}))
    document = json.loads(run("profile", reader, "any.json", "--json").stdout)
    assert [row["name"] for row in document[reader]] == [{"kernels": "gemm", "ops": "aten::mm"}[reader]]


def test_a_trace_without_operators_says_so(run, folder):
    Path("any.json").write_text(json.dumps([event("python_function", "f", 1, 0, 50)]))
    assert "No operators were recorded." in run("profile", "ops", "any.json").stdout


def test_compare_puts_what_moved_side_by_side(run, folder):
    out = run("profile", "compare", "gpu.json", "graph.json", "--top", "2")
    assert out.exit_code == 0, out.stderr
    assert "Settings that changed: compile off -> default." in out.stdout
    step = next(line.split() for line in out.stdout.splitlines() if line.startswith("step "))
    assert step == ["step", "20.0", "ms", "14.0", "ms", "-6.00", "ms", "0.70x", "better"]
    document = json.loads(run("profile", "compare", "gpu.json", "graph.json", "--top", "2", "--json").stdout)
    assert len(document["kernels"]) == 2
    assert document["settings"] == {"compile": {"before": "off", "after": "default"}}


def test_compare_of_two_different_things_says_so_and_judges_nothing(run, folder):
    text = run("profile", "compare", "recorded.json", "gpu.json").stdout
    assert "These are two different things:" in text
    for setting in ("batch 4 -> 16", "device cpu -> cuda:0", "precision float32 -> bfloat16"):
        assert setting in text
    assert "Verdict: compute-bound before, host/launch-bound after." in text
    assert "better" not in text
    assert "worse" not in text


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ((), "needs one of run, summary, phases, kernels, ops, compare", 2),
        (("krnels", "gpu.json"), "Unknown command 'krnels' (libreyolo profile). Did you mean 'kernels'?", 2),
        (("summary",), "PROFILE is missing (libreyolo profile summary)", 2),
        (("summary", "nothing.json"), "nothing.json does not exist", 1),
        (("summary", "trace.json"), "trace.json is a trace, not a profile", 1),
        (("compare", "gpu.json"), "AFTER is missing", 2),
        (("compare", "gpu.json", "graph.json", "gpu.json"), "'gpu.json' is one word too many", 2),
        (("kernels", "gpu.json", "top=0"), "top='0' is out of range (profile kernels argument top)", 2),
        (("kernels", "gpu.json", "--tip", "3"), "Unknown option '--tip' (libreyolo profile kernels)", 2),
        (("--quiet", "summary", "gpu.json"), "Unknown option '--quiet' (libreyolo profile)", 2),
    ],
)
def test_mistakes_are_one_line_each(run, folder, words, said, code):
    out = run("profile", *words)
    assert (out.exit_code, out.stdout) == (code, "")
    assert said in out.stderr
    assert out.stderr.count("error: ") == 1
    failed = run("profile", *words, "--json")
    assert json.loads(failed.stdout)["error"]["exit_code"] == code


def test_switches_may_stand_before_between_and_after_the_words(run, folder):
    answers = [
        run(*words)
        for words in (
            ("--json", "profile", "phases", "gpu.json"),
            ("profile", "--json", "phases", "gpu.json"),
            ("profile", "phases", "gpu.json", "--json"),
        )
    ]
    assert len({a.stdout for a in answers}) == 1
    assert json.loads(answers[0].stdout)["phases"]


def test_the_help_of_the_group_lists_its_commands_with_the_help_they_have(run):
    text = run("profile", "--help").stdout
    command, _ = find_command(["profile"])
    assert list(command.entries) == ["run", "summary", "phases", "kernels", "ops", "compare"]
    for name, entry in command.entries.items():
        assert f"{name:<7}  {entry.help}" in text
        below, rest = find_command(["profile", name, "x"])
        assert (below.help, rest) == (entry.help, ["x"])
        page = run("profile", name, "--help").stdout
        assert page.startswith(f"Usage: libreyolo profile {name} ")
    listed = json.loads(run("profile", "--help", "--json").stdout)["commands"]
    assert [c["name"] for c in listed] == list(command.entries)


@pytest.mark.parametrize(
    "words",
    [
        ("profile",),
        ("profile", "--help"),
        ("profile", "run", "--help"),
        ("profile", "compare", "gpu.json", "graph.json"),
    ]
    + [("profile", reader, "gpu.json") for reader in READERS],
)
def test_reading_imports_neither_torch_nor_numpy(words, folder):
    script = (
        "import sys\n"
        "from libreyolo_core.cli.main import main\n"
        "try:\n"
        f"    main({list(words)!r})\n"
        "except SystemExit as done:\n"
        "    pass\n"
        "print([m for m in ('torch', 'numpy', 'cv2') if m in sys.modules], file=sys.stderr)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, cwd=folder)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_what_was_recorded_and_what_is_made_up_have_the_same_form():
    recorded, made_up = json.loads(RECORDED.read_text()), cpu_profile()
    assert set(made_up) == set(recorded)
    assert set(made_up["numbers"]) <= set(recorded["numbers"])
    assert set(made_up["kernels"][0]) == set(recorded["kernels"][0])
    assert set(made_up["ops"][0]) == set(recorded["ops"][0])
    assert set(made_up["verdict"]) == set(recorded["verdict"])
