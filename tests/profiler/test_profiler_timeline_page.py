"""``timeline.html`` in a real browser: what it draws, how it moves, and that it stands alone."""

from __future__ import annotations

import pytest

from browser import Browser, find_browser
from libreyolo_core.profiler.timeline import write_timeline
from profiles import cpu_profile, gpu_profile

pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="needs Chromium or Chrome to open the page"),
    pytest.mark.xdist_group("browser"),
]
RANGE = "document.getElementById('range').textContent"
EVENT = "document.getElementById('event').textContent"
FOUND = "document.getElementById('found').textContent"
LANES = "[...document.querySelectorAll('#labels li')].map(lane => lane.textContent)"
COPY = """
  const canvas = document.getElementById('timeline'), ratio = devicePixelRatio;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
"""
"""Reading the page's own canvas would make the browser complain."""
PIXELS = (
    f"""(() => {{{COPY}"""
    """
  const lane = document.querySelectorAll('#labels li')[%d];
  const top = lane.offsetTop - document.getElementById('lanes').scrollTop;
  const data = copy.getImageData(0, top * ratio, canvas.width, lane.offsetHeight * ratio).data;
  return new Set(new Uint32Array(data.buffer)).size;
})()"""
)
"""How many colours a lane has: its background, its line, and the grid alone are three at most."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_browser(), tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def page(browser, tmp_path):
    """``page(profile, "#zoom=0,10")`` opens a profile's timeline; nothing may complain until the test ends."""

    def show(profile, fragment=""):
        file = tmp_path / "timeline.html"
        write_timeline(file, profile)
        browser.complaints.clear()
        browser.open(file.as_uri() + fragment)
        browser.frame()
        return browser

    yield show
    assert browser.complaints == []


def address(browser):
    """The view's begin and end in us as the address says; it is written a moment after the view has changed."""
    browser.wait("location.hash.startsWith('#zoom=')")
    return [float(n) for n in browser.ask("location.hash").partition("=")[2].partition("&")[0].split(",")]


def centre(browser):
    """A point in the middle of the canvas."""
    box = browser.ask(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])(document.getElementById('timeline').getBoundingClientRect())"
    )
    return box[0], box[1]


def test_every_lane_has_its_name_and_is_drawn(page):
    shown = page(gpu_profile())
    names = ["steps", "phases", "host thread 1", "host thread 2", "device stream 7", "device stream 20"]
    assert shown.ask(LANES) == names
    for i in range(len(names)):
        assert shown.ask(PIXELS % i) > 4, names[i]
    assert "device stream 20, showing 0 us to 120 ms" in shown.ask(
        "document.getElementById('timeline').getAttribute('aria-label')"
    )


def test_the_verdict_and_the_numbers_stand_above_the_lanes_and_fit_a_laptop_screen(page):
    shown = page(gpu_profile())
    assert shown.ask("document.getElementById('verdict').textContent") == "host/launch-bound"
    text = shown.ask("document.querySelector('header').innerText")
    for fact in ("cuda_graph=True", "20.0 ms", "kernels per step", "yolox-n, detect, batch 16"):
        assert fact in text
    assert shown.ask("document.getElementById('lanes').getBoundingClientRect().bottom < 800")
    assert shown.ask("document.documentElement.scrollWidth <= innerWidth")


def test_a_profile_of_a_cpu_shows_operators_and_no_table_of_kernels(page):
    shown = page(cpu_profile())
    assert shown.ask(LANES) == ["steps", "phases", "host thread 1", "host thread 2"]
    assert "Kernels" not in shown.ask("document.body.innerText")
    assert shown.ask("document.querySelectorAll('#ops tbody tr').length") == 12


@pytest.mark.parametrize("how", ["key", "button", "wheel"])
def test_zooming_halves_or_narrows_the_view_around_its_middle(page, how):
    shown = page(gpu_profile(), "#zoom=20000,60000")
    if how == "key":
        shown.press("+")
    elif how == "button":
        shown.ask("document.getElementById('zoom-in').click()")
    else:
        x, y = centre(shown)
        shown.mouse("mouseWheel", x, y, deltaX=0, deltaY=-385)  # 1.0018 to the 385th is 2
    shown.wait("location.hash !== '#zoom=20000,60000'")
    begin, end = address(shown)
    assert end - begin == pytest.approx(20_000, rel=0.01)  # a wheel turn is no exact half
    assert begin == pytest.approx(30_000, rel=0.01)
    assert "(20.0 ms)" in shown.ask(RANGE) or how == "wheel"


def test_dragging_moves_the_view_and_dragging_with_shift_zooms_to_the_range(page):
    shown = page(gpu_profile(), "#zoom=20000,60000")
    x, y = centre(shown)
    width = shown.ask("document.getElementById('timeline').clientWidth")
    shown.mouse("mousePressed", x, y)
    shown.mouse("mouseMoved", x - width / 4, y)
    shown.mouse("mouseReleased", x - width / 4, y)
    shown.wait("location.hash !== '#zoom=20000,60000'")
    assert address(shown) == pytest.approx([30_000, 70_000], abs=100)
    shown.mouse("mousePressed", x, y, modifiers=8)
    shown.mouse("mouseMoved", x + width / 4, y, modifiers=8)
    shown.mouse("mouseReleased", x + width / 4, y, modifiers=8)
    shown.wait(f"{RANGE}.includes('(10.0 ms)')")
    shown.wait("location.hash.startsWith('#zoom=5')")
    assert address(shown) == pytest.approx([50_000, 60_000], abs=100)


