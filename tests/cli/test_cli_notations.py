"""``key=value`` and ``--key value``, switches, and what cannot be read."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest

from libreyolo_core.cli.options import SWITCH, SWITCH_OR_VALUE, VALUE, Option, options_of, read
from libreyolo_core.config import ExportArgs, PredictArgs, TrainArgs, ValArgs
from libreyolo_core.errors import UsageError

OPTIONS = {o.name: o for o in options_of(TrainArgs)} | {"help": Option("help", "", SWITCH)}


def values(*tokens):
    return read(tokens, OPTIONS, verb="train")[0]


@pytest.mark.parametrize(
    "tokens",
    [
        ("weight_decay=0.1",),
        ("--weight_decay", "0.1"),
        ("--weight-decay", "0.1"),
        ("--weight_decay=0.1",),
        ("--weight-decay=0.1",),
        ("weight-decay=0.1",),
    ],
)
def test_every_notation_of_a_value_means_the_same(tokens):
    assert values(*tokens) == {"weight_decay": "0.1"}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("--amp",), "true"),
        (("--no-amp",), "false"),
        (("--no_amp",), "false"),
        (("amp=true",), "true"),
        (("amp=no",), "no"),
        (("--amp", "false"), "false"),
        (("--amp=false",), "false"),
        (("--amp", "--plots"), "true"),
        (("--amp", "epochs=3"), "true"),
    ],
)
def test_every_notation_of_a_switch(tokens, expected):
    assert values(*tokens)["amp"] == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("--compile",), "true"),
        (("--compile", "reduce-overhead"), "reduce-overhead"),
        (("--compile", "epochs=3"), "true"),
        (("--no-compile",), "false"),
        (("compile=default",), "default"),
    ],
)
def test_a_switch_that_may_have_a_value_takes_one_only_when_one_follows(tokens, expected):
    assert values(*tokens)["compile"] == expected


def test_a_value_may_be_negative_empty_or_hold_an_equals_sign():
    assert values("--batch", "-1", "name=", "data=a=b.yaml") == {"batch": "-1", "name": "", "data": "a=b.yaml"}


def test_several_options_are_read_in_any_order():
    parts = [("epochs=3",), ("--batch", "8"), ("--no-amp",), ("--device", "0,1")]
    read_so_far = [values(*itertools.chain(*order)) for order in itertools.permutations(parts)]
    assert all(v == {"epochs": "3", "batch": "8", "amp": "false", "device": "0,1"} for v in read_so_far)


def test_an_option_given_twice_is_an_error_that_shows_both_values():
    with pytest.raises(UsageError, match="epochs is given twice: 3 and 4"):
        values("epochs=3", "--epochs", "4")


def test_a_repeatable_option_collects():
    only = {"only": Option("only", "", VALUE, repeatable=True)}
    assert read(["only=a", "--only", "b"], only, verb="x")[0] == {"only": ["a", "b"]}


@pytest.mark.parametrize(
    ("token", "name"),
    [("epoch=3", "epochs"), ("--epoch", "epochs"), ("--lr=1", "lr0"), ("--weight-decy", "weight_decay")],
)
def test_an_unknown_option_names_the_nearest(token, name):
    with pytest.raises(UsageError, match=f"Unknown option .*Did you mean .*'{name}'"):
        values(token)


def test_a_value_option_has_no_negation():
    with pytest.raises(UsageError, match="Unknown option '--no-epochs'"):
        values("--no-epochs")


@pytest.mark.parametrize("tokens", [("--epochs",), ("--epochs", "--amp")])
def test_an_option_without_its_value_is_an_error_that_shows_how_to_give_it(tokens):
    with pytest.raises(UsageError, match="--epochs has no value.*Write --epochs"):
        values(*tokens)


def test_words_after_a_double_dash_are_no_options():
    assert read(["--", "epochs=3"], OPTIONS, verb="x") == ({}, ["epochs=3"])


@pytest.mark.parametrize("kind", [TrainArgs, ValArgs, PredictArgs, ExportArgs])
def test_every_argument_but_those_for_python_alone_is_an_option(kind):
    expected = [f.name for f in fields(kind) if not f.metadata["python_only"]]
    assert [o.name for o in options_of(kind)] == expected


def test_options_know_their_kind_range_and_default():
    assert OPTIONS["epochs"].facts() == "1 or more; default: the family's"
    assert OPTIONS["seed"].facts() == "0 to 2147483647; default: 0"
    assert OPTIONS["batch"].facts() == "1 or more, or -1; default: the family's"
    assert (OPTIONS["amp"].takes, OPTIONS["compile"].takes, OPTIONS["lr0"].takes) == (SWITCH, SWITCH_OR_VALUE, VALUE)
    assert OPTIONS["data"].required
    assert not OPTIONS["epochs"].required
