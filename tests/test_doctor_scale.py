"""The doctor on many rows: memory and time as promised, and video that is sampled, not decoded."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robo_rl.data import layout
from robo_rl.data.doctor import diagnose

WIDTH, LENGTH = 14, 400  # numbers of action and of state; rows an episode

RUN = """
import json, resource, sys, time
from robo_rl.data.doctor import diagnose
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.process_time()
found = diagnose(sys.argv[1])
seconds = time.process_time() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
names = [finding.name for finding in found.findings if finding.severity != "note"]
print(json.dumps({"mb": (peak - base) / 1024, "seconds": seconds, "names": names, "frames": found.facts["frames"]}))
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


@pytest.mark.parametrize("one_group", [False, True], ids=["groups", "one group"])
def test_memory_does_not_grow_with_the_rows(tmp_path, one_group):
    """20,000 and 200,000 rows: 28 numbers of 4 bytes are 2 and 22 MB, several times that while arrow unpacks them."""
    small = examined(write(tmp_path / "small", 50, one_group=one_group))
    large = examined(write(tmp_path / "large", 500, one_group=one_group))
    assert (small["frames"], large["frames"]) == (20_000, 200_000)
    assert set(large["names"]) == {"no-stats"}
    # what is kept is bounded: the sample of 1M numbers (with its copies as doubles) and 50,000 rows for quantiles;
    # one more copy of all rows would cost 22 MB, and arrow's reading of a whole file a multiple of it
    assert large["mb"] < 250, large
    # measured 3 s on one idle core; processor time, so that a busy machine does not count
    assert large["seconds"] < 30, large
