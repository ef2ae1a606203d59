"""Packages of strangers, and environments to install them into."""

import pytest

from environments import ROOT, Environment, plugin


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel_store):
    """A fresh environment with the core and one family, from wheels."""
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.install(*wheel_store.of(ROOT, plugin("family-resnet")))
    return made
