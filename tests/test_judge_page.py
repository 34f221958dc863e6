"""The page of several judges: curves where they belong, figures that are right, nothing loaded from elsewhere."""

import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import judge_toy as toy
import numpy as np
import pytest
from test_report_browser import browser, open_report, wait_until  # noqa: F401  `browser` is a fixture

from robo_rl.app.cli import main
from robo_rl.app.show import _plan, _small, pearson, render, table_names
from robo_rl.data import EpisodeSet, read_episodes, write_episodes, write_reward_table
from robo_rl.errors import DataError
from robo_rl.report.episode import EpisodeView, read_episode, write_episode
from robo_rl.report.judges import JudgedEpisode, JudgeFigures, judged_chart, render_judges
from robo_rl.report.video import resized
from robo_rl.types import Outcome, RewardSignal, Trajectory

JUDGES = ("truth", "clock", "still", "shy")
HOSTILE = "place </script><b>here"


def opinion(episode: Trajectory, judge: str) -> RewardSignal:
    """Of a judge that knows the truth but for 0.1, a clock, one that always says the same, one that often says nothing.

    `shy` answers at frames 0, 1, 4 and from 6 on, and otherwise repeats the answer before.
    """
    assert episode.true_progress is not None
    length = len(episode) + 1
    clock = np.linspace(0, 1, length)
    silent = ~np.isin(np.arange(length), (0, 1, 4, *range(6, length)))
    before = np.maximum.accumulate(np.where(silent, 0, np.arange(length)))
    progress = {
        "truth": episode.true_progress + 0.1,
        "clock": clock,
        "still": np.full(length, 0.5),
        "shy": clock[before],
    }[judge].astype(np.float32)
    return RewardSignal(
        episode_id=episode.episode_id,
        model_id=f"{judge}@1",
        progress=progress,
        success_prob=progress * 0 + 0.25 if judge == "clock" else None,
        abstained=silent if judge == "shy" else None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes, the second without success, and four judges."""
    base = tmp_path_factory.mktemp("page")
    write_episodes(base / "data", [toy.episode(0), toy.episode(1, reach=0.5), toy.episode(2), toy.episode(3)])
    episodes = read_episodes(base / "data")
    for name in JUDGES:
        signals = [opinion(episode, name) for episode in episodes]
        write_reward_table(base / f"{name}.parquet", episodes, signals, judge={"id": f"{name}@1"})
    return base


def show(folder: Path, *options: str, tables: tuple[str, ...] = JUDGES) -> int:
    paths = [str(folder / f"{name}.parquet") for name in tables]
    return main(["reward", "show", str(folder / "data"), *paths, f"--out={folder / 'page.html'}", *options])


def parts_file(folder: Path) -> Path:
    """Two sub-tasks of episode 2: 0 to 4, 4 to its last frame."""
    last = int(read_episodes(folder / "data").lengths[2]) - 1
    path = folder / "parts.csv"
    path.write_text(f"episode_index,from_frame,to_frame,name\n2,0,4,reach\n2,4,{last},{HOSTILE}\n")
    return path


def judged(**changes: object) -> JudgedEpisode:
    """11 frames at 10 a second, judged by a (rises evenly) and b (0), with a part that begins in the middle."""
    episode = JudgedEpisode(
        title="e",
        instruction="wave",
        outcome=Outcome.SUCCESS,
        fps=10.0,
        progress={"a": np.linspace(0, 1, 11), "b": np.zeros(11)},
        truth=np.ones(11),
        marks=[(0, "reach"), (5, "grasp <it>")],
        end=8,
    )
    return replace(episode, **changes)  # type: ignore[arg-type]


def lines(drawn: str, kind: str = "judge") -> dict[str, str]:
    return dict(re.findall(rf'data-{kind}="(\w+)" d="([^"]+)"', drawn))


# ---- drawing


def test_lines_and_boundaries_are_where_they_belong() -> None:
    # the drawing is 1000 wide and 100 tall: frame 5 of 0..10 is at 500, frame 8 at 800, progress 0 at 100, 1 at 0
    drawn = judged_chart(judged(), ["b", "a"])
    assert 'data-frame="5" d="M500.0 0V100"' in drawn
    assert 'data-end="8" d="M800.0 0V100"' in drawn
    assert "grasp &lt;it&gt;, 0.5 s" in drawn
    assert [float(x) for x in re.findall(r'<span style="left:([\d.]+)%" title', drawn)] == [0.0, 50.0]
    a, b = lines(drawn)["a"], lines(drawn)["b"]
    assert a.startswith("M0.0 100.0L100.0 90.0L200.0 80.0")
    assert a.endswith("L1000.0 0.0")
    assert b == "M0.0 100.0" + "".join(f"L{x}.0 100.0" for x in range(100, 1001, 100))
    assert re.search(r'class="truth-line" d="M0.0 0.0L', drawn)
    kinds = dict(re.findall(r'class="line (s\d dash\d)" data-judge="(\w)"', drawn))
    assert kinds == {"s0 dash0": "b", "s1 dash1": "a"}  # by the order of the judges on the page


def test_what_is_above_one_or_below_zero_stays_in_the_drawing() -> None:
    drawn = judged_chart(judged(progress={"a": np.array([-1.0, 2.0])}, truth=None, marks=(), end=None), ["a"])
    assert lines(drawn)["a"] == "M0.0 100.0L1000.0 0.0"


def test_a_line_is_broken_where_there_is_no_answer() -> None:
    nan = np.nan
    values = np.array([0, 0.5, nan, nan, 1, nan, 0, 0, 0, 0, 0])
    drawn = judged_chart(judged(progress={"a": values}), ["a"])
    # frames 0 and 1; frame 4 alone, a stroke 3 wide around 400; frames 6 to 10
    assert lines(drawn)["a"] == (
        "M0.0 100.0L100.0 50.0M398.5 0.0L401.5 0.0M600.0 100.0L700.0 100.0L800.0 100.0L900.0 100.0L1000.0 100.0"
    )
    faint = re.findall(r'class="line faint s0 dash0" d="([^"]+)"', drawn)
    assert faint[0].startswith("M0.0 100.0L100.0 50.0L400.0 0.0L600.0 100.0")
    silent = judged_chart(judged(progress={"a": np.full(11, nan), "b": np.zeros(11)}), ["a", "b"])
    assert set(lines(silent)) == {"b"}


def test_success_is_drawn_below_for_those_who_say_it() -> None:
    drawn = judged_chart(judged(success={"b": np.full(11, 0.25)}), ["a", "b"])
    assert set(lines(drawn)) == {"a", "b"}
    assert set(lines(drawn, "success")) == {"b"}
    assert lines(drawn, "success")["b"].startswith("M0.0 75.0L")
    assert "Success probability" not in judged_chart(judged(), ["a", "b"])


def test_numbers_of_parts_do_not_cover_each_other() -> None:
    # shares of 100 steps: .01 is below; .02 is too close to it and steps up; .03 has no room in either row; .10 has
    marks = [(1, "p1"), (2, "p2"), (3, "p3"), (10, "p4")]
    drawn = judged_chart(judged(progress={"a": np.zeros(101)}, truth=None, marks=marks, end=None), ["a"])
    shown = re.findall(r'<span style="left:([\d.]+)%"( class=up)? title="[^"]*">(\d+)</span>', drawn)
    assert shown == [("1.00", "", "1"), ("2.00", " class=up", "2"), ("10.00", "", "4")]
    assert re.findall(r'data-frame="(\d+)"', drawn) == ["1", "2", "3", "10"]  # every line is there


def test_curves_and_marks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"must have one length, got \[3, 11\]"):
        judged(truth=np.ones(3))
    with pytest.raises(DataError, match="mark at frame 11, but frames are 0 to 10"):
        judged(marks=[(11, "late")])


def test_one_episode_is_in_memory_at_a_time() -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def made() -> Iterator[JudgedEpisode]:
        for number in range(3):
            assert [ref() is None for ref in alive] == [True] * len(alive)
            frames = np.zeros((11, 8, 8, 3), np.uint8)
            alive.append(weakref.ref(frames))
            yield judged(view=view(frames, key=f"{number}"))
            del frames

    figures = [JudgeFigures(name=n, model_id=n, frames=1, abstained=0, voc=1.0, pearson=1.0, mse=0.0) for n in "ab"]
    page = render_judges("t", "a", "p", figures, made())
    assert len(alive) == page.count('<script type="text/plain"') == page.count('<figure class="judged">') == 3


# ---- the episode that is played


def view(frames: np.ndarray, **changes: object) -> EpisodeView:
    made = EpisodeView(
        key="0",
        title="e",
        group="judged",
        instruction="wave",
        task="",
        outcome=Outcome.SUCCESS,
        index=0,
        policy="",
        fps=10.0,
        frames={"front": frames},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_view_keeps_other_judges_and_marks_on_disk(tmp_path: Path) -> None:
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    curve = np.array([0, np.nan, 0.5, 0.75, 1], np.float32)
    whole = view(frames, samples=5, others={"a": curve}, others_success={"a": curve / 2}, marks=[(2.0, "grasp")])
    back = read_episode(tmp_path, write_episode(tmp_path, whole, "e"), "e")
    assert (back.samples, back.num_samples, back.num_frames, list(back.marks)) == (5, 5, 3, [(2.0, "grasp")])
    np.testing.assert_array_equal(back.others["a"], curve)
    np.testing.assert_array_equal(back.others_success["a"], curve / 2)
    old = write_episode(tmp_path, view(frames), "e")  # without them the file is that of earlier versions
    assert not {"samples", "others", "others_success", "marks"} & set(old)
    assert read_episode(tmp_path, old, "e").others == {}


def test_a_view_refuses_curves_of_another_length(tmp_path: Path) -> None:
    frames = np.zeros((3, 8, 8, 3), np.uint8)
    with pytest.raises(DataError, match=r"others\['a'\] must be \(5,\), got \(3,\)"):
        view(frames, samples=5, others={"a": np.zeros(3)})
    with pytest.raises(DataError, match=r"progress must be \(5,\), got \(3,\)"):
        view(frames, samples=5, progress=np.zeros(3))
    with pytest.raises(DataError, match="mark 'late' at 3 is outside 0 to 2"):
        view(frames, marks=[(3, "late")])
    text = write_episode(tmp_path, view(frames, marks=[(1, "a")]), "e")
    text["marks"] = [[1]]
    with pytest.raises(DataError, match=r"e.marks\[0\]: must be a frame and a name"):
        read_episode(tmp_path, text, "e")


def long_episode(frames: int, **size: tuple[int, int]) -> Trajectory:
    """`frames` frames of cameras with these heights and widths."""
    return replace(
        toy.episode(0),
        images={camera: np.zeros((frames, *of, 3), np.uint8) for camera, of in size.items()},
        state=np.zeros((frames, 2), np.float32),
        actions=np.zeros((frames - 1, 2), np.float32),
        controller=np.zeros(frames - 1, np.int8),
        true_progress=None,
    )


def test_long_and_large_videos_become_short_and_small() -> None:
    # 300 of 1280 frames, first and last among them; 3 x 640 x 480 pixels shrink to 110,000 together
    plan = _plan(long_episode(1280, a=(480, 640), b=(480, 640), c=(480, 640)), episodes=2)
    assert (len(plan.frames), plan.frames[0], plan.frames[-1]) == (300, 0, 1279)
    assert set(np.diff(plan.frames)) == {4, 5}
    assert set(plan.sizes.values()) == {(166, 221)}
    assert 0.98 * 110_000 < 3 * 166 * 221 < 1.02 * 110_000
    short = _plan(long_episode(12, a=(32, 32)), episodes=2)
    assert (short.frames.tolist(), dict(short.sizes)) == (list(range(12)), {"a": (32, 32)})
    assert len(_plan(long_episode(1280, a=(32, 32)), episodes=100).frames) == 60  # 6000 frames for 100 episodes


def test_a_smaller_picture_has_the_means_of_the_larger(folder: Path) -> None:
    picture = np.zeros((480, 640, 3), np.uint8)
    picture[:, 320:] = 90
    small = resized(picture, 48, 64)
    assert np.abs(small[:, :31].astype(int)).max() <= 1
    assert np.abs(small[:, 33:].astype(int) - 90).max() <= 1
    assert resized(picture, 480, 640) is picture
    episodes = read_episodes(folder / "data")
    pixels = episodes[0].images["front"]
    np.testing.assert_array_equal(_small(episodes, pixels, np.array([3, 1]), (32, 32)), pixels[[3, 1]])


# ---- the command


def rows(page: str) -> dict[str, list[str]]:
    """Judge -> the cells of its row."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)[1:]:
        text = [re.sub(r"<[^>]+>", " ", cell).split() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        found[text[0][0]] = [text[0][1], *(cell[0] for cell in text[1:])]
    return found


def test_figures_of_judges(folder: Path) -> None:
    assert show(folder) == 0
    page = (folder / "page.html").read_text()
    table = rows(page)
    lengths = read_episodes(folder / "data").lengths
    total = str(lengths.sum())
    # the truth and 0.1: correlation 1, mean squared error 0.01. Episodes stand still for the last two steps, so three
    # of n values are tied, and Spearman with time is sqrt(1 - (3^3 - 3) / (n^3 - n)); a clock's is 1
    order = np.mean([np.sqrt(1 - 24 / (n**3 - n)) for n in lengths[[0, 2, 3]]])
    assert table["truth"][:3] == ["truth@1", total, "0"]
    assert table["truth"][4:] == ["1.00", "0.0100"]
    assert table["truth"][3] == f"{order:.2f}"
    assert table["clock"][3] == "1.00"
    # frames 2, 3 and 5 of each of the four episodes have no answer
    assert table["shy"][2] == "12"
    assert table["still"][3:5] == ["\u2013", "\u2013"]
    assert 'title="constant prediction in all 3 successful episodes">\u2013<' in page
    assert 'title="mean over 3 successful episodes"' in page
    assert (
        "4 of 4 episodes of data, 10 frames a second, as 4 judges saw them: truth@1, clock@1, still@1, shy@1." in page
    )
    assert "Videos have every frame at full size." in page
    assert page.count("faint: no answer") == 4  # `shy` in every episode
    mean = np.mean([((e.true_progress - 0.5) ** 2).mean() for e in read_episodes(folder / "data")], dtype=np.float64)
    weighed = sum(((e.true_progress - 0.5) ** 2).sum() for e in read_episodes(folder / "data")) / lengths.sum()
    assert f"{mean:.4f}" != f"{weighed:.4f}"
    assert table["still"][5] == f"{weighed:.4f}"  # over frames, not over episodes


def test_figures_that_nobody_can_know_are_dashes_with_reasons(folder: Path, tmp_path: Path) -> None:
    whole = [replace(toy.episode(n), outcome=Outcome.UNKNOWN, true_progress=None) for n in range(2)]
    write_episodes(tmp_path / "data", whole)
    episodes = read_episodes(tmp_path / "data")
    signals = [replace(opinion(toy.episode(n), "clock"), episode_id=e.episode_id) for n, e in enumerate(episodes)]
    write_reward_table(tmp_path / "clock.parquet", episodes, signals, judge={"id": "clock@1"})
    assert show(tmp_path, tables=("clock",)) == 0
    page = (tmp_path / "page.html").read_text()
    assert rows(page)["clock"][3:] == ["\u2013"] * 3
    assert "VOC of clock: no episode that it scored here is marked a success" in page
    assert "Pearson of clock, MSE of clock: no annotated progress; give the boundaries of sub-tasks" in page
    assert 'class="truth-line" d=' not in page


def test_pearson_by_hand() -> None:
    # deviations (-1, 0, 1) and (0, -1, 1): 1 / sqrt(2 * 2)
    assert pearson(np.array([0.0, 1, 2]), np.array([1.0, 0, 2])).value == pytest.approx(0.5)
    assert pearson(np.zeros(3), np.arange(3)).reason == "constant prediction"
    assert pearson(np.arange(3), np.zeros(3)).reason == "constant annotated progress"


def test_some_episodes_and_their_boundaries(folder: Path) -> None:
    assert show(folder, "--episodes=0,2", f"--subtasks={parts_file(folder)}") == 0
    page = (folder / "page.html").read_text()
    assert re.findall(r"<figcaption><b>(.*?)</b>", page) == ["Episode 0: toy-0", "Episode 2: toy-2"]
    assert re.findall(r'data-frame="(\d+)"', page) == ["0", "4"]
    assert "place &lt;/script&gt;&lt;b&gt;here" in page
    assert HOSTILE not in page
    assert "2 of 4 episodes" in page


def test_an_episode_that_a_judge_skipped(folder: Path) -> None:
    episodes = read_episodes(folder / "data").select([0, 2])
    full: list[RewardSignal | None] = [opinion(episode, "clock") for episode in episodes]
    half = [None, full[1]]
    about = {"numbers": [0, 2], "total": 4, "subtasks": {}}
    page = render(episodes, {"half": half, "full": full}, **about)  # type: ignore[arg-type]
    assert page.count("did not score this episode") == 1
    assert "faint: no answer" not in page
    assert [set(lines(figure)) for figure in page.split("<figure")[1:]] == [{"full"}, {"half", "full"}]
    assert (rows(page)["half"][1], rows(page)["full"][1]) == (str(episodes.lengths[1]), str(episodes.lengths.sum()))
    # in the player, too, `full` keeps the second colour where it is alone
    assert '"others":[{"name":"full","place":1,' in page
    with pytest.raises(DataError, match="none: this judge skipped every episode"):
        render(episodes, {"none": [None, None]}, **about)  # type: ignore[arg-type]


def test_tables_are_called_by_what_tells_them_apart() -> None:
    assert table_names([Path("a/x.parquet"), Path("a/y.parquet")]) == ["x", "y"]
    assert table_names([Path("a/x.parquet"), Path("b/x.parquet")]) == ["a/x", "b/x"]
    with pytest.raises(DataError, match=r"a/x.parquet: this table is given twice"):
        table_names([Path("a/x.parquet"), Path("a/../a/x.parquet")])


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(folder, "--episodes=9") == 2
    assert "there is no episode 9" in capsys.readouterr().err
    write_episodes(tmp_path / "data", [toy.episode(7)])
    wrong = ["reward", "show", str(tmp_path / "data"), str(folder / "truth.parquet"), f"--out={tmp_path / 'x.html'}"]
    assert main(wrong) == 2
    said = capsys.readouterr().err
    assert "made for dataset" in said
    assert said.count("\n") == 1
    assert main([*wrong[:3], str(tmp_path / "no.parquet"), wrong[4]]) == 2
    assert "no.parquet" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


# ---- in a browser


@pytest.fixture(scope="module")
def page_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "page.html"
    tables = [str(folder / f"{name}.parquet") for name in JUDGES]
    parts = f"--subtasks={parts_file(folder)}"
    assert main(["reward", "show", str(folder / "data"), *tables, f"--out={out}", "--episodes=2,0", parts]) == 0
    return out


@pytest.fixture(scope="module")
def episodes(folder: Path) -> EpisodeSet:
    return read_episodes(folder / "data").select([0, 2])


CHART = """(place) => {
  const figure = document.querySelectorAll("figure.judged")[place];
  const area = figure.querySelector(".plot-area svg").getBoundingClientRect();
  const middle = (e) => { const b = e.getBoundingClientRect(); return (b.left + b.right) / 2; };
  return {
    left: area.left, width: area.width,
    judges: [...figure.querySelectorAll("[data-judge]")].map((e) => e.dataset.judge),
    boundaries: [...figure.querySelectorAll("[data-frame]")].map((e) => middle(e)),
    numbers: [...figure.querySelectorAll(".numbers span")].map((e) => [e.textContent, middle(e)]),
    colours: [...figure.querySelectorAll("[data-judge]")].map((e) => getComputedStyle(e).stroke),
    dashes: [...figure.querySelectorAll("[data-judge]")].map((e) => getComputedStyle(e).strokeDasharray),
  };
}"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_the_page_in_a_browser(browser, page_file: Path, episodes: EpisodeSet, width: int, scheme: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    opened = open_report(browser, page_file, width=width, scheme=scheme)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    chart = page.evaluate(CHART, 1)  # of episode 2, which has the boundaries
    assert chart["judges"] == list(JUDGES)
    assert len(set(chart["colours"])) == len(set(chart["dashes"])) == len(JUDGES)
    steps = int(episodes.lengths[1]) - 1
    expected = [chart["left"] + chart["width"] * frame / steps for frame in (0, 4)]
    np.testing.assert_allclose(chart["boundaries"], expected, atol=1.0)
    assert [number for number, _ in chart["numbers"]] == ["1", "2"]
    np.testing.assert_allclose([x for _, x in chart["numbers"]], expected, atol=1.0)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert opened.errors == []
    assert opened.requests == [page_file.as_uri()]
    opened.context.close()


def test_the_player_says_what_every_judge_says(browser, page_file: Path, episodes: EpisodeSet) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    opened = open_report(browser, page_file)
    page = opened.page
    page.locator("button.episode").nth(1).click()
    wait_until(page, "document.getElementById('video').readyState >= 2")
    page.locator("#scrub").fill("5")
    episode = episodes[1]
    assert episode.true_progress is not None
    said = page.locator(".readout .judge-key").all_text_contents()
    clock = 5 / len(episode)
    assert said == [
        f"truth {episode.true_progress[5] + 0.1:.2f}",
        f"clock {clock:.2f}, success 0.25",
        "still 0.50",
        "shy no answer",
    ]
    assert page.locator(".readout .part").inner_text() == f"Part 2 of 2: {HOSTILE}"
    assert page.locator("#tracks .boundary").count() == 2
    assert page.locator("#tracks .curve.judge").count() == 5  # progress of four, success of one
    page.locator("#scrub").fill("3")
    assert page.locator(".readout .part").inner_text() == "Part 1 of 2: reach"
    assert opened.errors == []
    opened.context.close()


def test_more_values_than_frames_share_the_time_of_the_video(browser, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    # 5 frames and 41 values: frame 3 of 0..4 is at value 30 of 0..40
    curve = np.arange(41) / 40
    frames = np.zeros((5, 32, 32, 3), np.uint8)
    whole = judged(progress={"a": curve}, truth=None, marks=[(30, "lift")], end=40)
    whole = replace(whole, view=view(frames, fps=1.0, samples=41, others={"a": curve}, marks=[(30.0, "lift")]))
    figures = [JudgeFigures(name="a", model_id="a@1", frames=41, abstained=0, voc=1.0, pearson=None, mse=None)]
    path = tmp_path / "page.html"
    path.write_text(render_judges("t", "a", "p", figures, [whole]))
    opened = open_report(browser, path)
    page = opened.page
    page.locator("#scrub").fill("3")
    assert page.locator(".readout .judge-key").all_text_contents() == ["a 0.75"]
    cursor = page.evaluate("new DOMMatrix(getComputedStyle(document.querySelector('#tracks .cursor')).transform).m41")
    line = page.locator("#tracks .boundary").get_attribute("d")
    assert line is not None
    assert float(line[1:].split()[0]) == pytest.approx(cursor, abs=0.1)
    assert page.locator("#clock").inner_text() == "3.0 s"
    assert page.locator(".readout .part").inner_text() == "Part 1 of 1: lift"  # it begins at this very value
    page.locator("#scrub").fill("2")
    assert page.locator(".readout .part").is_hidden()
    assert opened.errors == []
    opened.context.close()
