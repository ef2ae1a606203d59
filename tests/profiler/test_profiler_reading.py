"""Whatever is handed to the reader is a profile, or an error that says what it is instead."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest

from libreyolo_core.errors import ProfileError
from libreyolo_core.profiler.reading import ROWS, VALUES, load_profile
from libreyolo_core.profiler.trace import write_trace
from profiles import cpu_profile, gpu_profile


@pytest.fixture
def saved(tmp_path):
    """``saved(document)`` writes JSON, or text as it is, and returns the path."""

    def save(document, name="profile.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return save


@pytest.mark.parametrize("profile", [cpu_profile(), gpu_profile()], ids=["cpu", "gpu"])
def test_a_profile_comes_back_as_it_was_written_by_file_by_folder_and_packed(saved, profile, tmp_path):
    path = saved(profile)
    assert load_profile(path) == load_profile(str(path)) == load_profile(tmp_path) == json.loads(path.read_text())
    packed = tmp_path / "copy.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load_profile(packed) == load_profile(path)


def test_a_summary_is_read_like_a_profile(saved):
    short = {k: v for k, v in gpu_profile().items() if k not in ("lanes", "names")}
    assert load_profile(saved(short))["verdict"]["name"] == "host/launch-bound"


@pytest.mark.parametrize(
    ("document", "said", "mend"),
    [
        ("", "is damaged: it is empty", "profile again"),
        (json.dumps(gpu_profile())[:2000], "is damaged: it is not JSON \\(character", "profile again"),
        ("[" * 100_000, "is damaged: it is not JSON", "profile again"),
        ("[]", "is a trace, not a profile", "profile.json beside it"),
        ({"traceEvents": []}, "is a trace, not a profile", "profile kernels and profile ops"),
        ({"schema": "libreyolo.profile-repeat/1", "trials": []}, "combines several trials", "prof_1/profile.json"),
        ({"epochs": 3}, "is not a profile: it has no schema", "profile=true"),
        ({"schema": "other/1"}, "is not a profile: it has schema 'other/1'", "profile=true"),
        ("3", "is not a profile", "profile=true"),
        (
            {"schema": "libreyolo.profile/2", "libreyolo": "7.0"},
            "has layout libreyolo.profile/2, and this version reads up to libreyolo.profile/1",
            "written by LibreYOLO 7.0: pip install --upgrade",
        ),
    ],
)
def test_what_is_no_profile_is_named(saved, document, said, mend):
    with pytest.raises(ProfileError, match=said) as caught:
        load_profile(saved(document))
    assert mend in caught.value.mend
    assert "profile.json" in caught.value.problem


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ProfileError, match="does not exist.*libreyolo profile run") as caught:
        load_profile(tmp_path / "nothing.json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_trace_that_the_profiler_wrote_is_no_profile_either(tmp_path):
    profile = gpu_profile()
    write_trace(tmp_path / "profile_trace.json", profile["lanes"], profile["names"])
    with pytest.raises(ProfileError, match="is a trace, not a profile"):
        load_profile(tmp_path / "profile_trace.json")


@pytest.mark.parametrize("name", [*ROWS, *VALUES, "steps"])
def test_every_field_that_is_missing_or_of_another_type_is_named(saved, name):
    without = {k: v for k, v in gpu_profile().items() if k != name}
    for document in (without, {**without, name: 3}):
        with pytest.raises(ProfileError, match=f"is damaged: its field {name} is missing or of the wrong type"):
            load_profile(saved(document))


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in VALUES for key in VALUES[name]])
def test_every_value_that_the_report_needs_is_missed(saved, name, key):
    profile = gpu_profile()
    del profile[name][key]
    with pytest.raises(ProfileError, match=f"{name} has no {key}"):
        load_profile(saved(profile))


@pytest.mark.parametrize(
    ("name", "key"), [("kernels", "count"), ("ops", "self_us"), ("phases", "share"), ("kernels", "total_us")]
)
def test_a_row_without_one_of_its_numbers_is_named(saved, name, key):
    for wrong in (None, "3", True):
        profile = gpu_profile()
        profile[name][0][key] = wrong
        with pytest.raises(ProfileError, match=f"{key} of .* in {name} is {wrong!r}, not a number"):
            load_profile(saved(profile))


def test_a_number_that_is_a_text_is_named_and_one_that_was_not_measured_is_fine(saved):
    profile = gpu_profile()
    profile["numbers"]["driver_calls_per_step"] = None
    load_profile(saved(profile))
    profile["numbers"]["step_us"] = "fast"
    with pytest.raises(ProfileError, match="step_us of numbers is 'fast', not a number"):
        load_profile(saved(profile))
