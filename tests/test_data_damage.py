"""One damaged episode: named where a dataset must be whole, left out where that is asked for, and nothing else lost."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sample import SIZE, episode

from robo_rl.data import read_episodes, write_episodes
from robo_rl.data import writer as writer_module
from robo_rl.data.damage import instruction_fault
from robo_rl.data.doctor import examine
from robo_rl.errors import DataError

STEPS, EPISODES = 12, 6  # 13 rows an episode: episode e has rows 13 e to 13 e + 12
WRIST = "videos/observation.images.wrist/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """All episodes of a camera in one video file."""
    root = tmp_path_factory.mktemp("damage") / "saved"
    write_episodes(root, [episode(n, STEPS) for n in range(EPISODES)])
    return root


@pytest.fixture
def copied(saved, tmp_path) -> Path:
    shutil.copytree(saved, tmp_path / "copy", ignore=shutil.ignore_patterns(".cache"))
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def two_files(tmp_path_factory) -> Path:
    """Episodes 0 to 2 in the first data and video files, 3 to 5 in the second."""
    root = tmp_path_factory.mktemp("damage") / "two"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "FILE_FRAMES", 3 * (STEPS + 1))
        write_episodes(root, [episode(n, STEPS) for n in range(EPISODES)])
    return root


def spoil(path: Path, share: float, width: int = 20) -> None:
    """Other bytes at a place of the file."""
    data = bytearray(path.read_bytes())
    at = int(len(data) * share)
    data[at : at + width] = bytes(byte ^ 0x5A for byte in data[at : at + width])
    path.write_bytes(bytes(data))


def edit_rows(root: Path, change) -> None:
    """Change meta/episodes, one dictionary an episode."""
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def nowhere(rows: list[dict]) -> None:
    rows[4]["videos/observation.images.wrist/file_index"] = None


def set_nan(root: Path) -> None:
    (path,) = (root / "data").rglob("*.parquet")
    table = pq.read_table(path)
    values = table["action"].to_pylist()
    values[2 * 13 + 5] = [0.0, float("nan")]
    column = pa.array(values, table.schema.field("action").type)
    pq.write_table(table.set_column(table.column_names.index("action"), "action", column), path)


DAMAGE = {
    # a few bytes in the middle: 0.45 of the file lies in episode 2 (measured; sizes of episodes are alike)
    "bytes": (lambda root: spoil(root / WRIST, 0.45), [2], "the video is damaged at frame"),
    "more bytes": (lambda root: spoil(root / WRIST, 0.45, 400), [2], "the video"),
    # what is cut off is lost, what comes before is not
    "cut": (lambda root: cut(root / WRIST, 0.6), [3, 4, 5], "the video cannot be decoded from frame"),
    "gone": (lambda root: (root / WRIST).unlink(), [0, 1, 2, 3, 4, 5], "the video is missing"),
    "no camera": (lambda root: edit_rows(root, nowhere), [4], "does not say where the frames of camera"),
    "not finite": (set_nan, [2], "action is not finite at frame 5"),
}


@pytest.mark.parametrize("name", [name for name in DAMAGE if name != "gone"])
def test_damaged_episodes_are_left_out_and_all_others_are_as_before(saved, copied, name):
    damage, lost, said = DAMAGE[name]
    damage(copied)
    whole = read_episodes(saved)
    found, bad = read_episodes(copied, skip_bad=True)
    assert [one.number for one in bad] == lost
    assert [one.episode_id for one in bad] == [f"e{number}" for number in lost]
    assert all(said in one.why for one in bad[:1])
    assert found.numbers.tolist() == [number for number in range(EPISODES) if number not in lost]
    for one in found:
        before = whole[one.index]
        assert one.episode_id == before.episode_id
        for camera in ("front", "wrist"):
            np.testing.assert_array_equal(one.images[camera], before.images[camera])
        np.testing.assert_array_equal(one.actions, before.actions)
    # a second reading finds the same without decoding
    again, still_bad = read_episodes(copied, skip_bad=True)
    assert (again.fingerprint, still_bad) == (found.fingerprint, bad)


@pytest.mark.parametrize("name", DAMAGE)
def test_without_leave_to_skip_the_first_damaged_episode_is_named(copied, name):
    damage, lost, _ = DAMAGE[name]
    damage(copied)
    for _ in range(2):  # also after a reading that tolerated it
        with pytest.raises(DataError) as error:
            read_episodes(copied)
        assert f"episode {lost[0]}" in str(error.value)
        assert "\n" not in str(error.value)
        if len(lost) < EPISODES:
            read_episodes(copied, skip_bad=True)


def test_the_second_tolerant_reading_decodes_nothing(copied, monkeypatch):
    spoil(copied / WRIST, 0.45)
    read_episodes(copied, skip_bad=True)
    monkeypatch.setattr("robo_rl.data.cache.read_frames", lambda *given: pytest.fail(f"decoded {given} again"))
    assert len(read_episodes(copied, skip_bad=True)[0]) == EPISODES - 1


def test_a_mended_dataset_is_whole_again(saved, copied):
    spoil(copied / WRIST, 0.45)
    read_episodes(copied, skip_bad=True)
    shutil.copy(saved / WRIST, copied / WRIST)
    assert len(read_episodes(copied)) == EPISODES
    assert read_episodes(copied, skip_bad=True)[1] == []
    assert read_episodes(copied).fingerprint == read_episodes(saved).fingerprint


def test_nothing_is_skipped_of_a_sound_dataset(saved):
    found, bad = read_episodes(saved, skip_bad=True)
    assert bad == []
    assert found.fingerprint == read_episodes(saved).fingerprint


def test_a_lost_file_costs_only_its_own_episodes(two_files, tmp_path):
    whole = read_episodes(two_files)
    for lost, file in (([0, 1, 2], "file-000"), ([3, 4, 5], "file-001")):
        root = tmp_path / file
        shutil.copytree(two_files, root, ignore=shutil.ignore_patterns(".cache"))
        cut(root / f"data/chunk-000/{file}.parquet", 0.5)
        found, bad = read_episodes(root, skip_bad=True)
        assert [one.number for one in bad] == lost
        assert "not readable as parquet" in bad[0].why
        for one in found:
            np.testing.assert_array_equal(one.state, whole[one.index].state)
            np.testing.assert_array_equal(one.images["front"], whole[one.index].images["front"])


def test_an_unopenable_video_costs_only_its_own_episodes(two_files, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(two_files, root, ignore=shutil.ignore_patterns(".cache"))
    cut(root / WRIST, 0.0)
    assert [one.number for one in read_episodes(root, skip_bad=True)[1]] == [0, 1, 2]


def test_an_episode_without_frames_is_left_out(copied):
    # episode 3 ends before it began: its 13 rows leave data/, and the later ones move up
    (path,) = (copied / "data").rglob("*.parquet")
    table = pq.read_table(path)
    kept = table.filter(pa.array(np.asarray(table["episode_index"]) != 3))
    index = pa.array(np.arange(len(kept)))
    pq.write_table(kept.set_column(kept.column_names.index("index"), "index", index), path)

    def shorten(rows: list[dict]) -> None:
        rows[3] |= {"length": 0, "dataset_to_index": 39}
        for row in rows[4:]:
            row |= {
                "dataset_from_index": row["dataset_from_index"] - 13,
                "dataset_to_index": row["dataset_to_index"] - 13,
            }

    edit_rows(copied, shorten)
    info = copied / "meta" / "info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"total_frames": 65}))
    with pytest.raises(DataError, match="episode 3 has 0 frames; an episode needs at least two"):
        read_episodes(copied)
    found, bad = read_episodes(copied, skip_bad=True)
    assert [(one.number, one.why) for one in bad] == [(3, "it has 0 frames; an episode needs at least two")]
    assert [one.episode_id for one in found] == ["e0", "e1", "e2", "e4", "e5"]
    np.testing.assert_array_equal(found[3].state, episode(4, STEPS).state)
    errors = [finding.where for finding in examine(copied) if finding.severity == "error"]
    assert errors == ["episode e3"]


def test_images_in_tables_are_skipped_one_by_one(saved, copied):
    # the form of lerobot's image mode: encoded pictures in the data file
    import io

    from PIL import Image

    whole = read_episodes(saved)
    cells = []
    for row in range(EPISODES * 13):
        handle = io.BytesIO()
        Image.fromarray(np.asarray(whole.flat_images("front")[row])).save(handle, "png")
        cells.append({"bytes": handle.getvalue(), "path": None})
    cells[2 * 13 + 4]["bytes"] = b"no picture"
    (path,) = (copied / "data").rglob("*.parquet")
    key = "observation.images.front"
    pq.write_table(pq.read_table(path).append_column(key, pa.array(cells)), path)
    info = copied / "meta" / "info.json"
    facts = json.loads(info.read_text())
    facts["features"][key] = {"dtype": "image", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    info.write_text(json.dumps(facts))
    found, bad = read_episodes(copied, skip_bad=True)
    assert [one.number for one in bad] == [2]
    assert "image 30 of 'observation.images.front' cannot be decoded" in bad[0].why
    np.testing.assert_array_equal(found[2].images["front"], whole[3].images["front"])


def test_when_no_episode_is_left_it_is_an_error(copied):
    (copied / WRIST).unlink()
    with pytest.raises(DataError, match=r"no episode can be used; episode 0 \('e0'\): .*the video is missing"):
        read_episodes(copied, skip_bad=True)


@pytest.mark.parametrize("name", [name for name in DAMAGE if name != "gone"])
def test_doctor_names_the_episode_and_examines_the_rest(copied, name):
    damage, lost, said = DAMAGE[name]
    damage(copied)
    findings = examine(copied)
    errors = [finding for finding in findings if finding.severity == "error"]
    assert [finding.where for finding in errors] == [f"episode e{number}" for number in lost]
    assert said in errors[0].what
    assert any(finding.where.startswith("task ") for finding in findings)  # the other checks were made


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("push the cube", None),
        ("推", None),
        ("", "its instruction is empty"),
        (" \n", "its instruction is empty"),
        ("nan", "its instruction is 'nan'"),
        ("None", "its instruction is 'None'"),
        ("--- 3", "its instruction is '--- 3'"),
    ],
)
def test_instructions_that_instruct_nobody(text, fault):
    assert instruction_fault(text) == fault


def test_a_set_goes_to_another_process_without_its_frames(saved):
    episodes = read_episodes(saved)
    packed = pickle.dumps(episodes.select([4, 1]))
    assert len(packed) < 50_000  # 2 x 78 frames of 3 kB would be 480 kB
    there = pickle.loads(packed)
    assert there.fingerprint == episodes.select([4, 1]).fingerprint
    np.testing.assert_array_equal(there[0].images["wrist"], episodes[4].images["wrist"])


def test_forgotten_frames_are_read_again(saved):
    episodes = read_episodes(saved)
    before = np.array(episodes[3].images["front"])
    view = episodes[3].images["front"]
    episodes.forget_frames()
    np.testing.assert_array_equal(view, before)


PEAK = """
import sys
from robo_rl.data import read_episodes
episodes = read_episodes(sys.argv[1])
for episode in episodes:
    sum(int(frames.max()) for frames in episode.images.values())
    episodes.forget_frames()
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(line.split()[1]) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_reading_takes_no_more_memory_for_ten_times_as_many_frames(tmp_path):
    peaks = []
    for name, count in (("one", 1), ("ten", 10)):
        images = {"front": np.zeros((51, 256, 256, 3), np.uint8)}  # 10 MB an episode
        write_episodes(tmp_path / name, (episode(n, 50, images=images) for n in range(count)))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / name)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    # 10 and 100 MB of frames; keeping them would cost 90 MB more
    assert peaks[1] < peaks[0] + 40, peaks
