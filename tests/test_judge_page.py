"""The page of several judges: curves where they belong, figures that are right, nothing loaded from elsewhere."""

import re
from dataclasses import replace
from pathlib import Path

import judge_toy as toy
import numpy as np
import pytest
from playwright.sync_api import Browser
from test_report_browser import browser  # noqa: F401  the fixture

from robo_rl.app.cli import main
from robo_rl.app.show import _small, render
from robo_rl.data import read_episodes, write_episodes, write_reward_table
from robo_rl.errors import DataError
from robo_rl.report.judges import BOTTOM, HIGH, LEFT, RIGHT, TOP, WIDE, JudgedEpisode, judged_chart
from robo_rl.types import Outcome, RewardSignal, Trajectory


def opinion(episode: Trajectory, model: str, progress: np.ndarray) -> RewardSignal:
    return RewardSignal(episode_id=episode.episode_id, model_id=model, progress=progress.astype(np.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes; a judge that knows the truth, a clock, and one that always says the same."""
    base = tmp_path_factory.mktemp("page")
    write_episodes(base / "data", [toy.episode(0), toy.episode(1, reach=0.5), toy.episode(2), toy.episode(3)])
    episodes = read_episodes(base / "data")
    for name in ("truth", "clock", "still"):
        made = []
        for episode in episodes:
            assert episode.true_progress is not None
            clock = np.linspace(0, 1, len(episode) + 1)
            made.append(
                opinion(
                    episode,
                    f"{name}@1",
                    {"truth": episode.true_progress, "clock": clock, "still": np.full(len(clock), 0.5)}[name],
                )
            )
        write_reward_table(base / f"{name}.parquet", episodes, made, judge={"id": f"{name}@1"})
    return base


def show(folder: Path, *options: str, tables: tuple[str, ...] = ("truth", "clock", "still")) -> int:
    paths = [str(folder / f"{name}.parquet") for name in tables]
    return main(["reward", "show", str(folder / "data"), *paths, f"--out={folder / 'page.html'}", *options])


def test_lines_and_boundaries_are_where_they_belong() -> None:
    """11 frames: frame 5 is in the middle of the drawing, progress 0 at its bottom, 1 on top."""
    episode = JudgedEpisode(
        title="e",
        instruction="wave",
        outcome=Outcome.SUCCESS,
        fps=10.0,
        progress={"a": np.linspace(0, 1, 11), "b": np.zeros(11)},
        truth=np.ones(11),
        marks=[(0, "reach"), (5, "grasp <it>")],
    )
    drawn = judged_chart(episode, ["a", "b"])
    middle = LEFT + 0.5 * (WIDE - LEFT - RIGHT)
    assert f'data-frame="5" d="M{middle:.1f} {TOP}V{HIGH - BOTTOM}"' in drawn
    assert "grasp &lt;it&gt;, 0.5 s" in drawn
    lines = dict(re.findall(r'data-judge="(\w)" d="M([^"]+)"', drawn))
    assert lines["a"].split("L")[0] == f"{LEFT:.1f} {HIGH - BOTTOM:.1f}"
    assert lines["a"].split("L")[-1] == f"{WIDE - RIGHT:.1f} {TOP:.1f}"
    assert {point.split()[1] for point in lines["b"].split("L")} == {f"{HIGH - BOTTOM:.1f}"}
    with pytest.raises(DataError, match="must have one length"):
        replace(episode, truth=np.ones(3))


def test_figures_of_judges(folder: Path) -> None:
    assert show(folder) == 0
    page = (folder / "page.html").read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    text = {re.sub(r"<[^>]+>", " ", row).split()[0]: re.sub(r"<[^>]+>", " ", row).split() for row in rows}
    assert text["truth"][-2:] == ["1.00", "0"] or float(text["truth"][-1]) == 0.0
    assert text["clock"][-3] == "1.00"  # VOC: a clock is perfect
    still = next(row for row in rows if "still@1" in row)
    assert "constant" in still  # why its VOC is undefined


def test_some_episodes_and_their_boundaries(folder: Path) -> None:
    length = len(read_episodes(folder / "data")[2])
    (folder / "parts.csv").write_text(
        f"episode_index,from_frame,to_frame,name\n2,0,4,reach\n2,4,{length},place <here>\n"
    )
    assert show(folder, "--episodes=0,2", f"--subtasks={folder / 'parts.csv'}") == 0
    page = (folder / "page.html").read_text()
    assert page.count('<figure class="judged">') == 2
    assert re.findall(r'data-frame="(\d+)"', page) == ["0", "4"]
    assert "place &lt;here&gt;" in page
    assert "2 of 4 episodes" in page


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(folder, "--episodes=9") == 2
    assert "there is no episode 9" in capsys.readouterr().err
    write_episodes(tmp_path / "data", [toy.episode(7)])
    wrong = ["reward", "show", str(tmp_path / "data"), str(folder / "truth.parquet"), f"--out={tmp_path / 'x.html'}"]
    assert main(wrong) == 2
    assert "made for dataset" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_large_and_long_videos_become_small() -> None:
    pixels = np.zeros((3, 480, 640, 3), np.uint8)
    pixels[1] = 90
    small = _small(pixels, np.array([0, 1]))
    assert small.shape == (2, 160, 213, 3)
    assert (small[0].max(), small[1].min()) == (0, 90)
    episode = toy.episode(0)
    frames = 901
    long = replace(
        episode,
        images={"front": np.zeros((frames, 8, 8, 3), np.uint8)},
        state=np.zeros((frames, 2), np.float32),
        actions=np.zeros((frames - 1, 2), np.float32),
        controller=np.zeros(frames - 1, np.int8),
        true_progress=None,
    )
    signal = opinion(long, "a@1", np.linspace(0, 1, frames))

    class One(list):  # type: ignore[type-arg]
        root, fps = Path("one"), 30.0

    page = render(One([long]), {"a": [signal]}, [0], {})  # type: ignore[arg-type]
    shown = int(re.findall(r'"frames":(\d+)', page)[0])
    assert shown == 226  # every fourth of 901, so that no more than 300 are left
    assert '"fps":2.5' in page


def test_the_page_works_in_a_browser(browser: Browser, folder: Path) -> None:  # noqa: F811
    assert show(folder) == 0
    context = browser.new_context(viewport={"width": 375, "height": 800})
    page = context.new_page()
    trouble: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / "page.html").as_uri())
    page.wait_for_function("document.getElementById('video').readyState >= 2")
    assert trouble == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [(folder / "page.html").as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.locator("svg .line[data-judge]").count() == 4 * 3
    assert page.locator("#tracks .curve").count() >= 4  # truth and three judges in the player, and what else there is
    context.close()
