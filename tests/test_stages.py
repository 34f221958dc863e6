"""Stages: skipped when done, redone when an input changed, continued after a kill, stopped on an error."""

from __future__ import annotations

import functools
import io
import json
import os
import time
from pathlib import Path

import pytest

from robo_rl.errors import DataError, RoboRLError
from robo_rl.loops.progress import Display, spoken
from robo_rl.loops.stages import Stage, run_stages


def write(folder: Path, report, text: str, log: Path) -> None:
    with log.open("a") as handle:
        handle.write(text + "\n")
    (folder / "out.txt").write_text(text)
    report(1, 1)


def die(folder: Path, report, marker: Path) -> None:
    """Killed the first time, after half its work; continues the second time."""
    half = folder / "half.txt"
    if not marker.exists():
        half.write_text("half")
        marker.write_text("died")
        os._exit(9)
    (folder / "out.txt").write_text(half.read_text() + " and half")


def refuse(folder: Path, report) -> None:
    raise DataError("episode 'x': no frames")


def slow(folder: Path, report) -> None:
    time.sleep(60)


def make_stages(log: Path, second: str = "b") -> list[Stage]:
    return [
        Stage(name="one", work=functools.partial(write, text="a", log=log), inputs={"k": 1}),
        Stage(name="two", work=functools.partial(write, text=second, log=log), inputs={"k": second}, after=("one",)),
        Stage(name="three", work=functools.partial(write, text="c", log=log), inputs={}, after=("two",)),
    ]


def run(folder: Path, stages: list[Stage], slots: int = 2):
    return run_stages(folder, stages, slots=slots, display=Display(io.StringIO()))


def test_done_stages_are_skipped_and_a_changed_input_reaches_what_follows(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "run", make_stages(log))
    assert log.read_text().split() == ["a", "b", "c"]
    record = run(tmp_path / "run", make_stages(log))
    assert log.read_text().split() == ["a", "b", "c"]
    assert record.skipped == ["one", "two", "three"]
    record = run(tmp_path / "run", make_stages(log, second="B"))
    assert log.read_text().split() == ["a", "b", "c", "B", "c"]
    assert record.skipped == ["one"]
    facts = json.loads((tmp_path / "run/stages/two/stage.json").read_text())
    assert facts["inputs"] == {"k": "B"}
    assert facts["seconds"] >= 0


def test_a_killed_stage_leaves_nothing_and_finds_its_own_work_again(tmp_path):
    stage = Stage(name="fragile", work=functools.partial(die, marker=tmp_path / "marker"), inputs={})
    with pytest.raises(RoboRLError, match="stage fragile: its process ended with exit code 9"):
        run(tmp_path / "run", [stage])
    assert not (tmp_path / "run/stages/fragile").exists()
    run(tmp_path / "run", [stage])
    assert (tmp_path / "run/stages/fragile/out.txt").read_text() == "half and half"
    assert not (tmp_path / "run/stages/fragile.partial").exists()


def test_an_error_is_one_line_and_stops_the_others(tmp_path):
    stages = [Stage(name="slow", work=slow, inputs={}), Stage(name="bad", work=refuse, inputs={})]
    started = time.monotonic()
    with pytest.raises(RoboRLError, match="stage bad: episode 'x': no frames"):
        run(tmp_path / "run", stages)
    assert time.monotonic() - started < 30


def test_two_runs_in_one_folder_are_refused(tmp_path):
    import fcntl

    (tmp_path / "run").mkdir()
    with (tmp_path / "run/.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(RoboRLError, match="another run is working in this folder"):
            run(tmp_path / "run", make_stages(tmp_path / "log"))


def test_plain_lines_say_rate_and_time_left():
    stream = io.StringIO()
    display = Display(stream, every=0.0)
    display.started("train")
    display.progress("train", 10, 100)
    time.sleep(0.05)
    display.progress("train", 20, 100)
    display.finished("train", 3.0)
    text = stream.getvalue()
    assert "train: 20/100 (" in text
    assert "/s, " in text
    assert "left)" in text
    assert text.endswith("train: done in 3.0 s\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.2 s"), (65, "1 min 05 s"), (3600, "1 h 00 min"), (3700, "1 h 01 min")]
)
def test_durations_are_spoken(seconds, text):
    assert spoken(seconds) == text
