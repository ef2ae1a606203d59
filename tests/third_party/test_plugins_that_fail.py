"""Installed plugins that cannot be used are reported, by name and cause, and take nobody down."""

import json

import pytest

from environments import ROOT, Environment, handmade_wheel, plugin

HOOKS = "from libreyolo_core.hookspecs import NamedEntry, hookimpl\n"
COMMAND = "@hookimpl\ndef libreyolo_commands():\n    return [NamedEntry({name!r}, 'nowhere:it', 'Something.')]\n"
MODULES = {
    "broken_plugin.py": "import a_module_that_is_not_there\n",
    "old_plugin.py": f"{HOOKS}HOOK_VERSION = 0\n" + COMMAND.format(name="old"),
    "new_plugin.py": f"{HOOKS}HOOK_VERSION = 99\n" + COMMAND.format(name="new"),
    "taken_plugin.py": HOOKS + COMMAND.format(name="env"),
    "fine_plugin.py": HOOKS + COMMAND.format(name="fine"),
}
CAUSES = {
    "broken_plugin": "No module named 'a_module_that_is_not_there'",
    "old_plugin": "written for hook version 0, this core has 1",
    "new_plugin": "written for hook version 99, this core has 1",
}
"""What is said about the plugins that are left out."""
CONFLICT = "commands key 'env' is claimed by libreyolo-core and stranger-taken-plugin"


@pytest.fixture(scope="module")
def troubled(tmp_path_factory, wheel_store):
    """An environment with the core, a family, and a distribution for each of the plugins above."""
    made = Environment(tmp_path_factory.mktemp("troubled"))
    folder = tmp_path_factory.mktemp("strangers")
    strangers = [
        handmade_wheel(folder, f"stranger-{file.removesuffix('.py').replace('_', '-')}", {file: text})
        for file, text in MODULES.items()
    ]
    made.install(*wheel_store.of(ROOT, plugin("family-resnet")), *strangers)
    return made


def test_every_failure_is_one_line_on_standard_error_and_the_command_goes_on(troubled, tmp_path):
    done = troubled.libreyolo("families", "--json", folder=tmp_path)
    assert done.returncode == 0
    assert [f["key"] for f in json.loads(done.stdout)["families"]] == ["resnet"]
    lines = done.stderr.splitlines()
    assert len(lines) == len(CAUSES) + 1
    for name, cause in CAUSES.items():
        (line,) = (x for x in lines if f"plugin {name} (stranger-{name.replace('_', '-')}) is left out" in x)
        assert cause in line
    assert f"libreyolo: {CONFLICT}" in lines


def test_the_list_of_plugins_has_them_all(troubled, tmp_path):
    done = troubled.libreyolo("plugins", "--json", folder=tmp_path)
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    errors = {p["name"]: p["error"] for p in answer["plugins"]}
    assert {name for name, error in errors.items() if error} == set(CAUSES)
    assert all(cause in errors[name] for name, cause in CAUSES.items())
    assert answer["conflicts"] == [CONFLICT]
    text = troubled.libreyolo("plugins", folder=tmp_path).stdout
    assert text.count("FAILED: ") == len(CAUSES)
    assert f"conflict: {CONFLICT}" in text


def test_only_what_is_disputed_is_out_of_reach(troubled, tmp_path):
    disputed = troubled.libreyolo("env", "--help", folder=tmp_path)
    assert disputed.returncode == 1
    assert disputed.stderr.splitlines()[-1].startswith(f"error: {CONFLICT}")
    assert troubled.libreyolo("families", "resnet", folder=tmp_path).returncode == 0
    overview = troubled.libreyolo("--help", folder=tmp_path)
    assert overview.returncode == 0
    assert "  fine " in overview.stdout and "  old " not in overview.stdout


def test_turning_the_culprits_off_is_silence(troubled, tmp_path):
    off = ",".join([*CAUSES, "stranger-taken-plugin"])
    done = troubled.libreyolo("env", "--help", folder=tmp_path, LIBREYOLO_DISABLE_PLUGINS=off)
    assert (done.returncode, done.stderr) == (0, "")
