"""The page in a real browser: Debian's Chromium driven by playwright, with no network at all."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from report_sample import sample_report

from robo_rl.report.model import ReportData
from robo_rl.report.render import render
from robo_rl.report.viewer import in_reading_order

pytest.importorskip("playwright")
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "</script><script>document.title='owned'</script>"
STEPS = 40  # of every episode in the page, at 10 frames a second
LEFT, RIGHT = 30, 8  # of the curves: Tracks.LEFT and Tracks.RIGHT

pytestmark = pytest.mark.skipif(
    not os.access(CHROMIUM, os.X_OK), reason=f"{CHROMIUM} is missing; install it with: apt-get install chromium"
)


@dataclass
class Opened:
    """A page with what it logged and asked for."""

    page: Page
    context: BrowserContext
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def data() -> ReportData:
    data = sample_report(6, steps=STEPS, size=64)
    first, *others, last = data.episodes
    unjudged = dict.fromkeys(("progress", "success_prob", "tri_state", "weight", "true_progress"))
    return replace(data, episodes=[replace(first, note=HOSTILE), *others, replace(last, **unjudged)])


@pytest.fixture(scope="module")
def report(data: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # launch() gives every run a fresh user-data-dir and removes it afterwards
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def wait_until(page: Page, condition: str, seconds: float = 10.0) -> None:
    """Poll a JavaScript expression. (Page.wait_for_function needs eval, which the page's policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"still not true after {seconds} s: {condition}"
        page.wait_for_timeout(15)


def open_report(browser: Browser, report: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Opened:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = Opened(context.new_page(), context)

    def only_the_file(route, request: Request) -> None:  # type: ignore[no-untyped-def]
        opened.requests.append(request.url)
        if request.url == report.as_uri():
            route.continue_()
        else:
            route.abort()

    context.route(lambda url: not url.startswith(("data:", "blob:")), only_the_file)
    opened.page.on("console", lambda message: opened.errors.append(f"{message.type}: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.page.goto(report.as_uri())
    wait_until(opened.page, "document.getElementById('video').readyState >= 2")
    return opened


@pytest.fixture(scope="module")
def desktop(browser: Browser, report: Path) -> Iterator[Opened]:
    opened = open_report(browser, report)
    yield opened
    # whatever the tests of this file did, the page logged nothing and asked for nothing but itself
    assert opened.errors == []
    assert opened.requests == [report.as_uri()]
    opened.context.close()


@pytest.fixture
def page(desktop: Opened) -> Page:
    """The page with its first episode at frame 0, paused, and the keyboard in the player."""
    page = desktop.page
    page.evaluate("document.getElementById('video').pause()")
    page.locator("button.episode").first.click()
    page.locator("#scrub").fill("0")
    page.locator("#stage").focus()
    settle(page)
    return page


def settle(page: Page) -> None:
    """Wait until the frame that was asked for is the one on show."""
    for _ in range(2):  # the end of one seek may begin the next
        wait_until(page, "(v => !v.seeking && v.readyState >= 2)(document.getElementById('video'))")
        # two animation frames: a seek that has ended may not have been painted yet
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def cursor_frame(page: Page) -> int:
    return int(page.locator("#tracks").get_attribute("data-frame") or -1)


def cursor_x(page: Page) -> float:
    return page.evaluate("new DOMMatrix(getComputedStyle(document.querySelector('#tracks .cursor')).transform).m41")


def shown_frame(page: Page) -> int:
    """Read the frame from the picture: the clock strip has 2 + frame white pixels of 64, each drawn 2 wide."""
    white = page.evaluate(
        """() => {
          const video = document.getElementById("video");
          const canvas = new OffscreenCanvas(128, 1).getContext("2d");
          canvas.drawImage(video, 0, 3, 128, 1, 0, 0, 128, 1);
          const pixels = canvas.getImageData(0, 0, 128, 1).data;
          return pixels.filter((value, i) => i % 4 === 1 && value > 128).length;
        }"""
    )
    return round(white / 2) - 2


def point_of(page: Page, frame: int) -> tuple[float, float]:
    """Where the curves show `frame`: the axis runs from LEFT to width - RIGHT over STEPS steps."""
    page.locator("#tracks").scroll_into_view_if_needed()
    box = page.locator("#tracks").bounding_box()
    assert box is not None
    return box["x"] + LEFT + (box["width"] - LEFT - RIGHT) * frame / STEPS, box["y"] + 60


def test_the_page_loads_without_a_word_to_anyone(desktop: Opened, report: Path) -> None:
    assert desktop.errors == []
    assert desktop.requests == [report.as_uri()]
    assert desktop.page.title() == "Tabletop, two rounds"


def test_hostile_text_is_shown_and_not_run(page: Page) -> None:
    assert page.locator("#episode-note").inner_text() == HOSTILE
    assert page.title() == "Tabletop, two rounds"


def test_the_video_plays_and_the_cursor_follows(page: Page) -> None:
    start = cursor_x(page)
    page.locator("#play").click()
    wait_until(page, "document.getElementById('video').currentTime > 0.6")
    # cursor and clock are read in one script, so no time passes between them
    frame, seconds, label = page.evaluate(
        "[Number(document.getElementById('tracks').dataset.frame), "
        "document.getElementById('video').currentTime, document.getElementById('play').textContent]"
    )
    assert label == "Pause"
    assert abs(frame - int(seconds * 10)) <= 1
    assert cursor_x(page) > start + 20
    page.locator("#play").click()
    wait_until(page, "document.getElementById('play').textContent === 'Play'")
    settle(page)
    assert abs(shown_frame(page) - cursor_frame(page)) <= 1


def test_the_video_ends_on_the_last_frame_and_starts_again(page: Page) -> None:
    page.locator("#scrub").fill(str(STEPS - 2))
    page.locator("#play").click()
    wait_until(page, "document.getElementById('video').ended")
    wait_until(page, f"document.getElementById('tracks').dataset.frame === '{STEPS}'")
    assert shown_frame(page) == STEPS
    page.locator("#play").click()
    wait_until(page, "(v => v.currentTime > 0.2 && v.currentTime < 2)(document.getElementById('video'))")


@pytest.mark.parametrize("frame", [0, 7, 23, STEPS])
def test_a_click_on_the_curves_shows_that_frame(page: Page, frame: int) -> None:
    page.mouse.click(*point_of(page, frame))
    settle(page)
    assert cursor_frame(page) == frame
    assert shown_frame(page) == frame
    assert page.locator("#scrub").input_value() == str(frame)
    assert page.locator("#clock").inner_text() == f"{frame / 10:.1f} s"


def test_dragging_moves_through_the_episode(page: Page) -> None:
    page.mouse.move(*point_of(page, 5))
    page.mouse.down()
    seen = []
    for frame in (10, 20, 30):
        page.mouse.move(*point_of(page, frame), steps=3)
        seen.append(cursor_frame(page))
    page.mouse.up()
    page.mouse.move(*point_of(page, 3))  # released: the cursor stays
    settle(page)
    assert seen == [10, 20, 30]
    assert shown_frame(page) == 30


def test_of_many_seeks_at_once_the_last_is_shown(page: Page) -> None:
    # twenty wishes in one task: the first starts a seek, and only the last may be granted after it
    page.evaluate(
        """() => {
          const scrub = document.getElementById("scrub");
          for (let frame = 1; frame <= 20; frame += 1) {
            scrub.value = frame;
            scrub.dispatchEvent(new Event("input"));
          }
        }"""
    )
    settle(page)
    assert (cursor_frame(page), shown_frame(page)) == (20, 20)


def test_the_values_beside_the_curves_are_those_of_the_frame(page: Page, data: ReportData) -> None:
    page.mouse.click(*point_of(page, 23))
    shown = page.locator("#tracks .value").all_text_contents()
    episode = next(e for e in data.episodes if e.key == "before-push_red-0")
    assert episode.progress is not None
    assert episode.weight is not None
    assert shown[0].split() == ["judge", f"{episode.progress[23]:.2f}", "true", f"{episode.true_progress[23]:.2f}"]  # type: ignore[index]
    assert shown[3] == f"{episode.weight[23]:.2f}"


def test_the_keyboard_drives_the_player(page: Page) -> None:
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert (cursor_frame(page), shown_frame(page)) == (2, 2)
    page.keyboard.press(" ")
    wait_until(page, "!document.getElementById('video').paused")
    page.keyboard.press(" ")
    assert page.evaluate("document.getElementById('video').paused")
    scrolled = page.evaluate("scrollY")
    page.keyboard.press("j")
    assert current(page) == 1
    page.keyboard.press("ArrowDown")
    assert current(page) == 2
    page.keyboard.press("k")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # already at the first
    assert current(page) == 0
    assert page.evaluate("scrollY") == scrolled  # arrows moved the player, not the page


def current(page: Page) -> int:
    return page.locator("button.episode").evaluate_all("all => all.findIndex(b => b.ariaCurrent === 'true')")


def test_focus_is_visible_and_controls_have_names(page: Page) -> None:
    page.keyboard.press("ArrowRight")
    assert page.locator("#stage").evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    nameless = page.locator("button, input, video").evaluate_all(
        "all => all.filter(e => !e.hidden && !e.ariaLabel && !e.textContent.trim()).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_choosing_an_episode_changes_everything_about_it(page: Page, data: ReportData) -> None:
    buttons = page.locator("button.episode")
    titles = buttons.evaluate_all("all => all.map(b => b.querySelector('b').textContent)")
    assert sorted(titles) == sorted(e.title for e in data.episodes)
    curve = page.locator("#tracks .curve.progress").get_attribute("d")
    source = page.locator("#video").get_attribute("src")
    buttons.nth(2).click()
    wait_until(page, "document.getElementById('video').readyState >= 2")
    episode = in_reading_order(data.episodes)[2]
    assert page.locator("#episode-facts").inner_text().startswith("after improvement")
    assert page.locator("#episode-instruction").inner_text() == f"\u201c{episode.instruction}\u201d"
    assert page.locator("#tracks .curve.progress").get_attribute("d") != curve
    assert page.locator("#video").get_attribute("src") != source
    assert (current(page), cursor_frame(page)) == (2, 0)


def test_an_episode_without_a_judge_still_plays(page: Page) -> None:
    page.locator("button.episode").last.click()
    assert page.locator("#tracks").inner_text() == "No judge has scored this episode."
    page.locator("#tracks").click()
    page.locator("#scrub").fill("9")
    settle(page)
    assert (cursor_frame(page), shown_frame(page)) == (9, 9)


def test_the_same_start_after_the_improvement_is_one_click_away(page: Page) -> None:
    start = page.locator("#episode-facts").inner_text()
    page.locator("#twin").click()
    assert page.locator("#episode-facts").inner_text().startswith("after improvement \u00b7 push_red \u00b7 start 0")
    page.locator("#twin").click()
    assert page.locator("#episode-facts").inner_text() == start


def test_the_table_says_what_the_data_says(page: Page, data: ReportData) -> None:
    page.locator("#success summary").click()
    rows = page.locator("#success tbody tr").evaluate_all("all => all.map(r => [...r.children].map(c => c.innerText))")
    page.locator("#success summary").click()
    expected = []
    for arm in data.arms:
        for task, item in [("all tasks", arm), *((t.task, t) for t in arm.tasks)]:
            expected.append([arm.label, task, str(item.successes), str(item.n)])  # type: ignore[attr-defined]
    assert [row[:4] for row in rows] == expected
    assert rows[0][4:7] == ["46.5\u00a0%", "39.7\u00a0% to 53.4\u00a0%", "48.0"]  # 93 / 200


@pytest.mark.parametrize("width", [375, 320])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, report: Path, width: int) -> None:
    phone = open_report(browser, report, width=width, height=740)
    assert phone.page.evaluate("document.documentElement.scrollWidth") == width
    phone.page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
    assert phone.page.evaluate("document.documentElement.scrollWidth") == width
    video = phone.page.locator("#video").bounding_box()
    tracks = phone.page.locator("#tracks").bounding_box()
    assert video is not None
    assert tracks is not None
    assert video["width"] > 0.8 * (width - 60)
    assert tracks["y"] >= video["y"] + video["height"]  # below each other, not beside
    assert phone.errors == []
    phone.context.close()


def test_dark_is_dark_and_the_button_turns_it(browser: Browser, report: Path) -> None:
    opened = open_report(browser, report, scheme="dark")
    page = opened.page

    def brightness(of: str) -> float:
        colour = page.evaluate(f"getComputedStyle(document.body).{of}")
        return sum(float(part) for part in colour[4:-1].split(",")[:3]) / 3

    assert page.locator("#theme").inner_text() == "Light"
    assert (brightness("backgroundColor") < 40, brightness("color") > 200) == (True, True)
    page.locator("#theme").click()
    assert (brightness("backgroundColor") > 240, brightness("color") < 60) == (True, True)
    page.reload()  # the choice is remembered
    kept = page.evaluate("[history.state, localStorage.getItem('theme'), document.documentElement.dataset.theme]")
    assert brightness("backgroundColor") > 240, kept
    page.emulate_media(media="print")
    assert brightness("backgroundColor") > 240
    assert opened.errors == []
    opened.context.close()
