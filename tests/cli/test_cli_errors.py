"""Every failure is one line and an exit code."""

from __future__ import annotations

import sys
from types import ModuleType

import click
import pytest

from libreyolo_core.cli.command import command
from libreyolo_core.cli.options import Option
from libreyolo_core.cli.output import Answer
from libreyolo_core.errors import DataError, DeviceError
from libreyolo_core.registry import Plugin

from .conftest import CommandPlugin


def one_line(out):
    lines = [line for line in out.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, out.stderr
    assert "Traceback" not in out.stderr
    return lines[0]


def test_an_unknown_command_names_the_nearest(run):
    out = run("trian")
    assert out.exit_code == 2
    assert one_line(out) == "error: Unknown command 'trian'. Did you mean 'train'?"


def test_under_a_launcher_each_process_says_which_it_is(run, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "error on rank 1 of 2: Unknown command 'trian'. Did you mean 'train'?" in run("trian").stderr
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert one_line(run("trian")) == "error: Unknown command 'trian'. Did you mean 'train'?"


def test_an_unknown_option_names_the_nearest_and_the_help(run, model):
    out = run("train", "model=toy-a", "data=x", "epoch=3")
    assert (out.exit_code, model.made) == (2, [])
    assert "Unknown option 'epoch' (libreyolo train). Did you mean 'epochs'" in one_line(out)
    assert "libreyolo train --help" in out.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "model=toy-a"], "data= is missing (train). Give it, e.g. data=my.yaml."),
        (["train", "data=x"], "model= is missing (train). Give it, e.g. model=LibreToya.pt."),
        (["val", "data=x"], "model= is missing (val)"),
        (["predict", "model=toy-a"], "source= is missing (predict)"),
        (["check"], "DATA is missing (libreyolo check)"),
        (
            ["train", "model=toy-a", "data=x", "epochs=0"],
            "epochs='0' is out of range (train argument epochs). Use 1 or more.",
        ),
        (["train", "model=toy-a", "data=x", "epochs=many"], "epochs='many' is not a whole number"),
        (["train", "model=toy-a", "data=x", "amp=perhaps"], "amp='perhaps' is not true or false"),
        (["val", "model=toy-a", "data=x", "conf=5"], "conf='5' is out of range (val argument conf). Use 0 to 1."),
        (["export", "model=toy-a", "opset=1"], "opset='1' is out of range"),
        (["predict", "model=toy-a", "photo.jpg"], "Write source=photo.jpg"),
        (["families", "toy", "toy"], "'toy' is one word too many"),
        (["demo", "epochs=0"], "epochs='0' is out of range (demo argument epochs)"),
        (["--epochs", "train"], "Unknown option '--epochs' (libreyolo). Options follow a command"),
        (["train", "callbacks=x"], "Unknown option 'callbacks'"),
        (["train", "--json=perhaps", "model=toy-a", "data=x"], "json='perhaps' is not true or false"),
    ],
)
def test_wrong_usage_is_one_line_with_value_place_and_mend_before_any_model_is_loaded(
    run, model, demo, arguments, said
):
    out = run(*arguments)
    assert (out.exit_code, out.stdout, model.made) == (2, "", [])
    assert said in one_line(out)


@pytest.fixture
def demo(monkeypatch):
    settings = {"model": "toy-a", "settings": {}}
    monkeypatch.setattr("libreyolo_core.cli.commands.demo.demo_settings", lambda: settings)


def test_a_mistake_of_the_user_is_one_line_with_its_exit_code(run, model):
    for error, code in ((DataError("no photos", where="my.yaml", mend="Add some."), 1), (DeviceError("no device"), 2)):
        model.raises = error
        out = run("train", "model=toy-a", "data=x")
        assert out.exit_code == code
        assert one_line(out) == f"error: {error}"


def test_a_message_of_several_lines_becomes_one(run, model):
    model.raises = DataError("first\nsecond")
    assert "first second" in one_line(run("train", "model=toy-a", "data=x"))


def test_a_fault_of_the_program_names_its_type_and_the_way_to_the_traceback(run, model):
    model.raises = ZeroDivisionError("division by zero")
    out = run("train", "model=toy-a", "data=x")
    assert out.exit_code == 1
    assert "ZeroDivisionError: division by zero" in one_line(out)
    assert "--traceback" in out.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_traceback_is_shown_on_request(run, model, place):
    model.raises = DataError("no photos")
    words = ["train", "model=toy-a", "data=x"]
    out = run("--traceback", *words) if place == "before" else run(*words, "--traceback")
    assert out.exit_code == 1
    assert "Traceback (most recent call last)" in out.stderr
    assert "error: no photos." in out.stderr


def test_an_interrupt_exits_with_130(run, model):
    model.raises = KeyboardInterrupt("saved; continue with resume=runs/train/exp")
    out = run("train", "model=toy-a", "data=x")
    assert out.exit_code == 130
    assert "saved; continue with resume=runs/train/exp" in one_line(out)


def test_no_command_at_all_shows_the_overview_as_an_error_of_usage(run):
    out = run()
    assert (out.exit_code, out.stdout) == (2, "")
    assert "Usage: libreyolo COMMAND" in out.stderr


@pytest.fixture
def strangers(monkeypatch, plugins):
    """A plugin with commands of every kind."""
    module = ModuleType("toy_commands")

    @click.command()
    @click.option("--times", type=int, default=1)
    def plain(times):
        click.echo("hello " * times)

    @command("answer", summary="Answer.", options=(Option("name", "Whom to greet.", default="you"),))
    def answer(given):
        return Answer({"greeting": given.get("name", "you")}, ("hello",))

    module.plain, module.answer, module.broken = plain, answer, "a text"
    monkeypatch.setitem(sys.modules, "toy_commands", module)
    plugins.append((Plugin("strange", "libreyolo-strange", "1"), CommandPlugin()))


def test_a_plain_click_command_of_a_plugin_runs(run, strangers):
    out = run("plain", "--times", "2")
    assert (out.exit_code, out.stdout) == (0, "hello hello \n")


def test_a_usage_error_of_a_plain_click_command_is_one_line_too(run, strangers):
    out = run("plain", "--time", "2")
    assert out.exit_code == 2
    assert "No such option" in one_line(out)
    assert "--times" in one_line(out)


def test_a_command_made_with_the_cores_helper_has_its_manners(run, strangers):
    assert run("answer", "--json", "name=Ada").stdout == '{\n  "greeting": "Ada"\n}\n'
    assert "Did you mean 'name'" in run("answer", "nam=Ada").stderr


def test_what_is_no_click_command_names_the_distribution(run, strangers):
    out = run("broken")
    assert out.exit_code == 1
    assert "of type str, not a click command (libreyolo-strange)" in one_line(out)


def test_code_that_is_not_there_names_the_reference_and_the_distribution(run, strangers):
    out = run("missing")
    assert out.exit_code == 1
    assert "'toy_commands:missing' cannot be imported" in one_line(out)
    assert "(libreyolo-strange)" in out.stderr


def test_a_command_that_two_plugins_claim_names_both(run, strangers, plugins):
    plugins.append((Plugin("rival", "libreyolo-rival", "1"), CommandPlugin()))
    out = run("plain")
    assert out.exit_code == 1
    assert "libreyolo-strange" in one_line(out)
    assert "libreyolo-rival" in one_line(out)
