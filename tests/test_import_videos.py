"""Videos without actions become a dataset: the right frames, the right words, nothing half-written, little memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scoring_toy import ToyJudge

from reward_models.scoring import Work, score_dataset
from robo_rl.app.commands import import_dataset
from robo_rl.data import read_episodes, read_reward_table
from robo_rl.data.doctor import examine
from robo_rl.data.import_videos import ImportConfig, import_videos
from robo_rl.data.labels import read_paraphrases
from robo_rl.data.subtasks import read_subtasks
from robo_rl.data.video import VideoWriter
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Controller, Outcome

HEIGHT, WIDTH = 48, 64
TEXTS = ["clear the table", "tidy up the table"]


def film(path: Path, count: int, *, fps: float = 30.0, height: int = HEIGHT, width: int = WIDTH) -> None:
    """Frame n is grey of brightness 5 n, so that every frame says which one it is."""
    writer = VideoWriter(path, fps=fps, height=height, width=width)
    for number in range(count):
        writer.add(np.full((1, height, width, 3), 5 * number % 255, np.uint8))
    writer.close()


def keyframes(folder: Path, *frames: int) -> None:
    parts = [
        {"anotation": f"subtask{n}", "start_frame_id": a, "end_frame_id": b}
        for n, (a, b) in enumerate(itertools.pairwise(frames), start=1)
    ]
    (folder / "annotated_keyframes.json").write_text(json.dumps(parts))


@pytest.fixture
def recordings(tmp_path) -> Path:
    """Two episodes with two cameras, 31 and 33 frames at 30 a second; the first has sub-tasks."""
    folder = tmp_path / "recordings"
    for name, count in (("episode_001", 31), ("episode_002", 33)):
        for camera in ("high", "wrist"):
            film(folder / name / f"{camera}.mp4", count)
    keyframes(folder / "episode_001", 2, 10, 28)
    (folder / "task_instruction.json").write_text(json.dumps(TEXTS))
    (folder / "notes").mkdir()
    return folder


def shown(images: np.ndarray) -> list[int]:
    """Which frames of the video these are."""
    return [round(float(image.mean()) / 5) for image in images]


def test_all_frames_come_as_they_are(recordings, tmp_path):
    found = import_videos(recordings, tmp_path / "data")
    episodes = read_episodes(tmp_path / "data")
    assert (found.episodes, found.frames) == (2, 64)
    assert [e.episode_id for e in episodes] == ["episode_001", "episode_002"]
    assert (episodes.fps, episodes.cameras) == (30.0, ("high", "wrist"))
    assert shown(episodes[0].images["high"]) == list(range(31))
    assert episodes[1].images["wrist"].shape == (33, HEIGHT, WIDTH, 3)
    assert read_subtasks(tmp_path / "data" / "labels" / "subtasks.csv", episodes)[0].frames.tolist() == [2, 10, 28]


def test_fewer_frames_a_second_keep_the_first_the_nearest_and_the_last(recordings, tmp_path):
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=10))
    episodes = read_episodes(tmp_path / "data")
    assert episodes.fps == 10.0
    assert shown(episodes[0].images["high"]) == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert shown(episodes[1].images["wrist"]) == [*range(0, 31, 3), 32]
    # boundaries 2, 10, 28 are nearest to the frames 3, 9, 27 that were kept: numbers 1, 3, 9
    labels = read_subtasks(tmp_path / "data" / "labels" / "subtasks.csv", episodes)
    assert {place: part.frames.tolist() for place, part in labels.items()} == {0: [1, 3, 9]}
    assert labels[0].names == ("subtask1", "subtask2")


def test_a_rate_that_does_not_divide_takes_the_nearest_frames(recordings, tmp_path):
    # 30 / 7 = 4.29 frames apart: 0, 4.29, 8.57, 12.86, 17.14, 21.43, 25.71, 30
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=7))
    assert shown(read_episodes(tmp_path / "data")[0].images["high"]) == [0, 4, 9, 13, 17, 21, 26, 30]


@pytest.mark.parametrize(("size", "expected"), [(32, (24, 32)), (40, (30, 40)), (64, (48, 64)), (900, (48, 64))])
def test_frames_are_made_smaller_and_keep_their_shape(recordings, tmp_path, size, expected):
    import_videos(recordings, tmp_path / "data", ImportConfig(size=size, fps=5))
    first = read_episodes(tmp_path / "data")[0]
    assert first.images["high"].shape[1:3] == expected
    assert shown(first.images["high"]) == [0, 6, 12, 18, 24, 30]


def test_words_and_outcomes(recordings, tmp_path):
    (recordings / "episode_002" / "task_instruction.json").write_text('"fold the cloth"')
    (recordings / "episode_001" / "task_instruction.json").write_text(json.dumps([*TEXTS, "räum auf"]))
    with pytest.raises(DataError, match=r"episode_002: there are 1 instructions; --instruction=2 is none"):
        import_videos(recordings, tmp_path / "data", ImportConfig(instruction=2))
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=5))
    first, second = read_episodes(tmp_path / "data")
    assert (first.instruction, second.instruction) == ("clear the table", "fold the cloth")
    assert (first.outcome, second.outcome) == (Outcome.SUCCESS, Outcome.UNKNOWN)
    assert set(first.controller) == {Controller.HUMAN}
    found = read_paraphrases(tmp_path / "data")
    assert found == {"clear the table": [*TEXTS, "räum auf"], "fold the cloth": ["fold the cloth"]}


def test_another_paraphrase(recordings, tmp_path):
    import_videos(recordings, tmp_path / "data", ImportConfig(instruction=1, fps=5))
    assert {e.instruction for e in read_episodes(tmp_path / "data")} == {"tidy up the table"}
    assert read_paraphrases(tmp_path / "data") == {"tidy up the table": TEXTS}


def test_there_is_one_action_called_none_and_no_state(recordings, tmp_path):
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=5))
    episodes = read_episodes(tmp_path / "data")
    assert episodes.flat_actions.shape == (13, 1)
    assert not episodes.flat_actions.any()
    assert episodes.flat_state.shape == (13, 0)
    features = json.loads((tmp_path / "data" / "meta" / "info.json").read_text())["features"]
    assert features["action"]["names"] == ["none"]
    assert "observation.state" not in features
    findings = [(finding.severity, finding.what) for finding in examine(tmp_path / "data")]
    assert ("note", "there are no actions") in findings
    assert not any("actions and states" in what or "never changes" in what for _, what in findings)


def test_lerobot_opens_it(recordings, tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    import_videos(recordings, tmp_path / "data", ImportConfig(fps=5))
    dataset = LeRobotDataset("local/imported", root=tmp_path / "data", video_backend="pyav")
    assert (dataset.num_episodes, dataset.num_frames) == (2, 13)
    assert dataset[7]["task"] == "clear the table"
    assert round(float(dataset[7]["observation.images.high"].mean()) * 255 / 5) == 6


def test_a_judge_scores_what_was_imported(recordings, tmp_path):
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=5))
    episodes = read_episodes(tmp_path / "data")
    judge = ToyJudge(cameras=("high", "wrist"))
    score_dataset(judge, Work(episodes=episodes, out=tmp_path / "t.parquet"), say=lambda text: None)
    rising = read_reward_table(tmp_path / "t.parquet", episodes)[0].progress
    assert (np.diff(rising) > 0).all()


def test_cameras_that_stop_a_little_apart_are_cut_to_the_shortest(recordings, tmp_path):
    film(recordings / "episode_002" / "wrist.mp4", 30)
    import_videos(recordings, tmp_path / "data", ImportConfig(fps=10))
    episode = read_episodes(tmp_path / "data")[1]
    assert shown(episode.images["high"]) == [*shown(episode.images["wrist"])[:-1], 30]
    assert shown(episode.images["wrist"]) == [*range(0, 28, 3), 29]


FIRST, SECOND, WORDS = "episode_001", "episode_002", "task_instruction.json"


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = (content.index(b"mdat") + len(content)) // 2
    content[middle : middle + 2] = bytes(byte ^ 0x5A for byte in content[middle : middle + 2])
    path.write_bytes(bytes(content))


def say(text: str) -> Callable[[Path], object]:
    """Other words."""
    return lambda root: (root / WORDS).write_text(text)


def refilm(count: int, *cameras: str, **changes: float) -> Callable[[Path], object]:
    """Other videos of the second episode."""
    return lambda root: [film(root / SECOND / f"{camera}.mp4", count, **changes) for camera in cameras]


MISTAKES = {
    # name: (what is done to the recordings, options, what is said)
    "no folder": (shutil.rmtree, {}, "no such folder"),
    "no videos": (lambda root: [shutil.rmtree(p) for p in root.glob("episode*")], {}, "no sub-folder has videos"),
    "no camera": (lambda root: (root / SECOND / "wrist.mp4").unlink(), {}, "episode_002: camera 'wrist' is missing"),
    "one more": (refilm(9, "top"), {}, "episode_001: camera 'top' is missing; episode_002 has it"),
    "no words": (lambda root: (root / WORDS).unlink(), {}, "task_instruction.json: missing"),
    "no json": (say("["), {}, "task_instruction.json: cannot be read"),
    "number": (say("3"), {}, "must be an instruction, or a list"),
    "empty": (say('["a b", " "]'), {}, "row 2: its instruction is empty"),
    "other words": (say('["a", "b"]'), {"instruction": 2}, "there are 2 instructions; --instruction=2 is none"),
    "more frames": (say('"a"'), {"fps": 60}, "has 30 frames a second; --fps=60 is more than there are"),
    "damaged": (lambda root: spoil(root / SECOND / "high.mp4"), {}, "high.mp4: the video "),
    "no video": (lambda root: (root / FIRST / "wrist.mp4").write_bytes(b"x"), {}, "wrist.mp4: the video cannot be"),
    "stops early": (refilm(12, "wrist"), {}, "wrist.mp4: 12 frames, but high.mp4 has 33"),
    "other rate": (refilm(33, "wrist", fps=25), {}, "wrist.mp4: 25 frames a second, but high.mp4 has 30"),
    "one frame": (refilm(1, "high", "wrist"), {}, "episode_002: 1 frame is left"),
    "long sub-task": (lambda root: keyframes(root / FIRST, 0, 31), {}, "row 1: frame 31 is beyond episode"),
    "short sub-task": (
        lambda root: keyframes(root / FIRST, 0, 2, 30),
        {"fps": 5},
        "row 1: lasts less than a frame at this rate; choose a higher --fps",
    ),
    "other size": (refilm(9, "high", "wrist", height=32), {}, "but the dataset began with"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_leaves_nothing(recordings, tmp_path, name):
    change, options, said = MISTAKES[name]
    change(recordings)
    with pytest.raises(DataError) as error:
        import_videos(recordings, tmp_path / "out" / "data", ImportConfig(**options))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.glob("out/*")) == []


def test_options_that_cannot_be():
    for options, said in (({"size": 4}, "at least 8"), ({"fps": 0.0}, "positive"), ({"instruction": -1}, "from 0")):
        with pytest.raises(ConfigError, match=said):
            ImportConfig(**options)


def test_the_command(recordings, tmp_path, capsys):
    options = Namespace(folder=recordings, out=tmp_path / "data", size=32, fps=5.0, instruction=0)
    assert import_dataset(options) == 0
    assert "2 episodes, 13 frames; sub-tasks of 1 in labels/subtasks.csv" in capsys.readouterr().out
    with pytest.raises(DataError, match="already exists"):
        import_dataset(options)


PEAK = """
import sys
from reward_models.score_summary import peak_memory
from robo_rl.data.import_videos import import_videos
print(import_videos(sys.argv[1], sys.argv[2]).frames, peak_memory())
"""


def test_long_videos_take_no_more_memory(tmp_path):
    peaks = []
    for count in (40, 400):
        folder = tmp_path / str(count)
        film(folder / "e" / "front.mp4", count, height=240, width=320)
        (folder / "task_instruction.json").write_text('"watch"')
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(folder), str(tmp_path / f"data-{count}")],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        frames, peak = map(int, done.stdout.split())
        assert frames == count
        peaks.append(peak / 1e6)
    # 9 and 92 MB of frames
    assert peaks[1] < peaks[0] + 40, peaks


def test_real_recordings(shared_data, tmp_path):
    source = shared_data / "clean_table"
    (tmp_path / "some").mkdir()
    shutil.copy(source / "task_instruction.json", tmp_path / "some")
    (tmp_path / "some" / "episode_001").symlink_to(source / "episode_001")
    import_videos(tmp_path / "some", tmp_path / "data", ImportConfig(size=64, fps=1))
    episodes = read_episodes(tmp_path / "data")
    (one,) = episodes
    # 1277 frames at 30 a second: 0, 30, ..., 1260, and the last
    assert (len(one) + 1, one.fps, one.outcome) == (44, 1.0, Outcome.SUCCESS)
    assert sorted(one.images) == ["cam_high", "cam_left_wrist", "cam_right_wrist"]
    assert one.images["cam_high"].shape[1:3] == (48, 64)
    assert one.instruction == "clean the table"
    assert len(read_paraphrases(tmp_path / "data")["clean the table"]) == 5
    part = read_subtasks(tmp_path / "data" / "labels" / "subtasks.csv", episodes)[0]
    # frame 147 is nearest to 150, the fifth; 1263 to 1260, the forty-second
    assert (part.frames[1], part.frames[-1], len(part.names)) == (5, 42, 16)
