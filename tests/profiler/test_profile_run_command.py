"""``libreyolo profile run``: trials that measure, keep nothing, and leave four files each."""

import json
import os
import signal
import statistics

import pytest
import yaml
from click.testing import CliRunner

from libreyolo_core import LibreYOLO
from libreyolo_core.cli.group import cli
from libreyolo_core.engine import trainer
from libreyolo_core.errors import ProfileError, UsageError
from libreyolo_core.profiler import UNUSED
from libreyolo_core.profiler.reading import load_profile
from libreyolo_core.profiler.record import FILES
from libreyolo_core.profiler.trial import profile_run

SHORT = ("profile_warmup=1", "profile_steps=4", "workers=0", "device=cpu")


@pytest.fixture
def profile(toy, boxes_set, tmp_path, monkeypatch):
    """``profile("model=toy")`` runs the command in an empty folder and returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words, ok=True):
        result = CliRunner().invoke(cli, ["profile", "run", str(boxes_set), *words, *SHORT])
        assert (result.exit_code == 0) is ok, result.output
        return result

    return call


def test_one_trial_leaves_four_files_and_nothing_that_looks_like_a_training(profile, tmp_path):
    answer = profile("model=toy", "size=l", "--json")
    document = json.loads(answer.stdout)
    folder = tmp_path / "runs/profile/prof"
    assert document["path"] == "runs/profile/prof/profile.json" and document["run"]["model"] == "toy-l"
    assert document["verdict"]["name"] in answer.stdout and "lanes" not in document
    assert {p.name for p in folder.iterdir()} == {
        *FILES,
        "args.yaml",
        "dataset_report.txt",
        "environment.txt",
        "train.log",
    }
    assert "validates nothing and writes no checkpoint" in answer.stderr
    assert "epoch 1/" not in answer.stderr  # a run of so many epochs is not what goes on here
    assert load_profile(folder)["run"]["model"] == "toy-l"


def test_a_run_has_the_epochs_that_its_window_needs_and_full_augmentation_in_all_of_them(profile, tmp_path):
    profile("model=toy-s", "epochs=1")
    arguments = yaml.safe_load((tmp_path / "runs/profile/prof/args.yaml").read_text())
    assert (arguments["epochs"]["value"], arguments["no_aug_epochs"]["value"]) == (5, 0)
    assert load_profile(tmp_path / "runs/profile/prof")["run"]["augment"]["mosaic"] == 1.0


def test_repeated_trials_are_combined_into_mean_and_standard_deviation(profile, tmp_path):
    shown = profile("model=toy-s", "--repeat", "2").stdout
    folder = tmp_path / "runs/profile"
    trials = [load_profile(folder / name) for name in ("prof_1", "prof_2")]
    combined = json.loads((folder / "profile_repeat.json").read_text())
    steps = [t["numbers"]["step_us"] for t in trials]
    assert combined["numbers"]["step_us"] == {"mean": statistics.mean(steps), "std": statistics.stdev(steps)}
    assert "driver_calls_per_step" not in combined["numbers"]  # there is no such number on a CPU
    assert combined["verdicts"] == [t["verdict"]["name"] for t in trials]
    assert [t["path"] for t in combined["trials"]] == ["prof_1/profile.json", "prof_2/profile.json"]
    assert "2 trials" in shown and "standard deviation" in shown and "profile_repeat.json" in shown
    with pytest.raises(ProfileError, match="combines several trials"):
        load_profile(folder / "profile_repeat.json")


def test_an_earlier_profile_is_never_overwritten(profile, tmp_path):
    for _ in range(2):
        profile("model=toy-s")
    profile("model=toy-s", "repeat=2")
    profile("model=toy-s", "name=mine")
    assert "exists" in profile("model=toy-s", "name=mine", ok=False).stderr
    folders = {p.name for p in (tmp_path / "runs/profile").iterdir()}
    assert folders == {"prof", "prof2", "prof3_1", "prof3_2", "profile_repeat3.json", "mine"}


def test_weights_say_their_size_themselves(profile, tmp_path):
    LibreYOLO("toy-s", pretrained=False).save(tmp_path / "own.pt")
    assert "toy-s" in profile("weights=own.pt", "size=s").stdout
    assert "does not fit: own.pt is toy-s" in profile("weights=own.pt", "size=l", ok=False).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Neither weights= nor model= is given"),
        (("model=toy-s", "weights=own.pt"), "both given"),
        (("model=toy-s", "repeat=0"), "no whole number"),
        (("model=toy-s", "resume=true"), "Unknown option"),
        (("model=toy-s", "save_period=1"), "Unknown option"),
        (("model=toy-s", "batch=none-at-all"), "batch"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(profile, tmp_path, words, said):
    answer = profile(*words, ok=False)
    assert said in answer.stderr and answer.exit_code == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", UNUSED)
def test_arguments_without_a_meaning_are_refused_in_python_too(toy, boxes_set, name):
    with pytest.raises(UsageError, match=f"{name}= means nothing"):
        profile_run(LibreYOLO("toy-s", pretrained=False), data=str(boxes_set), **{name: 1})


def test_ctrl_c_ends_a_profile_without_saving_anything(profile, tmp_path, monkeypatch):
    train_on = trainer.Trainer.train_on

    def press(self, batch):
        os.kill(os.getpid(), signal.SIGINT)
        train_on(self, batch)

    monkeypatch.setattr(trainer.Trainer, "train_on", press)
    answer = profile("model=toy-s", ok=False)
    assert answer.exit_code == 130 and "nothing was saved" in answer.stderr
    assert not (tmp_path / "runs/profile/prof/weights").exists()


def test_the_model_is_as_it_was(toy, boxes_set, tmp_path):
    model = LibreYOLO("toy-s", pretrained=False, device="cpu")
    before = {k: v.clone() for k, v in model.network.state_dict().items()}
    trials = profile_run(
        model, data=str(boxes_set), project=str(tmp_path), workers=0, profile_warmup=0, profile_steps=4
    )
    assert trials.path == tmp_path / "prof" / "profile.json"
    assert all((before[k] == v).all() for k, v in model.network.state_dict().items())
