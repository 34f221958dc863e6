from __future__ import annotations

import json
import os
import re
import time
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_sample import sample_episode, sample_report

from robo_rl.errors import DataError
from robo_rl.report import viewer
from robo_rl.report.decode import encode
from robo_rl.report.model import (
    ArmResult,
    Curve,
    EpisodeView,
    PairedTest,
    ReportData,
    load_report_data,
    save_report_data,
)
from robo_rl.report.render import render, write_report
from robo_rl.types import Outcome

HOSTILE = '</script><script>alert("x")</script><!-- & {{title}}'
ARRAYS = ("progress", "success_prob", "tri_state", "weight", "true_progress")


class Tags(HTMLParser):
    """Counts elements and keeps every attribute that could fetch something, and the text of every script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.links: list[str] = []
        self.scripts: dict[str, str] = {}
        self.open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.links += [v or "" for name, v in attrs if name in ("src", "href", "srcset", "poster", "action", "data")]
        if tag == "script":
            self.open = dict(attrs).get("id") or "code"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.scripts[self.open] = self.scripts.get(self.open, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.open = ""


@pytest.fixture(scope="module")
def data() -> ReportData:
    return sample_report(6, steps=12, size=32)


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    return render(data)


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def edit(folder: Path, change: str, value: object) -> None:
    """Set a dotted path inside report.json."""
    path = folder / "report.json"
    text = json.loads(path.read_text())
    *parents, last = change.split(".")
    item = text
    for key in parents:
        item = item[int(key) if key.isdigit() else key]
    item[last] = value
    path.write_text(json.dumps(text))


# ---- on disk


def test_what_is_saved_comes_back_the_same(tmp_path: Path, data: ReportData) -> None:
    save_report_data(tmp_path, data)
    back = load_report_data(tmp_path)
    for f in fields(ReportData):
        if f.name != "episodes":
            assert encode(getattr(back, f.name), "") == encode(getattr(data, f.name), ""), f.name
    assert len(back.episodes) == len(data.episodes)
    for one, two in zip(back.episodes, data.episodes, strict=True):
        assert (one.key, one.outcome, one.group, one.fps) == (two.key, two.outcome, two.group, two.fps)
        assert list(one.frames) == list(two.frames)
        for camera in one.frames:
            np.testing.assert_array_equal(one.frames[camera], two.frames[camera])
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_saving_again_leaves_only_the_new_episodes(tmp_path: Path, data: ReportData) -> None:
    save_report_data(tmp_path, data)
    save_report_data(tmp_path, replace(data, episodes=data.episodes[:2]))
    assert len(load_report_data(tmp_path).episodes) == 2
    assert len(os.listdir(tmp_path)) == 3  # report.json and two array files, nothing temporary


def test_an_interrupted_save_leaves_the_old_report(
    tmp_path: Path, data: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_report_data(tmp_path, data)
    move = os.replace

    def fail_at_the_end(source: Path, target: Path) -> None:
        if Path(target).name == "report.json":
            raise OSError("disk full")
        move(source, target)

    monkeypatch.setattr(os, "replace", fail_at_the_end)
    with pytest.raises(OSError, match="disk full"):
        save_report_data(tmp_path, replace(data, headline="new", episodes=[sample_episode(40, steps=8, size=32)]))
    monkeypatch.undo()
    old = load_report_data(tmp_path)
    assert old.headline == data.headline
    assert [e.key for e in old.episodes] == [e.key for e in data.episodes]


def test_a_damaged_or_missing_array_file_is_named(tmp_path: Path, data: ReportData) -> None:
    save_report_data(tmp_path, data)
    path = next(tmp_path.glob("episode-*.npz"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        load_report_data(tmp_path)
    assert path.name in one_line(error)
    assert "its content differs from the hash" in str(error.value)
    path.unlink()
    with pytest.raises(DataError) as error:
        load_report_data(tmp_path)
    assert path.name in one_line(error)


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("arms.1.wilson_low", "high", "report.arms[1].wilson_low: expected a number, got text 'high'"),
        ("arms.0.successes", 1.5, "report.arms[0].successes: expected a whole number, got a number '1.5'"),
        ("arms.0.successes", 900, "report.arms[0]: arm 'imitation': 900 successes of 200 episodes"),
        ("arms.0.colour", "red", "report.arms[0].colour: unknown key"),
        ("arms.1.comparisons.0.other", "ghost", "compared with 'ghost', which is not an arm"),
        ("title", None, "report.title: expected text, got nothing"),
        ("judge.rounds.0.audit.0.verdict", "maybe", "'maybe' is not one of 'pass', 'warn', 'fail'"),
        ("curves.0.y", [1.0], "y values"),
        ("credit.0.bin_edges", [0.0, 1.0], "20 counts of 'demonstration' but 2 bin edges"),
        ("episodes.0.outcome", "won", "episodes[0].outcome: 'won' is not one of 'success'"),
        ("episodes.0.file", "../secret.npz", "a plain file name"),
        ("episodes.1.key", "before-push_red-0", "'before-push_red-0' is used more than once"),
        ("format", 99, "format 99"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_path(
    tmp_path: Path, data: ReportData, change: str, value: object, message: str
) -> None:
    save_report_data(tmp_path, data)
    edit(tmp_path, change, value)
    with pytest.raises(DataError) as error:
        load_report_data(tmp_path)
    assert message in one_line(error)
    assert "report.json" in str(error.value)


def test_a_missing_report_and_a_torn_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_report_data(tmp_path)
    (tmp_path / "report.json").write_text('{"format": 1, "title"')
    with pytest.raises(DataError, match="cannot be read"):
        load_report_data(tmp_path)


def test_nan_is_refused_when_saving(tmp_path: Path, data: ReportData) -> None:
    curve = Curve(name="loss", group="imitation", x_label="x", y_label="y", x=[0.0, 1.0], y=[1.0, float("nan")])
    with pytest.raises(DataError, match=r"curves\[0\]\.y\[1\]: nan is not finite"):
        save_report_data(tmp_path, replace(data, curves=[curve]))
    assert not (tmp_path / "report.json").exists()


def test_numpy_numbers_may_be_given(tmp_path: Path, data: ReportData) -> None:
    arm = replace(data.arms[0], n=np.int64(200), wilson_low=np.float32(0.25))  # type: ignore[arg-type]
    save_report_data(tmp_path, replace(data, arms=[arm]))
    back = load_report_data(tmp_path).arms[0]
    assert (back.n, back.wilson_low) == (200, 0.25)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"progress": np.zeros(5, np.float32)}, r"progress must be \(13,\), got \(5,\)"),
        ({"weight": np.zeros(13, np.float32)}, r"weight must be \(12,\), got \(13,\)"),
        ({"tri_state": np.full((12, 3), np.nan, np.float32)}, "tri_state is not finite"),
        ({"frames": {}}, "no camera"),
        ({"frames": {"front": np.zeros((13, 8, 8, 3))}}, "must be uint8"),
        ({"fps": 0.0}, "fps must be positive"),
        ({"group": "during"}, "group 'during'"),
    ],
)
def test_an_episode_view_checks_its_arrays(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(sample_episode(0, steps=12, size=32), **change)  # type: ignore[arg-type]


# ---- the page


def test_a_bar_is_as_long_as_the_rate(page: str) -> None:
    # imitation: 93 of 200 = 46.5 %; Wilson by hand: centre (0.465 + 3.8416/400) / (1 + 3.8416/200) = 0.46566,
    # half width 1.96 / 1.019208 * sqrt(0.465 * 0.535 / 200 + 3.8416 / 160000) = 0.06847
    bar = page[page.index('<div class="bar a0"') :][:700]
    assert "width:46.50%" in bar
    low, width = map(float, re.search(r'whisker" style="left:([\d.]+)%;width:([\d.]+)%', bar).groups())  # type: ignore[union-attr]
    assert low == pytest.approx(100 * (0.46566 - 0.06847), abs=0.01)
    assert width == pytest.approx(200 * 0.06847, abs=0.01)
    assert "Imitation: 93 of 200 succeeded (46.5\u00a0%), 95\u00a0% interval" in bar


def test_the_page_asks_for_nothing(page: str) -> None:
    tags = Tags(page)
    assert tags.links
    assert all(link.startswith(("#", "data:")) for link in tags.links)
    assert not re.search(r"https?://", page)
    assert not re.search(r"url\(|@import|\bfetch\(|XMLHttpRequest|<link(?! rel=\"icon\")|<iframe", page)
    assert "default-src 'none'" in page


def test_hostile_text_stays_text(data: ReportData) -> None:
    episode = replace(data.episodes[0], instruction=HOSTILE, title=HOSTILE, note=HOSTILE, policy=HOSTILE)
    arm = replace(data.arms[0], label=HOSTILE)
    hostile = replace(
        data,
        title=HOSTILE,
        headline=HOSTILE,
        details=[HOSTILE],
        commands=[HOSTILE],
        arms=[arm, *data.arms[1:]],
        curves=[replace(data.curves[0], name=HOSTILE, group=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)],
        credit=[replace(data.credit[0], method=HOSTILE, histogram={HOSTILE: [1] * 20})],
        episodes=[episode, *data.episodes[1:]],
        provenance=replace(data.provenance, config=HOSTILE, versions={HOSTILE: HOSTILE}, machine=HOSTILE),
    )
    page = render(hostile)
    # the episodes' JSON, one video for each of 6 episodes, and the code: nothing else opened a script
    assert Tags(page).count["script"] == 1 + 6 + 1
    assert "<script>alert" not in page
    assert json.loads(Tags(page).scripts["episode-data"])[0]["instruction"] == HOSTILE


def test_the_viewer_gets_the_numbers_of_the_data(page: str, data: ReportData) -> None:
    shown = json.loads(Tags(page).scripts["episode-data"])
    episodes = {episode.key: episode for episode in data.episodes}
    assert {item["key"] for item in shown} == set(episodes)
    for item in shown:
        episode = episodes[item["key"]]
        assert item["frames"] == episode.num_frames == 13
        np.testing.assert_allclose(item["progress"], episode.progress, atol=5e-5)
        np.testing.assert_allclose(item["tri"], episode.tri_state, atol=5e-5)
        assert (item["weight"] is None) == (episode.weight is None)


def test_order_and_twins() -> None:
    ordered = viewer.in_reading_order(sample_report(18, steps=4, size=32).episodes)
    groups = [e.group for e in ordered]
    assert groups == ["before"] * 6 + ["after"] * 6 + ["demonstration"] * 6
    after = [e.outcome is Outcome.SUCCESS for e in ordered[6:12]]
    assert after == sorted(after, reverse=True)
    facts = json.loads(viewer.episode_json(ordered))
    for i, item in enumerate(facts):
        if item["group"] == "demonstration":
            assert item["twin"] is None
        else:
            twin = facts[item["twin"]]
            assert (twin["index"], twin["twin"]) == (item["index"], i)
            assert twin["group"] != item["group"]


def test_undefined_is_written_out_with_its_reason(data: ReportData, page: str) -> None:
    assert '<span class="undefined">undefined</span> <small>no episode succeeded</small>' in page
    assert '<span class="undefined">undefined</span> <small>no successful episode was held out</small>' in page
    assert '<span class="undefined">undefined</span> (no initial state was met by both).' in page
    assert not re.search(r"\bNone\b|\bnan\b|>null<", re.sub(r"<script.*?</script>", "", page, flags=re.S))
    empty = ArmResult(
        name="imitation",
        label="Nothing",
        n=0,
        successes=0,
        wilson_low=None,
        wilson_high=None,
        mean_success_steps=None,
        seconds_per_episode=None,
    )
    text = render(replace(data, arms=[empty], episodes=[]))
    assert "not evaluated" in text
    assert "0\u00a0%" not in text[text.index('<section id="verdict"') : text.index('<section id="comparisons"')]


def test_an_empty_report_says_so(data: ReportData) -> None:
    bare = ReportData(
        title="t", created="2026-01-01", headline="h", details=[], arms=[], provenance=replace(data.provenance)
    )
    # success, comparisons, viewer, curves, judge, credit, rounds and commands have nothing to show
    assert render(bare).count("Not recorded in this run.") == 8


@pytest.mark.parametrize(
    ("difference", "p", "word"), [(0.2, 0.01, "better"), (-0.2, 0.01, "worse"), (0.2, 0.05, "no clear difference")]
)
def test_a_comparison_in_words(data: ReportData, difference: float, p: float, word: str) -> None:
    test = PairedTest(other="imitation", difference=difference, low=-0.3, high=0.3, p=p, wins=1, losses=2)
    page = render(replace(data, arms=[data.arms[0], replace(data.arms[1], comparisons=[test])], episodes=[]))
    assert f">{word}</b>. " in page
    assert "It succeeded on 1 start where the other failed, and failed on 2 where the other succeeded." in page


def test_write_report_makes_one_file(tmp_path: Path, data: ReportData) -> None:
    save_report_data(tmp_path / "report_data", data)
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == render(data)
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report_data"]
    with pytest.raises(DataError, match="no such file"):
        write_report(tmp_path / "elsewhere")


def test_the_largest_report_stays_small() -> None:
    start = time.perf_counter()
    episode = sample_episode(1, steps=59, size=192)
    views: list[EpisodeView] = [replace(episode, key=str(i)) for i in range(24)]
    page = render(replace(sample_report(0), episodes=views))
    print(f"24 episodes: {len(page) / 1e6:.2f} MB in {time.perf_counter() - start:.1f} s")
    assert len(page.encode()) < 15e6
    assert len(Tags(page).scripts) == 1 + 24 + 1
