"""Datasets on disk: what is written is read back, and damage is named."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sample import SIZE, episode, nearest, psnr, sample_episodes

from robo_rl.data import EpisodeSet, concat, read_episodes, require, write_episodes
from robo_rl.data import writer as writer_module
from robo_rl.data.cache import decoded
from robo_rl.data.layout import fingerprint
from robo_rl.data.tables import Span
from robo_rl.errors import DataError
from robo_rl.types import Outcome, Trajectory


@pytest.fixture(scope="module")
def originals() -> list[Trajectory]:
    return sample_episodes()


@pytest.fixture(scope="module")
def saved(originals, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("datasets") / "saved"
    write_episodes(root, iter(originals), robot_type="arm")
    return root


@pytest.fixture
def copied(saved, tmp_path) -> Path:
    shutil.copytree(saved, tmp_path / "copy", ignore=shutil.ignore_patterns(".cache"))
    return tmp_path / "copy"


# --- round trip ---------------------------------------------------------------------------------------


def test_everything_but_the_pixels_comes_back_exactly(originals, saved):
    episodes = read_episodes(saved)
    assert len(episodes) == len(originals)
    for before, after in zip(originals, episodes, strict=True):
        for name in ("episode_id", "instruction", "outcome", "fps", "task", "policy_id", "seed", "index", "note"):
            assert getattr(after, name) == getattr(before, name), name
        for name in ("state", "actions", "controller", "reward", "true_progress"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
            one = getattr(before, name)
            assert one is None or getattr(after, name).dtype == one.dtype


def test_every_frame_comes_back_at_its_own_place(originals, saved):
    # neighbours differ by a square that moves three pixels: an error by one frame would match the neighbour
    for before, after in zip(originals, read_episodes(saved), strict=True):
        for camera, frames in before.images.items():
            found = [nearest(image, list(frames)) for image in after.images[camera]]
            assert found == list(range(len(frames)))
            assert psnr(frames, after.images[camera]) > 38


def test_small_frames_keep_their_colours(tmp_path):
    # red and cyan columns side by side: with halved colour resolution both would turn grey, an error of about 80
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    image[:, 0::2], image[:, 1::2] = (200, 60, 60), (60, 160, 160)
    striped = episode(0, cameras=("front",), images={"front": np.stack([image] * 7)})
    write_episodes(tmp_path / "data", [striped])
    after = read_episodes(tmp_path / "data")[0].images["front"]
    assert np.abs(after.astype(int) - image).max() < 25


def test_an_episode_owes_nothing_to_the_video_before_it(tmp_path):
    # after pictures of something else, a flat grey one must not carry their traces
    grey = {"front": np.full((7, SIZE, SIZE, 3), 90, np.uint8)}
    write_episodes(tmp_path / "data", [episode(0, cameras=("front",)), episode(1, images=grey)])
    assert np.abs(read_episodes(tmp_path / "data")[1].images["front"].astype(int) - 90).max() <= 1
    with av.open(str(next(tmp_path.rglob("*.mp4")))) as video:
        starts = [number for number, packet in enumerate(video.demux(video=0)) if packet.is_keyframe]
    assert 7 in starts  # a player can begin at the second episode


def test_flat_arrays_follow_the_frames(originals, saved):
    episodes = read_episodes(saved)
    # T + 1 rows: 7 + 10 + 9 + 6 = 32; the episodes begin at 0, 7, 17, 26
    assert episodes.num_frames == 32
    assert episodes.lengths.tolist() == [7, 10, 9, 6]
    assert episodes.first_frame.tolist() == [0, 7, 17, 26]
    assert np.flatnonzero(episodes.is_final).tolist() == [6, 16, 25, 31]
    assert episodes.episode_of_frame.tolist() == [0] * 7 + [1] * 10 + [2] * 9 + [3] * 6
    np.testing.assert_array_equal(episodes.flat_state, np.concatenate([e.state for e in originals]))
    repeated = [np.concatenate([e.actions, e.actions[-1:]]) for e in originals]
    np.testing.assert_array_equal(episodes.flat_actions, np.concatenate(repeated))
    assert (episodes.fps, episodes.cameras, episodes.root) == (10.0, ("front", "wrist"), saved)
    chosen = np.array([31, 0, 17, 17])
    flat = episodes.flat_images("wrist")
    assert isinstance(flat, np.memmap)
    np.testing.assert_array_equal(episodes.gather("wrist", chosen), flat[chosen])
    np.testing.assert_array_equal(flat[17:26], episodes[2].images["wrist"])


def test_trajectories_share_the_memory_map(saved):
    episodes = read_episodes(saved)
    assert np.shares_memory(episodes[1].images["front"], episodes.flat_images("front"))
    assert np.shares_memory(episodes[-1].images["front"], episodes.select([3, 0])[0].images["front"])
    assert np.shares_memory(episodes[1].state, episodes.flat_state)


def test_the_second_reading_decodes_nothing(copied, monkeypatch):
    first = read_episodes(copied)[2].images["wrist"].copy()
    monkeypatch.setattr("robo_rl.data.cache.read_frames", lambda path: pytest.fail(f"decoded {path} again"))
    np.testing.assert_array_equal(read_episodes(copied)[2].images["wrist"], first)


def test_the_cache_follows_the_data(originals, copied):
    read_episodes(copied)
    write_episodes(copied.with_name("other"), [episode(5), episode(6)])
    for folder in ("meta", "data", "videos"):  # the dataset changes under its cache
        shutil.rmtree(copied / folder)
        shutil.copytree(copied.with_name("other") / folder, copied / folder)
    after = read_episodes(copied)
    assert [e.episode_id for e in after] == ["e5", "e6"]
    assert psnr(episode(6).images["front"], after[1].images["front"]) > 38
    assert len(list((copied / ".cache" / "robo_rl").iterdir())) == 1


def test_flags_stand_at_the_last_action_of_an_episode_that_ended(saved):
    table = pq.read_table(next((saved / "data").rglob("*.parquet"))).to_pydict()
    # success (T = 6) ends at row 5, failure (T = 9) at row 7 + 8 = 15; a timeout and an unknown end do not
    assert np.flatnonzero(table["next.done"]).tolist() == [5, 15]
    assert np.flatnonzero(table["next.success"]).tolist() == [5]
    assert np.flatnonzero(table["robo.final"]).tolist() == [6, 16, 25, 31]


def test_progress_that_nobody_knows_has_no_column(saved, tmp_path):
    write_episodes(tmp_path / "data", [episode(0), episode(1)])
    (path,) = (tmp_path / "data" / "data").rglob("*.parquet")
    assert "robo.true_progress" not in pq.read_schema(path).names
    assert "robo.true_progress" not in json.loads((tmp_path / "data" / "meta" / "info.json").read_text())["features"]
    assert "robo.true_progress" in json.loads((saved / "meta" / "info.json").read_text())["features"]


def test_progress_may_be_known_of_a_later_episode_only(tmp_path):
    progress = np.linspace(0, 1, 7, dtype=np.float32)
    write_episodes(tmp_path / "data", [episode(0), episode(1, true_progress=progress)])
    first, second = read_episodes(tmp_path / "data")
    assert first.true_progress is None
    np.testing.assert_array_equal(second.true_progress, progress)


def test_one_number_an_action_and_no_proprioception(tmp_path):
    bare = episode(0, state=np.zeros((7, 0), np.float32), actions=np.linspace(-1, 1, 6, dtype=np.float32)[:, None])
    write_episodes(tmp_path / "data", [bare])
    (after,) = read_episodes(tmp_path / "data")
    assert (after.state.shape, after.actions.shape) == ((7, 0), (6, 1))
    np.testing.assert_array_equal(after.actions, bare.actions)


def test_episodes_without_a_camera(tmp_path):
    write_episodes(tmp_path / "data", [episode(0, images={})])
    episodes = read_episodes(tmp_path / "data")
    assert episodes.cameras == ()
    assert episodes[0].images == {}
    with pytest.raises(DataError, match="camera 'front' is missing; the dataset has none"):
        episodes.gather("front", np.array([0]))


def test_many_episodes_fill_several_files(originals, tmp_path, monkeypatch):
    # a new file begins after 10 frames: e0 (7 frames) and e1 (10) in the first, e2 (9) and e3 (6) in the second
    monkeypatch.setattr(writer_module, "FILE_FRAMES", 10)
    monkeypatch.setattr(writer_module, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(writer_module.layout, "FILES_PER_CHUNK", 1)
    write_episodes(tmp_path / "data", originals)
    names = sorted(
        p.relative_to(tmp_path / "data" / "data").as_posix() for p in tmp_path.rglob("data/data/*/*.parquet")
    )
    assert names == ["chunk-000/file-000.parquet", "chunk-001/file-000.parquet"]
    assert len(list(tmp_path.rglob("*.mp4"))) == 4
    episodes = read_episodes(tmp_path / "data")
    for before, after in zip(originals, episodes, strict=True):
        assert psnr(before.images["front"], after.images["front"]) > 38
        np.testing.assert_array_equal(after.actions, before.actions)


def test_a_large_file_ends_by_its_bytes(originals, tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "FILE_BYTES", 1)
    write_episodes(tmp_path / "data", originals)
    assert len(list((tmp_path / "data" / "data").rglob("*.parquet"))) == len(originals)
    assert psnr(originals[3].images["wrist"], read_episodes(tmp_path / "data")[3].images["wrist"]) > 38


# --- writing at once or not at all --------------------------------------------------------------------


def test_an_existing_folder_is_left_alone(originals, copied):
    before = read_episodes(copied).fingerprint
    with pytest.raises(DataError, match="already exists"):
        write_episodes(copied, originals[:1])
    assert read_episodes(copied).fingerprint == before


def test_overwriting_replaces_all_of_it(copied):
    write_episodes(copied, [episode(7)], overwrite=True)
    assert [e.episode_id for e in read_episodes(copied)] == ["e7"]
    assert [p.name for p in copied.parent.iterdir()] == ["copy"]


def test_a_failure_midway_leaves_what_was_there(copied):
    def broken():
        yield episode(7)
        raise KeyboardInterrupt

    before = read_episodes(copied).fingerprint
    with pytest.raises(KeyboardInterrupt):
        write_episodes(copied, broken(), overwrite=True)
    with pytest.raises(KeyboardInterrupt):
        write_episodes(copied.with_name("new"), broken())
    assert [p.name for p in copied.parent.iterdir()] == ["copy"]
    assert read_episodes(copied).fingerprint == before


def test_a_failure_at_the_very_end_restores_what_was_there(copied, monkeypatch):
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError("no space left")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no space left"):
        write_episodes(copied, [episode(7)], overwrite=True)
    assert [p.name for p in copied.parent.iterdir()] == ["copy"]
    assert len(read_episodes(copied)) == 4


def test_episodes_are_written_as_they_come(tmp_path):
    # the source sees the video of the episodes before it grow: nothing is collected first
    sizes = []

    def source():
        for number in range(3):
            sizes.append(len(list(tmp_path.rglob("*.mp4"))))
            yield episode(number)

    write_episodes(tmp_path / "data", source())
    assert sizes == [0, 2, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fps": 20.0}, "fps is 20.0, but the dataset began with 10.0"),
        ({"cameras": ("front",)}, "cameras is {'front'"),
        ({"state": np.zeros((7, 4), np.float32)}, "state width is 4, but the dataset began with 3"),
        ({"actions": np.zeros((6, 5), np.float32)}, "action width is 5, but the dataset began with 2"),
        ({"episode_id": "e0"}, "two episodes have this id"),
        ({"reward": np.float32([0, 0, np.inf, 0, 0, 0])}, "'e1': reward is not finite at step 2"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(tmp_path, changes, said):
    with pytest.raises(DataError) as error:
        write_episodes(tmp_path / "data", [episode(0), episode(1, **changes)])
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_no_episode_is_an_error(tmp_path):
    with pytest.raises(DataError, match="data: there is no episode to write"):
        write_episodes(tmp_path / "data", [])


def test_every_episode_has_its_own_statistics(originals, saved):
    table = pq.read_table(saved / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pydict()
    for number, one in enumerate(originals):
        repeated = np.concatenate([one.actions, one.actions[-1:]]).astype(np.float64)
        np.testing.assert_allclose(table["stats/action/mean"][number], repeated.mean(0), rtol=1e-12)
        np.testing.assert_allclose(table["stats/observation.state/max"][number], one.state.max(0))
        np.testing.assert_allclose(
            np.ravel(table["stats/observation.images.front/mean"][number]),
            (one.images["front"] / 255.0).mean((0, 1, 2)),
            rtol=1e-9,
        )
        assert table["stats/frame_index/max"][number] == [len(one)]


# --- selections, several datasets ---------------------------------------------------------------------


def test_a_selection_renumbers_its_frames(saved):
    episodes = read_episodes(saved)
    part = episodes.select([2, 0])
    assert [e.episode_id for e in part] == ["e2", "e0"]
    assert part.first_frame.tolist() == [0, 9]
    np.testing.assert_array_equal(part.flat_state[:9], episodes[2].state)
    np.testing.assert_array_equal(part.gather("front", [9])[0], episodes[0].images["front"][0])
    np.testing.assert_array_equal(part.flat_images("front")[8], episodes[2].images["front"][8])
    assert [e.episode_id for e in episodes[1:3]] == ["e1", "e2"]
    assert part.fingerprint != episodes.fingerprint
    assert part.fingerprint == episodes.select([2, 0]).fingerprint != episodes.select([0, 2]).fingerprint
    with pytest.raises(DataError, match="no episode in this selection"):
        episodes.select([])
    with pytest.raises(IndexError):
        episodes[4]


def test_several_datasets_as_one(saved, tmp_path):
    write_episodes(tmp_path / "more", [episode(8, 4), episode(9, 4)])
    one, two = read_episodes(saved), read_episodes(tmp_path / "more")
    both = concat([one, two.select([1])])
    assert [e.episode_id for e in both] == ["e0", "e1", "e2", "e3", "e9"]
    assert both.num_frames == 32 + 5
    flat = both.flat_images("front")
    assert (len(flat), flat.shape) == (37, (37, SIZE, SIZE, 3))
    np.testing.assert_array_equal(flat[np.array([36, 3])], [two[1].images["front"][4], one[0].images["front"][3]])
    np.testing.assert_array_equal(flat[-1], two[1].images["front"][4])
    np.testing.assert_array_equal(both.flat_actions[32:36], two[1].actions)
    assert both.fingerprint not in (one.fingerprint, two.fingerprint)
    assert concat([two, one]).fingerprint != concat([one, two]).fingerprint
    # the parts of a dataset, put together again, are the dataset
    assert concat([one.select([0, 1]), one.select([2, 3])]).fingerprint == one.fingerprint
    with pytest.raises(DataError, match="no dataset to put together"):
        concat([])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fps": 20.0}, "recorded at 20 fps, but .* at 10 fps"),
        ({"cameras": ("front", "top")}, "camera 'wrist' is missing; the dataset has front, top"),
        ({"state": np.zeros((7, 4), np.float32)}, "state has 4 numbers, but 3 are needed"),
        ({"actions": np.zeros((6, 5), np.float32)}, "action has 5 numbers, but 2 are needed"),
    ],
)
def test_datasets_that_differ_are_not_put_together(saved, tmp_path, changes, said):
    write_episodes(tmp_path / "other", [episode(0, **changes)])
    with pytest.raises(DataError, match=said):
        concat([read_episodes(saved), read_episodes(tmp_path / "other")])


def test_a_user_says_what_it_needs(saved):
    episodes = read_episodes(saved)
    require(episodes, fps=10, cameras=["front"], state_dim=3, action_dim=2)
    require(episodes, cameras={"front": (SIZE, SIZE)})
    for needs, said in (
        ({"fps": 30}, "recorded at 10 fps, but 30 fps are needed"),
        ({"cameras": ["top"]}, "camera 'top' is missing; the dataset has front, wrist"),
        ({"cameras": {"front": (64, 64)}}, "but \\(64, 64\\) are needed"),
        ({"state_dim": 9}, "state has 3 numbers, but 9 are needed"),
        ({"action_dim": 7}, "action has 2 numbers, but 7 are needed"),
    ):
        with pytest.raises(DataError, match=said):
            require(episodes, **needs)


def test_a_split_takes_alike_from_every_group(tmp_path):
    # 2 tasks x 2 outcomes x 5 episodes; 0.3 of 20 is 6, and 0.3 of each group of 5 is 1.5: one or two of each
    outcomes = (Outcome.SUCCESS, Outcome.FAILURE)
    write_episodes(tmp_path / "data", [episode(n, 2, images={}, outcome=outcomes[n // 2 % 2]) for n in range(20)])
    episodes = read_episodes(tmp_path / "data")
    rest, held = episodes.split(0.3, seed=1)
    assert (len(rest), len(held)) == (14, 6)
    assert {e.episode_id for e in rest} | {e.episode_id for e in held} == {e.episode_id for e in episodes}
    counts = [sum((e.task, e.outcome) == group for e in held) for group in {(e.task, e.outcome) for e in episodes}]
    assert len(counts) == 4
    assert set(counts) == {1, 2}
    names = [e.episode_id for e in held]
    assert names == [e.episode_id for e in episodes.split(0.3, seed=1)[1]]
    assert any(names != [e.episode_id for e in episodes.split(0.3, seed=seed)[1]] for seed in (2, 3, 4))
    with pytest.raises(DataError, match="cannot be split"):
        episodes.split(0.0, seed=0)


def test_the_fingerprint_is_of_the_content_not_of_the_place(saved, copied, tmp_path):
    assert read_episodes(copied).fingerprint == read_episodes(saved).fingerprint
    (path,) = (copied / "data").rglob("*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("next.reward"), "next.reward", pa.array([9.0] * 32)), path)
    assert read_episodes(copied).fingerprint != read_episodes(saved).fingerprint


def test_one_other_bit_is_another_fingerprint(copied):
    before = read_episodes(copied).fingerprint
    video = copied / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    data = bytearray(video.read_bytes())
    data[len(data) // 2] ^= 1
    video.write_bytes(data)
    assert fingerprint(copied) != before


# --- the decoded frames -------------------------------------------------------------------------------


def decode(root: Path, camera: str, *spans: tuple[int, int], mark: str = "mark") -> np.ndarray:
    """Frames (first, length) of one camera's video."""
    key = f"observation.images.{camera}"
    path = root / "videos" / key / "chunk-000" / "file-000.mp4"
    feature = {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
    return decoded(root, mark, key, feature, [Span(path=path, first=first, length=length) for first, length in spans])


def test_a_video_may_hold_frames_that_belong_to_no_episode(copied):
    whole = read_episodes(copied).flat_images("front")
    np.testing.assert_array_equal(decode(copied, "front", (7, 4), (20, 5)), whole[[7, 8, 9, 10, 20, 21, 22, 23, 24]])


def test_episodes_may_lie_in_any_order_in_a_video(copied):
    whole = read_episodes(copied).flat_images("front")
    np.testing.assert_array_equal(decode(copied, "front", (20, 2), (3, 2)), whole[[20, 21, 3, 4]])


def test_two_episodes_cannot_share_a_frame(copied):
    with pytest.raises(DataError, match=r"file-000\.mp4: camera .* two episodes share frame 9"):
        decode(copied, "front", (3, 7), (9, 3))


def test_frames_of_another_size_are_named(copied):
    info = json.loads((copied / "meta" / "info.json").read_text())
    info["features"]["observation.images.wrist"]["shape"] = [SIZE, 2 * SIZE, 3]
    edit_info(copied, features=info["features"])
    with pytest.raises(DataError, match=r"frames are \(32, 32, 3\), but meta/info.json says \(32, 64, 3\)"):
        read_episodes(copied)


def test_what_a_killed_process_left_is_removed_in_time(copied):
    folder = copied / ".cache" / "robo_rl" / "mark"
    folder.mkdir(parents=True)
    old, fresh = folder / "a.npy.partial-1", folder / "b.npy.partial-2"
    for path in (old, fresh):
        path.write_bytes(b"x")
    os.utime(old, (1e9, 1e9))
    decode(copied, "front", (0, 3))
    assert not old.exists()
    assert fresh.exists()  # it may be another process at work


def test_a_cache_that_cannot_be_written_is_named(copied):
    (copied / ".cache").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"\.cache/robo_rl: decoded frames are kept here, but it cannot be written"):
        read_episodes(copied)


