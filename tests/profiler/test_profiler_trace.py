"""Chrome traces: any valid one is read event by event whatever its layout, and what is written can be read."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from libreyolo_core.errors import ProfileError
from libreyolo_core.profiler import trace
from libreyolo_core.profiler.activity import read_activity
from libreyolo_core.profiler.trace import events, is_trace, write_trace
from profiles import gpu_events, gpu_profile

DATA = Path(__file__).parent / "data"
EVENTS = [
    *gpu_events(steps=2, operators=5),
    {"ph": "X", "name": 'a "quoted" \\ {[}],é\n', "ts": 1.5e3, "args": {"x": [1, {}]}},
]
FORMS = {
    "torch": json.dumps(
        {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": EVENTS, "traceName": "x"}, indent=2
    ),
    "compact": json.dumps({"traceEvents": EVENTS}, separators=(",", ":")),
    "array": json.dumps(EVENTS),
    "array without its end": json.dumps(EVENTS, indent=1)[:-2],
    "array with a last comma": json.dumps(EVENTS)[:-1] + ",\n",
    "numbers first": json.dumps({"a": 12345678, "b": -1.5e-7, "c": True, "d": None, "traceEvents": EVENTS}),
    "byte order mark": "\ufeff" + json.dumps({"traceEvents": EVENTS}, ensure_ascii=False),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_every_layout_gives_the_same_events_wherever_the_chunks_end(form, chunk, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "CHUNK", chunk)
    data = FORMS[form].encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert list(events(path)) == EVENTS
    assert is_trace(path)


def test_the_first_events_are_there_before_the_rest_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(FORMS["compact"][:-400] + "@@@")
    assert list(islice(events(path), 5)) == EVENTS[:5]
    with pytest.raises(ProfileError, match="damaged near character \\d{4,}"):
        list(events(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins neither with"),
        ("hello", "begins neither with"),
        ("{}", "it has no traceEvents"),
        ('{"schema": "libreyolo.profile/1", "steps": []}', "it has no traceEvents"),
        ('{"traceEvents": {}}', "its traceEvents are no array"),
        ('{"traceEvents": [{"ph": "X"}', "it ends among the events"),
        ('{"traceEvents": [{"ph": "X"}, {"ph"', "this is not JSON"),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "a comma is missing"),
        ('{"traceEvents" [', "a colon is missing"),
        ('{"a": tru, "traceEvents": []}', "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
    ],
)
def test_what_is_no_trace_or_a_broken_one_is_a_typed_error(text, said, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=said) as caught:
        list(events(path))
    assert "some.json" in caught.value.problem
    assert caught.value.mend


@pytest.mark.parametrize("kind", ["missing", "a folder", "cut off", "not what its name says"])
def test_a_file_that_cannot_be_read_is_a_typed_error(kind, tmp_path):
    path = tmp_path / "trace.json.gz"
    if kind == "a folder":
        path.mkdir()
    elif kind == "cut off":
        path.write_bytes(gzip.compress(os.urandom(2000).hex().join(['["', '"]']).encode())[:-500])
    elif kind == "not what its name says":
        path.write_bytes(b"\x1f\x8b" + b"nothing packed" * 10)
    with pytest.raises(ProfileError, match="trace.json.gz cannot be read"):
        list(events(path))
    assert not is_trace(path)


def test_one_endless_value_is_given_up_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "CHUNK", 100)
    monkeypatch.setattr(trace, "LONGEST_VALUE", 10_000)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"name": "' + "x" * 50_000)
    with pytest.raises(ProfileError, match="one value is longer"):
        list(events(path))


def test_a_long_trace_is_read_in_the_memory_of_a_short_one(tmp_path):
    """Held as one document, the 30 MB below would take more than 100 MB."""
    path = tmp_path / "long.json"
    one = json.dumps({"ph": "X", "cat": "kernel", "name": "k" * 100, "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0})
    with path.open("w") as file:
        file.write('{"traceEvents": [' + ",\n".join([one] * 150_000) + "]}")
    script = (
        "import resource, sys\n"
        "from libreyolo_core.profiler.trace import events\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before = peak()\n"
        "print(sum(1 for _ in events(sys.argv[1])), peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    count, grown_mib = done.stdout.split()
    assert int(count) == 150_000
    assert float(grown_mib) < 20  # a few chunks of 1 MB, and what the allocator keeps


def test_lanes_come_back_from_a_written_trace(tmp_path):
    profile = gpu_profile()
    path = tmp_path / "trace.json"
    dropped = write_trace(path, profile["lanes"], profile["names"], about={"model": "yolox-n"})
    assert dropped == 0
    document = json.loads(path.read_text())
    assert document["otherData"] == {"model": "yolox-n", "events_dropped": 0}
    written = [e for e in events(path) if e["ph"] == "X"]
    expected = [(profile["names"][n], b, d) for lane in profile["lanes"] for b, d, n in lane["events"]]
    assert [(e["name"], e["ts"], e["dur"]) for e in written] == expected
    labels = [e["args"]["name"] for e in events(path) if e["name"] == "thread_name"]
    assert labels == [lane["name"] for lane in profile["lanes"]]


def test_a_written_trace_keeps_the_longest_events_and_says_how_many_it_left_out(tmp_path):
    lanes = [{"name": "host thread 1", "kind": "host", "events": [[i * 10.0, 1.0 + i % 7, 0] for i in range(70)]}]
    path = tmp_path / "trace.json"
    assert write_trace(path, lanes, ["work"], limit=25) == 45
    kept = [e["dur"] for e in events(path) if e["ph"] == "X"]
    assert sorted(kept) == [5.0] * 5 + [6.0] * 10 + [7.0] * 10
    assert json.loads(path.read_text())["otherData"]["events_dropped"] == 45


def test_a_trace_as_torchs_own_profiler_writes_it_is_read():
    """Recorded with torch 2.14 around ``torch.ones(8, 8) @ torch.ones(8, 8)``."""
    activity = read_activity(events(DATA / "torch_trace.json"))
    counts = {o.name.removeprefix("aten::"): o.count for o in activity.operators()}
    assert counts == {"ones": 2, "empty": 2, "fill_": 2, "matmul": 1, "mm": 1, "resolve_conj": 3}
    assert 0 < activity.busy_us() <= activity.span()[1] - activity.span()[0]


def test_the_benchmark_prints_one_document(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "traces.py"
    done = subprocess.run(
        [sys.executable, str(script), "--mb", "1", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["met"] else 1)
    found = {row["way"]: row["found"] for row in report["rows"]}
    assert found["our events"] == found["json.load"] == report["events"]
    assert 0 < found["our activity"] < report["events"]
