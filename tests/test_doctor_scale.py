"""The doctor on many rows: memory and time as promised, and video that is sampled, not decoded."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doctor_sample import sound

from robo_rl.data import doctor_frames, layout, write_episodes
from robo_rl.data.doctor import diagnose

WIDTH, LENGTH = 14, 400  # numbers of action and of state; rows an episode

RUN = """
import json, sys, time
from robo_rl.data.doctor import diagnose

def peak():  # in MB; getrusage would tell of the parent
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

base, started = peak(), time.process_time()
found = diagnose(sys.argv[1])
seconds = time.process_time() - started
names = [finding.name for finding in found.findings if finding.severity != "note"]
frames = found.facts["frames"]
print(json.dumps({"mb": peak() - base, "seconds": seconds, "names": names, "frames": frames}))
"""


def rows(episodes: range, rng: np.random.Generator) -> pa.Table:
    """Arms that follow their commands one row later."""
    count = len(episodes) * LENGTH
    command = np.cumsum(rng.normal(0, 0.02, (len(episodes), LENGTH, WIDTH)), axis=1).astype(np.float32)
    state = np.concatenate([command[:, :1], command[:, :-1]], axis=1)
    frame = np.tile(np.arange(LENGTH), len(episodes))
    first = episodes.start * LENGTH

    def listed(values: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)

    return pa.table(
        {
            "action": listed(command),
            "observation.state": listed(state),
            "timestamp": (frame / 30).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.repeat(np.arange(episodes.start, episodes.stop), LENGTH),
            "index": first + np.arange(count),
            "task_index": np.zeros(count, np.int64),
        }
    )


def write(root: Path, episodes: int, *, one_group: bool) -> Path:
    """Without video and statistics. `one_group`: all rows in one group, as lerobot's converter writes them."""
    rng, total = np.random.default_rng(0), episodes * LENGTH
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True)
    parts = [rows(range(first, min(first + 50, episodes)), rng) for first in range(0, episodes, 50)]
    size = total if one_group else 50 * LENGTH
    pq.write_table(pa.concat_tables(parts), root / "data/chunk-000/file-000.parquet", row_group_size=size)
    first = np.arange(episodes) * LENGTH
    facts = {
        "episode_index": np.arange(episodes),
        "tasks": [["fold the towel"]] * episodes,
        "length": np.full(episodes, LENGTH),
        "data/chunk_index": np.zeros(episodes, np.int64),
        "data/file_index": np.zeros(episodes, np.int64),
        "dataset_from_index": first,
        "dataset_to_index": first + LENGTH,
    }
    pq.write_table(pa.table(facts), root / layout.EPISODES)
    pq.write_table(pa.table({"task_index": [0], "task": ["fold the towel"]}), root / layout.TASKS)
    number = {"dtype": "float32", "shape": [WIDTH], "names": None}
    info = {
        "codebase_version": "v3.0",
        "fps": 30,
        "features": {"action": number, "observation.state": number},
        "total_episodes": episodes,
        "total_frames": total,
        "data_path": layout.DATA,
    }
    (root / layout.INFO).write_text(json.dumps(info))
    return root


def examined(root: Path) -> dict:
    done = subprocess.run([sys.executable, "-c", RUN, str(root)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("one_group", [False, True], ids=["groups", "one group"])
def test_memory_does_not_grow_with_the_rows(tmp_path, one_group):
    """80,000 rows fill what is kept at most (1M numbers of whole episodes, 50,000 rows for quantiles)."""
    small = examined(write(tmp_path / "small", 200, one_group=one_group))
    large = examined(write(tmp_path / "large", 800, one_group=one_group))
    assert (small["frames"], large["frames"]) == (80_000, 320_000)
    assert small["names"] == large["names"] == ["no-stats"]
    # 240,000 more rows of 28 floats and 4 integers are 35 MB; measured growth 1 to 6 MB of 130
    assert large["mb"] < small["mb"] + 20, (small, large)
    assert large["mb"] < 250, large
    # measured 2 s on one core; processor time, so that a busy machine hardly counts
    assert large["seconds"] < 30, large


def test_a_long_video_is_sampled(tmp_path, monkeypatch):
    """50 episodes of 61 frames, 320 of which may be decoded."""
    write_episodes(tmp_path / "data", (sound(n, 60, pictures=True) for n in range(50)))
    decoded = []

    def counted(path: Path, start: int, fps: float) -> Iterator[np.ndarray]:
        for image in read(path, start, fps):
            decoded.append(start)
            yield image

    read = doctor_frames.read_frames
    monkeypatch.setattr(doctor_frames, "read_frames", counted)
    found = diagnose(tmp_path / "data", frames=320)
    assert found.findings == []
    # 10 stretches of 32 frames, of two cameras
    assert found.facts["frames_decoded"] == 320
    assert len(decoded) == 640
    assert len(set(decoded)) == 10
    assert np.ptp([start // 61 for start in set(decoded)]) == 49  # from the first episode to the last