def test_frames_that_do_not_fit_on_the_disk_are_not_begun(copied, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(DataError, match=r"camera 'observation.images.front' needs 0.0 GB decoded, 0.0 are free"):
        read_episodes(copied)


# --- damage -------------------------------------------------------------------------------------------


def edit_info(root: Path, **changes) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_column(root: Path, key: str, change) -> None:
    (path,) = (root / "data").rglob("*.parquet")
    table = pq.read_table(path)
    values = change(table[key].to_pylist())
    place = table.column_names.index(key)
    pq.write_table(table.set_column(place, key, pa.array(values, table.schema.field(key).type)), path)


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def set_action(values: list) -> list:
    values[7 + 3] = [float("nan"), 0.0]  # episode 1 begins at row 7
    return values


DAMAGE = {
    "gone": (shutil.rmtree, "no such dataset folder"),
    "no info": (lambda root: (root / "meta/info.json").unlink(), "not a LeRobotDataset, meta/info.json is missing"),
    "info cut": (lambda root: cut(root / "meta/info.json", 0.5), "info.json: cannot be read"),
    "old": (lambda root: edit_info(root, codebase_version="v2.1"), "convert_dataset_v21_to_v30"),
    "new": (lambda root: edit_info(root, codebase_version="v4.0"), "v4.0; this needs v3.0, update robo_rl"),
    "no fps": (lambda root: edit_info(root, fps=None) or _drop_key(root, "fps"), "key 'fps' is missing"),
    "empty": (lambda root: edit_info(root, total_episodes=0), "has no episodes"),
    "frames lost": (lambda root: edit_info(root, total_frames=40), "32 frames in data/, but meta/info.json says 40"),
    "episodes lost": (lambda root: edit_info(root, total_episodes=5), "4 episodes in meta/episodes"),
    "no data": (lambda root: shutil.rmtree(root / "data"), "there is no data/"),
    "no episodes": (lambda root: shutil.rmtree(root / "meta/episodes"), "meta/episodes is missing"),
    "data cut": (lambda root: cut(root / "data/chunk-000/file-000.parquet", 0.7), "file-000.parquet: not readable"),
    "facts cut": (lambda root: cut(root / "meta/robo_episodes.parquet", 0.7), "robo_episodes.parquet: not readable"),
    "no video": (
        lambda root: (root / "videos/observation.images.wrist/chunk-000/file-000.mp4").unlink(),
        "wrist/chunk-000/file-000.mp4: the video is missing",
    ),
    "video cut": (
        lambda root: cut(root / "videos/observation.images.wrist/chunk-000/file-000.mp4", 0.6),
        "wrist/chunk-000/file-000.mp4",
    ),
    "video empty": (
        lambda root: cut(root / "videos/observation.images.front/chunk-000/file-000.mp4", 0.0),
        "front/chunk-000/file-000.mp4: the video cannot be decoded",
    ),
    "not finite": (
        lambda root: edit_column(root, "action", set_action),
        "action is not finite at episode 1, frame 3",
    ),
    "index": (
        lambda root: edit_column(root, "index", lambda values: [*values[:5], 99, *values[6:]]),
        "row 5 of data/ has index 99",
    ),
    "borders": (
        lambda root: edit_column(root, "episode_index", lambda values: [*values[:7], 0, *values[8:]]),
        "disagree about where episodes begin",
    ),
}


def _drop_key(root: Path, key: str) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_in_one_line(copied, name):
    damage, said = DAMAGE[name]
    damage(copied)
    with pytest.raises(DataError) as error:
        read_episodes(copied)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_video_leaves_no_cache(copied):
    video = copied / "videos/observation.images.wrist/chunk-000/file-000.mp4"
    whole = video.read_bytes()
    cut(video, 0.6)
    with pytest.raises(DataError):
        read_episodes(copied)
    video.write_bytes(whole)
    assert len(read_episodes(copied)) == 4
    assert list(copied.rglob("*.partial-*")) == []


def test_facts_of_other_data_are_refused(copied):
    path = copied / "meta" / "robo_episodes.parquet"
    pq.write_table(pq.read_table(path).slice(0, 3), path)
    with pytest.raises(DataError, match="does not have one row for each of the 4 episodes"):
        read_episodes(copied)


def test_an_episode_of_one_frame_is_named(copied):
    (path,) = (copied / "meta" / "episodes").rglob("*.parquet")
    table = pq.read_table(path)
    lengths = pa.array([7, 1, 9, 6])
    pq.write_table(table.set_column(table.column_names.index("length"), "length", lengths), path)
    with pytest.raises(DataError, match="episode 1 has 1 frame; an episode needs at least two"):
        read_episodes(copied)


# --- copies ------------------------------------------------------------------------------------------


def test_our_dataset_without_our_facts_still_knows_what_lerobot_keeps(copied):
    # lerobot's editing commands copy columns, but no file they do not know. The third episode timed out, but an
    # abort would look the same, and no label may be taken from that
    (copied / "meta" / "robo_episodes.parquet").unlink()
    episodes = read_episodes(copied)
    assert [e.outcome for e in episodes] == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert episodes[2].controller.tolist() == [0, 0, 1, 1, 3, 0, 0, 0]


def test_an_episode_is_copied_from_one_dataset_to_another(saved, tmp_path):
    # the second encoding sees decoded frames; quality must not collapse
    episodes: EpisodeSet = read_episodes(saved)
    write_episodes(tmp_path / "again", (replace(e, policy_id="copy") for e in episodes))
    again = read_episodes(tmp_path / "again")
    assert [e.policy_id for e in again] == ["copy"] * 4
    assert psnr(episodes[0].images["front"], again[0].images["front"]) > 38