def test_keys_move_and_go_back_to_everything(page):
    shown = page(gpu_profile(), "#zoom=20000,60000")
    shown.ask("document.getElementById('timeline').focus()")
    shown.press("ArrowRight")
    shown.wait("location.hash === '#zoom=28000.000,68000.000'")
    shown.press("0")
    assert shown.ask(RANGE) == "0 us to 120 ms (120 ms)"
    shown.wait("location.hash === ''")
    shown.press(".")
    assert "plain step — steps: 20.0 ms at 0 us" in shown.ask(EVENT)
    shown.press(".")
    assert "plain step — steps: 20.0 ms at 20.0 ms" in shown.ask(EVENT)


def test_the_view_never_leaves_what_was_recorded(page):
    shown = page(gpu_profile(), "#zoom=-5000,900000")
    assert shown.ask(RANGE) == "0 us to 120 ms (120 ms)"
    for _ in range(40):
        shown.press("+")
    assert "(50.0 ns)" in shown.ask(RANGE)
    shown.press("-")
    assert "(100 ns)" in shown.ask(RANGE)


def test_an_event_under_the_pointer_says_name_duration_and_share(page):
    shown = page(gpu_profile(), "#zoom=60000,80000")
    x = shown.ask("document.getElementById('timeline').getBoundingClientRect().x") + 300
    y = shown.ask("document.querySelectorAll('#labels li')[1].getBoundingClientRect().y") + 10
    shown.mouse("mouseMoved", x, y, button="none", buttons=0)
    tip = shown.ask("document.getElementById('tip').innerText")
    assert tip.startswith("forward")
    for fact in ("6.86 ms", "34.3% of step 4 (bracketed step)", "3 of this name, 20.6 ms in all"):
        assert fact in tip
    shown.mouse("mousePressed", x, y)
    shown.mouse("mouseReleased", x, y)
    assert shown.ask(EVENT).startswith("forward")


def test_finding_counts_highlights_and_visits_every_match(page):
    shown = page(gpu_profile())
    before = shown.ask(PIXELS % 4)
    shown.press("/")
    for letter in "memcpy":
        shown.press(letter)
    assert shown.ask(FOUND) == "3 found, 900 us"
    shown.frame()
    assert shown.ask(PIXELS % 4) != before
    shown.press("Enter")
    first = shown.ask(EVENT)
    assert first.startswith("Memcpy HtoD")
    shown.press("Enter")
    assert shown.ask(EVENT) != first
    shown.press("Enter", shift=True)
    assert shown.ask(EVENT) == first
    shown.press("Escape")
    assert shown.ask(FOUND) == ""


def test_a_name_in_a_table_leads_to_its_events(page):
    shown = page(gpu_profile())
    shown.ask("document.querySelector('#kernels button').click()")
    assert shown.ask("document.getElementById('find').value") == gpu_profile()["kernels"][0]["name"]
    assert shown.ask(EVENT).startswith(gpu_profile()["kernels"][0]["name"])


def test_an_address_brings_back_the_view_it_was_copied_from(page):
    shown = page(gpu_profile(), "#zoom=1000,3000&find=conv2d%5Fout")
    assert shown.ask(RANGE) == "1.00 ms to 3.00 ms (2.00 ms)"
    assert shown.ask(FOUND).startswith("23 found")


@pytest.mark.parametrize("fragment", ["#zoom=5,1", "#zoom=a,b&find=%", "#zoom=1,2,3&find"])
def test_an_address_that_means_nothing_shows_everything_or_what_can_be_read(page, fragment):
    assert "us" in page(gpu_profile(), fragment).ask(RANGE)


def test_names_that_look_like_markup_stay_text(page):
    profile = gpu_profile()
    evil = "</script><script>document.title='taken'</script><b>&amp;\u2028"
    profile["kernels"][0]["name"] = profile["names"][0] = evil
    profile["verdict"]["reason"] = profile["run"]["device_name"] = "<img src=x onerror=\"document.title='taken'\">"
    shown = page(profile)
    assert "taken" not in shown.ask("document.title").replace("'taken'", "")
    assert shown.ask("document.querySelectorAll('img, td b').length") == 0
    assert shown.ask("document.querySelector('#kernels button').textContent") == evil


def test_dark_and_light_differ_and_both_are_legible(page):
    shown = page(gpu_profile())
    contrasts = {}
    for dark in (True, False):
        shown.dark(dark)
        shown.frame()
        shades = shown.ask(
            "(s => [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).slice(0, 3).map(Number)))"
            "(getComputedStyle(document.body))"
        )
        contrasts[dark] = [sum(shade) for shade in shades]
        assert abs(contrasts[dark][0] - contrasts[dark][1]) > 500
        corner = shown.ask(f"(() => {{{COPY} return [...copy.getImageData(2, 30, 1, 1).data]; }})()")
        assert (sum(corner[:3]) < 380) == dark
    assert contrasts[True][0] < contrasts[False][0]


def test_twenty_thousand_events_are_drawn_and_found(page):
    shown = page(gpu_profile(steps=18, operators=300))
    assert (
        shown.ask("JSON.parse(document.getElementById('profile').textContent).lanes.flatMap(l => l.events).length")
        > 20_000
    )
    shown.press("+")
    shown.frame()
    assert shown.ask(PIXELS % 4) > 4


def test_a_profile_without_lanes_is_a_page_without_events(page):
    profile = {k: v for k, v in gpu_profile().items() if k not in ("lanes", "names")}
    shown = page(profile)
    assert shown.ask(LANES) == []
    assert shown.ask("document.getElementById('verdict').textContent") == "host/launch-bound"
