"""What answering costs: no heavy imports, and an overview that comes from a cache which is never stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "torchvision", "numpy", "cv2", "PIL", "scipy", "matplotlib")


def python(*words, cwd, **environment):
    """Run this Python in an empty folder, with the checkout and ``cwd`` on its path."""
    path = os.pathsep.join([str(cwd), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "LIBREYOLO_CACHE": str(cwd / "cache"), **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, cwd=cwd)


def overview(cwd, **environment):
    done = python("-m", "libreyolo_core.cli", "--help", cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["families"],
        ["families", "resnet"],
        ["plugins"],
        ["train", "--help"],
        ["train", "epoch=1"],
        ["trian"],
        ["new-family", "river"],
    ],
)
def test_listing_helping_and_wrong_usage_import_nothing_heavy(words, tmp_path):
    script = (
        "import sys\n"
        "from libreyolo_core.cli.main import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit as done:\n"
        "    assert done.code is not None\n"
        f"found = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "assert not found, found\n"
    )
    done = python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_importing_the_packages_imports_nothing_heavy(tmp_path):
    script = f"import sys, libreyolo, libreyolo_core; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python("-c", script, cwd=tmp_path).stdout == "[]\n"


def test_the_overview_once_cached_imports_neither_click_nor_the_registry(tmp_path):
    first = overview(tmp_path)
    script = (
        "import sys\n"
        "from libreyolo_core.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    names = ('click', 'pluggy', 'importlib.metadata', 'libreyolo_core.registry', 'dataclasses')\n"
        "    print([m for m in names if m in sys.modules], file=sys.stderr)\n"
    )
    env_path_differs_not = python("-c", script, cwd=tmp_path)  # -c and -m put the same folder first
    again = python("-c", script, cwd=tmp_path)
    assert env_path_differs_not.stdout == again.stdout == first.stdout
    assert again.stderr == "[]\n"


def write_plugin(folder, *, name="newcomer", body="", help="Something new."):
    """A distribution, as an installer leaves it, with one command."""
    info = folder / f"libreyolo_{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: libreyolo-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[libreyolo]\n{name} = {name}_plugin\n")
    (folder / f"{name}_plugin.py").write_text(
        f"{body}\nfrom libreyolo_core.hookspecs import NamedEntry, hookimpl\n\n\n"
        f"@hookimpl\ndef libreyolo_commands():\n    return [NamedEntry({name!r}, 'nowhere:it', {help!r})]\n"
    )


def test_a_plugin_appears_as_soon_as_it_is_installed_and_goes_with_it(tmp_path):
    assert "newcomer" not in overview(tmp_path).stdout
    write_plugin(tmp_path)
    assert "newcomer      Something new." in overview(tmp_path).stdout
    assert "newcomer      Something new." in overview(tmp_path).stdout
    (tmp_path / "libreyolo_newcomer-1.0.dist-info" / "entry_points.txt").unlink()
    (tmp_path / "libreyolo_newcomer-1.0.dist-info" / "METADATA").unlink()
    (tmp_path / "libreyolo_newcomer-1.0.dist-info").rmdir()
    assert "newcomer" not in overview(tmp_path).stdout


def test_an_edited_plugin_is_read_again(tmp_path):
    write_plugin(tmp_path)
    assert "Something new." in overview(tmp_path).stdout
    file = tmp_path / "newcomer_plugin.py"
    stamp = file.stat()
    file.write_text(file.read_text().replace("Something new.", "Something else."))
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 10_000_000))
    assert "Something else." in overview(tmp_path).stdout


def test_a_plugin_turned_off_is_gone_and_back_again(tmp_path):
    write_plugin(tmp_path)
    assert "newcomer" in overview(tmp_path).stdout
    assert "newcomer" not in overview(tmp_path, LIBREYOLO_DISABLE_PLUGINS="newcomer").stdout
    assert "newcomer" in overview(tmp_path).stdout


def test_a_plugin_that_fails_is_reported_every_time_and_takes_nobody_down(tmp_path):
    write_plugin(tmp_path)
    write_plugin(tmp_path, name="ill", body="import nothing_of_that_name")
    for _ in range(2):
        done = overview(tmp_path)
        assert "newcomer" in done.stdout
        assert "plugin ill (libreyolo-ill) is left out" in done.stderr
        assert "nothing_of_that_name" in done.stderr


@pytest.mark.parametrize("content", ["", "rubbish", "off\t\nend", "\x00\x01"])
def test_a_damaged_cache_is_ignored(tmp_path, content):
    expected = overview(tmp_path).stdout
    (cache,) = (tmp_path / "cache").iterdir()
    cache.write_text(content)
    assert overview(tmp_path).stdout == expected


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    done = overview(tmp_path)
    assert "train " in done.stdout
    assert done.stderr == ""


def test_the_overview_is_the_same_from_the_cache_from_the_registry_and_through_click(tmp_path):
    pages = {
        overview(tmp_path).stdout,
        overview(tmp_path).stdout,
        python("-m", "libreyolo_core", "--help", cwd=tmp_path).stdout,
        python("-m", "libreyolo_core.cli", "-h", cwd=tmp_path).stdout,
        python("-m", "libreyolo_core.cli", "--traceback", "--help", cwd=tmp_path).stdout,
    }
    assert len(pages) == 1


def test_the_overview_lists_every_command_with_its_help(tmp_path):
    lines = overview(tmp_path).stdout.splitlines()
    names = ["train", "val", "predict", "export", "check", "profile", "families", "plugins", "check-family"]
    names += ["new-family", "demo", "env"]
    listed = [line.split()[0] for line in lines[lines.index("Commands:") + 1 : lines.index("Options:") - 1]]
    assert listed[: len(names)] == names


def test_a_pipe_that_closes_early_is_no_traceback(tmp_path):
    command = f"{sys.executable} -m libreyolo_core.cli train --help --json | head -n 1"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LIBREYOLO_CACHE": str(tmp_path)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_the_benchmark_prints_one_document(tmp_path):
    done = python(str(ROOT / "benchmarks" / "startup.py"), "--repeat", "1", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["met"] else 1)
    assert {"libreyolo --help", "libreyolo families", "import libreyolo_core"} <= {r["what"] for r in report["rows"]}
