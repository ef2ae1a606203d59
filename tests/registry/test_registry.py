"""Discovery: every plugin's entries by key, conflicts and failures reported and survived."""

import sys
import types

import pytest

from libreyolo_core.errors import PluginError, UnknownNameError
from libreyolo_core.family import Capture, Precision
from libreyolo_core.hookspecs import CaptureEntry, LossEntry, NamedEntry, PrecisionEntry, hookimpl
from libreyolo_core.registry import Plugin, Registry


def plugin(name, **hooks):
    """A plugin module whose hooks return the given entries."""
    module = types.ModuleType(name)
    for hook, entries in hooks.items():
        scope = {"entries": entries}
        exec(f"def libreyolo_{hook}(): return entries", scope)
        setattr(module, f"libreyolo_{hook}", hookimpl(scope[f"libreyolo_{hook}"]))
    return Plugin(name, f"dist-{name}", "1.0"), module


def test_entries_of_all_plugins_are_merged_by_key():
    found = Registry([plugin("a", loggers=[NamedEntry("one", "m:A")]), plugin("b", loggers=NamedEntry("two", "m:B"))])
    assert list(found.entries("loggers")) == ["one", "two"]
    assert found.plugins[0].entries == {"loggers": ["one"]}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_key_claimed_twice_is_an_error_that_names_both_whatever_the_order(order):
    both = [plugin("a", loggers=[NamedEntry("log", "m:A")]), plugin("b", loggers=[NamedEntry("log", "m:B")])]
    found = Registry([both[i] for i in order])
    assert "log" not in found.entries("loggers")
    with pytest.raises(PluginError, match="claimed by dist-.* and dist-"):
        found.get("loggers", "log", what="logger")
    assert len(found.conflicts()) == 1


def test_an_entry_may_say_which_distribution_it_replaces():
    found = Registry(
        [
            plugin("a", loggers=[NamedEntry("log", "m:A")]),
            plugin("b", loggers=[NamedEntry("log", "m:B", replaces="dist-a")]),
        ]
    )
    assert found.entries("loggers")["log"].entry.code == "m:B"
    assert not found.conflicts()


def test_a_plugin_whose_hook_fails_brings_nothing_and_the_others_stay():
    broken = types.ModuleType("broken")

    @hookimpl
    def libreyolo_loggers():
        raise ValueError("no such\nthing")

    broken.libreyolo_loggers = libreyolo_loggers
    found = Registry([(Plugin("broken", "dist-broken", "1"), broken), plugin("b", loggers=[NamedEntry("ok", "m:B")])])
    assert found.plugins[0].error == "ValueError: no such thing"
    assert list(found.entries("loggers")) == ["ok"]


@pytest.mark.parametrize("version", [0, 99], ids=["older", "newer"])
def test_a_plugin_written_for_another_hook_version_is_reported(version):
    info, module = plugin("old", loggers=[NamedEntry("log", "m:A")])
    module.HOOK_VERSION = version
    found = Registry([(info, module)])
    assert f"hook version {version}" in found.plugins[0].error
    assert not found.entries("loggers")


def test_a_hook_that_does_not_exist_is_reported():
    module = types.ModuleType("typo")

    @hookimpl
    def libreyolo_familys():
        return []

    module.libreyolo_familys = libreyolo_familys
    found = Registry([(Plugin("typo", "dist-typo", "1"), module)])
    assert "libreyolo_familys" in found.plugins[0].error


def test_a_plugin_that_fails_to_import_is_named_once_and_survived(entry_points, capsys, tmp_path, monkeypatch):
    (tmp_path / "bad_plugin_module.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = entry_points(bad="bad_plugin_module", toy="toy_family")
    assert "toy" in found.families()
    error = capsys.readouterr().err
    assert error.count("a_module_that_is_not_there") == 1 and "plugin bad" in error


def test_plugins_can_be_turned_off_by_name(entry_points, monkeypatch):
    monkeypatch.setenv("LIBREYOLO_DISABLE_PLUGINS", "other, toy")
    found = entry_points(toy="toy_family")
    assert "toy" not in found.families()
    assert [p.error for p in found.plugins if p.name == "toy"] == ["turned off by LIBREYOLO_DISABLE_PLUGINS"]


def test_strangers_add_a_loss_a_region_and_a_precision_to_a_family_that_is_not_theirs(toy, entry_points):
    extra = types.ModuleType("extra_plugin")

    @hookimpl
    def libreyolo_losses():
        return [LossEntry("toy", "detect", "sharp", "toy_family:ToyLoss", {"extra": 2.0})]

    @hookimpl
    def libreyolo_capture_regions():
        return [CaptureEntry("toy", "detect", Capture(off_reason="tried, too small"))]

    @hookimpl
    def libreyolo_precision():
        return [PrecisionEntry("toy", "detect", Precision(amp=True, dtype="bfloat16", why="measured"))]

    extra.libreyolo_losses = libreyolo_losses
    extra.libreyolo_capture_regions = libreyolo_capture_regions
    extra.libreyolo_precision = libreyolo_precision
    sys.modules["extra_plugin"] = extra
    found = entry_points(toy="toy_family", extra="extra_plugin")
    sheet = found.family("toy").tasks["detect"]
    assert sheet.capture.off_reason == "tried, too small"
    assert sheet.precision.dtype == "bfloat16"
    assert found.loss("toy", "detect", sheet, "sharp").options == {"extra": 2.0}
    with pytest.raises(UnknownNameError, match="Did you mean 'sharp'"):
        found.loss("toy", "detect", sheet, "sharpp")


def test_an_absent_family_names_the_package_to_install(toy, entry_points):
    with pytest.raises(UnknownNameError, match="pip install libreyolo-family-toyx"):
        entry_points(toy="toy_family").family("toyx")
