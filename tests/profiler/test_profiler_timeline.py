"""What is written into ``timeline.html``, and numbers in words. How the page behaves is tested in a browser."""

from __future__ import annotations

import json
import re

import pytest

from libreyolo_core.profiler.timeline import page, write_timeline
from libreyolo_core.profiler.wording import duration, facts, in_words, shortened, size, title, window
from profiles import cpu_profile, gpu_profile

EMBEDDED = re.compile(r'<script type="application/json" id="profile">(.*?)</script>', re.DOTALL)


def embedded(text):
    return json.loads(EMBEDDED.search(text)[1])


@pytest.mark.parametrize("profile", [cpu_profile(), gpu_profile()], ids=["cpu", "gpu"])
def test_the_page_holds_all_lanes_and_needs_no_other_file(profile, tmp_path):
    write_timeline(tmp_path / "timeline.html", profile)
    text = (tmp_path / "timeline.html").read_text(encoding="utf-8")
    assert embedded(text)["lanes"] == profile["lanes"]
    assert embedded(text)["names"] == profile["names"]
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", text)
    assert "default-src 'none'" in text
    assert not re.search(r"@[A-Z]+@", text)


def test_no_name_can_end_the_data_or_become_markup():
    evil = "</script><!--<script>&\u2028@SCRIPT@@PROFILE@"
    profile = gpu_profile()
    profile["names"][0] = profile["kernels"][0]["name"] = profile["run"]["device_name"] = evil
    text = page(profile)
    assert text.count("</script>") == 2
    assert embedded(text)["names"][0] == embedded(text)["kernels"][0][0] == evil
    assert "<title>Timeline: yolox-n, detect, batch 16, 640 x 640, bfloat16 on cuda:0 (&lt;/script&gt;" in text


def test_events_left_out_are_mentioned():
    profile = gpu_profile()
    assert "left out" not in embedded(page(profile))["made"]
    profile["lanes_dropped"] = 4321
    assert "4,321 of the shortest events are left out" in embedded(page(profile))["made"]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0"),
        (0.85, "850 ns"),
        (12.44, "12.4 us"),
        (999.4, "999 us"),
        (999.9, "1.00 ms"),
        (3071.0, "3.07 ms"),
        (1.2e6, "1.20 s"),
        (-250.0, "-250 us"),
        (7.2e9, "7,200 s"),
        (float("nan"), "-"),
    ],
)
def test_durations_have_three_digits_and_a_unit_that_fits(us, text):
    assert duration(us) == text


def test_values_are_shown_with_their_units():
    assert size(3_407_872_000) == "3.17 GiB"
    assert [in_words(0.123, u) for u in ("share", "rate", "count")] == ["12.3%", "0.123", "0.123"]
    assert in_words(None, "us") == "-"


def test_a_glance_shows_the_numbers_that_there_are():
    shown = {label: (value, of) for label, value, of in facts(gpu_profile())}
    assert shown["kernels per step"] == ("40.0", "139 us each")
    assert shown["device busy"][0] == "27.9%"
    on_cpu = {label: value for label, value, _ in facts(cpu_profile())}
    assert "in operators" in on_cpu
    assert "allocator calls to the driver" not in on_cpu


def test_titles_and_windows_say_what_was_measured():
    profile = cpu_profile()
    assert title(profile) == "yolox-n, detect, batch 8, 320 x 320, float32 on cpu (Intel Xeon)"
    profile["window"] = {"warmup": 5, "plain": 8, "traced": 3, "bracketed": 0, "planned": 20}
    assert window(profile) == (
        "5 steps discarded, 5 plain, 3 more with the tracer, 0 with every phase waited for; "
        "the run ended before all 20 were measured"
    )


def test_a_long_name_keeps_its_beginning_and_its_end():
    name = "void kernel<" + "float, " * 40 + "7>(int)"
    assert len(shortened(name, 40)) == 40
    assert shortened(name, 40).startswith("void kernel<")
    assert shortened(name, 40).endswith("7>(int)")
    assert shortened("short", 40) == "short"
