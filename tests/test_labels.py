"""Labels of people: what a file says arrives at the right episode and step, and every mistake is named with its row."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sample import sample_episodes

from reward_models.targets import UNLABELLED as TARGETS_UNLABELLED
from reward_models.targets import HumanLabels, episode_targets
from robo_rl.data import concat, read_episodes, write_episodes
from robo_rl.data.labels import (
    UNLABELLED,
    Labels,
    join_labels,
    read_directions,
    read_labels,
    read_outcomes,
    read_preferences,
)
from robo_rl.data.subtasks import read_keyframes, read_subtasks
from robo_rl.errors import DataError

N = UNLABELLED


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """e0: 6 steps, success; e1: 9, failure; e2: 8, timeout; e3: 5, unknown. e0 and e2 have one instruction."""
    root = tmp_path_factory.mktemp("labels") / "data"
    write_episodes(root, sample_episodes())
    return read_episodes(root)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- directions -----------------------------------------------------------------------------------------


def test_a_direction_is_of_the_step_after_the_frame(episodes, tmp_path):
    path = write(tmp_path / "d.csv", "episode_index,frame_index,label\n0,0,1\n0,5,-1\n3,2,0\n")
    found = read_directions(path, episodes)
    assert found[0].tolist() == [1, N, N, N, N, -1]
    assert found[3].tolist() == [N, N, 0, N, N]
    assert set(found) == {0, 3}
    assert found[0].dtype == np.int8


def test_a_range_labels_the_steps_between_its_frames(episodes, tmp_path):
    # from frame 1 to frame 4 there are three steps: 1, 2, 3; the next range begins where this one ends
    path = write(tmp_path / "d.csv", "from_frame,to_frame,label,episode_id\n1,4,progressive,e0\n4, 6 ,Regressive,e0\n")
    assert read_directions(path, episodes)[0].tolist() == [N, 1, 1, 1, -1, -1]


def test_parquet_says_the_same_as_csv(episodes, tmp_path):
    rows = {"episode_index": [1, 1], "from_frame": [0, 5], "to_frame": [3, 9], "label": [1, -1]}
    pq.write_table(pa.table(rows), tmp_path / "d.parquet")
    text = "episode_index,from_frame,to_frame,label\n1,0,3,+1\n1,5,9,regressive\n"
    one = read_directions(tmp_path / "d.parquet", episodes)
    other = read_directions(write(tmp_path / "d.csv", text), episodes)
    np.testing.assert_array_equal(one[1], other[1])
    assert one[1].tolist() == [1, 1, 1, N, N, -1, -1, -1, -1]


def test_numbers_are_those_of_the_dataset_also_in_a_selection(episodes, tmp_path):
    path = write(tmp_path / "d.csv", "episode_index,frame_index,label\n2,0,1\n")
    part = episodes.select([3, 2])
    assert set(read_directions(path, part)) == {1}  # episode 2 stands second
    with pytest.raises(DataError, match="row 1: episode_index 2: no such episode"):
        read_directions(path, episodes.select([0, 1]))


def test_in_several_datasets_an_episode_goes_by_its_id(episodes, tmp_path):
    both = concat([episodes.select([2]), episodes.select([0, 1])])
    path = write(tmp_path / "d.csv", "episode_id,frame_index,label\ne1,0,1\n")
    assert set(read_directions(path, both)) == {2}


# --- outcomes -------------------------------------------------------------------------------------------


def test_a_flag_fills_an_unknown_outcome_and_no_other(episodes, tmp_path):
    path = write(tmp_path / "s.csv", "episode_index,success\n3,yes\n0,TRUE\n1,0\n")
    assert read_outcomes(path, episodes) == {3: True}
    pq.write_table(pa.table({"episode_index": [3], "success": [False]}), tmp_path / "s.parquet")
    assert read_outcomes(tmp_path / "s.parquet", episodes) == {3: False}


# --- preferences ----------------------------------------------------------------------------------------


def test_preferences_name_two_episodes_or_parts_of_them(episodes, tmp_path):
    text = "episode_a,episode_b,preferred,from_a,to_a,from_b,to_b\ne0,2,b,,,,\n0,0,a,3,6,0,3\n2,0,tie,,,,\n"
    first, second, third = read_preferences(write(tmp_path / "p.csv", text), episodes)
    assert (first.pair, first.frames_a, first.frames_b) == ((2, 0), None, None)
    assert (second.pair, second.frames_a, second.frames_b) == ((0, 0), (3, 6), (0, 3))
    assert third.pair is None


# --- sub-tasks ------------------------------------------------------------------------------------------


def test_subtasks_become_boundaries(episodes, tmp_path):
    text = "episode_index,from_frame,to_frame,name\n1,1,4,reach\n1,4,9,lift\n3,0,5,\n"
    found = read_subtasks(write(tmp_path / "b.csv", text), episodes)
    assert found[1].frames.tolist() == [1, 4, 9]
    assert found[1].names == ("reach", "lift")
    assert found[3].frames.tolist() == [0, 5]


def keyframes(folder: Path, *spans: tuple[int, int], key: str = "anotation") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = [{key: f"subtask{n}", "start_frame_id": a, "end_frame_id": b} for n, (a, b) in enumerate(spans, 1)]
    return write(folder / "annotated_keyframes.json", json.dumps(entries))


@pytest.mark.parametrize("key", ["anotation", "annotation"])
def test_annotated_keyframes_go_to_the_episode_of_their_folder(episodes, tmp_path, key):
    keyframes(tmp_path / "e0", (0, 2), (2, 6), key=key)
    file = keyframes(tmp_path / "e2", (1, 8), key=key)
    found = read_subtasks(tmp_path, episodes)
    assert {place: one.frames.tolist() for place, one in found.items()} == {0: [0, 2, 6], 2: [1, 8]}
    assert found[0].names == ("subtask1", "subtask2")
    assert set(read_subtasks(file, episodes)) == {2}


def test_the_recorded_keyframes_are_understood(shared_data):
    found = read_keyframes(shared_data / "clean_table" / "episode_001" / "annotated_keyframes.json", last=1276)
    assert found.frames[[0, 1, -1]].tolist() == [8, 147, 1263]
    assert len(found.names) == 16


# --- together -------------------------------------------------------------------------------------------


def test_labels_are_what_fitting_takes(episodes, tmp_path):
    labels = read_labels(
        episodes,
        direction=write(tmp_path / "d.csv", "episode_index,frame_index,label\n0,1,-1\n"),
        subtasks=write(tmp_path / "b.csv", "episode_index,from_frame,to_frame\n3,0,1\n3,1,5\n"),
        success=write(tmp_path / "s.csv", "episode_index,success\n3,no\n"),
        preferences=write(tmp_path / "p.csv", "episode_a,episode_b,preferred\n0,2,a\n0,2,tie\n"),
    )
    pairs = [one.pair for one in labels.preferences if one.pair is not None]
    human = HumanLabels(
        direction=labels.direction, boundaries=labels.boundaries, success=labels.success, preferences=pairs
    )
    targets = episode_targets(episodes, human)
    assert human.preferences == [(0, 2)]
    assert targets[0].direction is not None
    assert targets[0].direction.tolist() == [N, -1, N, N, N, N]
    # two sub-tasks: half of the progress at frame 1, the rest over four steps
    np.testing.assert_allclose(targets[3].progress, [0, 0.5, 0.625, 0.75, 0.875, 1.0])
    assert targets[3].outcome == 0.0
    assert UNLABELLED == TARGETS_UNLABELLED


def test_labels_of_several_datasets_are_moved_and_joined():
    one = Labels(direction={0: np.array([1, N], np.int8)}, success={1: True})
    other = Labels(direction={0: np.array([0, 0, 0], np.int8)})
    both = join_labels([one, other.moved(2)])
    assert set(both.direction) == {0, 2}
    assert both.success == {1: True}
    more = join_labels([one, Labels(direction={0: np.array([N, -1], np.int8)})])
    assert more.direction[0].tolist() == [1, -1]
    with pytest.raises(DataError, match="step 0 of episode 0 is labelled twice"):
        join_labels([one, one])


DIRECTION, RANGE = "episode_index,frame_index,label\n", "episode_index,from_frame,to_frame,label\n"
PAIR = "episode_a,episode_b,preferred\n"
MISTAKES = {
    # name: (reader, file, text, what is said)
    "no episode": (
        read_directions,
        "x.csv",
        DIRECTION + "0,0,1\n9,0,1\n",
        "row 2: episode_index 9",
    ),
    "no id": (
        read_directions,
        "x.csv",
        "episode_id,frame_index,label\nno,0,1\n",
        "row 1: episode_id no: no such episode",
    ),
    "half": (read_directions, "x.csv", DIRECTION + "0.5,0,1\n", "row 1: episode_index 0.5"),
    "empty cell": (read_directions, "x.csv", DIRECTION + "0,0,\n", "row 1: label is empty"),
    "word": (
        read_directions,
        "x.csv",
        DIRECTION + "0,0,sideways\n",
        "row 1: label 'sideways' is none of 1, 0, -1",
    ),
    "two": (read_directions, "x.csv", DIRECTION + "0,0,2\n", "row 1: label '2' is none of"),
    "final": (
        read_directions,
        "x.csv",
        DIRECTION + "0,6,1\n",
        "row 1: frame 6 of episode 'e0' has no step after it; those are 0 to 5",
    ),
    "not a number": (
        read_directions,
        "x.csv",
        DIRECTION + "0,first,1\n",
        "row 1: frame_index must be a whole number, got 'first'",
    ),
    "beyond": (
        read_directions,
        "x.csv",
        RANGE + "1,2,10,1\n",
        "row 1: frame 10 is beyond episode 'e1', whose frames are 0 to 9",
    ),
    "negative": (
        read_directions,
        "x.csv",
        RANGE + "1,-1,3,1\n",
        "row 1: frame -1 is beyond episode 'e1'",
    ),
    "backwards": (
        read_directions,
        "x.csv",
        RANGE + "1,3,3,1\n",
        "row 1: to_frame 3 must come after from_frame 3",
    ),
    "overlap": (
        read_directions,
        "x.csv",
        RANGE + "1,0,4,1\n0,0,4,1\n1,3,6,0\n",
        "row 3: step 3 of episode 'e1' is labelled already, by row 1; ranges overlap",
    ),
    "no frames": (read_directions, "x.csv", "episode_index,label\n1,1\n", "row 1: from_frame is missing"),
    "no label": (read_directions, "x.csv", "episode_index,frame_index\n1,1\n", "column 'label' is missing"),
    "no key": (
        read_directions,
        "x.csv",
        "frame_index,label\n1,1\n",
        "column 'episode_index' or 'episode_id' is missing",
    ),
    "no rows": (read_directions, "x.csv", DIRECTION, "there are no rows"),
    "nothing": (read_directions, "x.csv", "", "column 'label' is missing; the file has none"),
    "too wide": (read_directions, "x.csv", DIRECTION + "0,0,1,1\n", "row 1: it has more cells"),
    "other file": (read_directions, "x.txt", "", "labels are a .csv or a .parquet file"),
    "damaged": (read_directions, "x.parquet", "PAR1", "not readable as parquet"),
    "contradiction": (
        read_outcomes,
        "x.csv",
        "episode_index,success\n2,true\n",
        "row 1: episode 'e2' ended in 'timeout' as recorded; only an unknown outcome can be set",
    ),
    "maybe": (read_outcomes, "x.csv", "episode_index,success\n3,maybe\n", "row 1: success 'maybe' is none of true"),
    "twice": (
        read_outcomes,
        "x.csv",
        "episode_index,success\n3,true\n3,true\n",
        "row 2: episode 'e3' is labelled already, by row 1",
    ),
    "c": (
        read_preferences,
        "x.csv",
        PAIR + "0,2,c\n",
        "row 1: preferred 'c' is none of a, b, tie",
    ),
    "itself": (read_preferences, "x.csv", PAIR + "0,e0,a\n", "row 1: episode_a and episode_b"),
    "other task": (
        read_preferences,
        "x.csv",
        PAIR + "0,1,a\n",
        "row 1: the instructions differ",
    ),
    "half a part": (
        read_preferences,
        "x.csv",
        "episode_a,episode_b,preferred,from_a,to_a\n0,2,a,1,\n",
        "row 1: to_a is missing",
    ),
    "long part": (
        read_preferences,
        "x.csv",
        "episode_a,episode_b,preferred,from_b,to_b\n0,2,a,1,9\n",
        "row 1: frame 9 is beyond episode 'e2', whose frames are 0 to 8",
    ),
    "overlapping sub-tasks": (
        read_subtasks,
        "x.csv",
        "episode_index,from_frame,to_frame\n0,0,3\n0,2,5\n",
        "row 2: sub-tasks of episode 'e0' overlap: one begins at frame 2, before 3",
    ),
    "gap": (
        read_subtasks,
        "x.csv",
        "episode_index,from_frame,to_frame\n0,0,3\n0,4,5\n",
        "row 2: there is a gap in episode 'e0' from frame 3 to 4",
    ),
    "long sub-task": (
        read_subtasks,
        "x.csv",
        "episode_index,from_frame,to_frame\n0,0,7\n",
        "row 1: frame 7 is beyond episode 'e0', whose frames are 0 to 6",
    ),
    "no length": (
        read_subtasks,
        "x.csv",
        "episode_index,from_frame,to_frame\n0,4,4\n",
        "row 1: a sub-task of episode 'e0' ends at frame 4, but begins at 4",
    ),
    "not a list": (read_subtasks, "e0/x.json", "{}", "must be a list of sub-tasks"),
    "no json": (read_subtasks, "e0/x.json", "[", "cannot be read"),
    "no frame": (
        read_subtasks,
        "e0/x.json",
        '[{"start_frame_id": 0}]',
        "row 1: start_frame_id and end_frame_id must be",
    ),
    "truth": (
        read_subtasks,
        "e0/x.json",
        '[{"start_frame_id": 0, "end_frame_id": true}]',
        "row 1: start_frame_id and end_frame_id must be whole numbers",
    ),
    "long keyframes": (
        read_subtasks,
        "e0/x.json",
        '[{"start_frame_id": 0, "end_frame_id": 2}, {"start_frame_id": 2, "end_frame_id": 60}]',
        "row 2: frame 60 is beyond episode 'e0', whose frames are 0 to 6; if frames were left out",
    ),
    "stranger": (
        read_subtasks,
        "e7/x.json",
        '[{"start_frame_id": 0, "end_frame_id": 2}]',
        "no episode is called 'e7'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_file_and_row(episodes, tmp_path, name):
    reader, file, text, said = MISTAKES[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    path = write(tmp_path / file, text)
    with pytest.raises(DataError) as error:
        reader(path, episodes)
    assert said in str(error.value)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_file_or_folder_without_labels_is_named(episodes, tmp_path):
    with pytest.raises(DataError, match=r"none\.csv: no such file"):
        read_directions(tmp_path / "none.csv", episodes)
    with pytest.raises(DataError, match=r"there is no \*/annotated_keyframes\.json"):
        read_subtasks(tmp_path, episodes)
