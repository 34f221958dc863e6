"""Progress files: lerobot's RA-BC weighting reads ours, we read lerobot's, and a file that does not fit is refused."""

import argparse
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_sample import sample_episodes

from robo_rl.app import cli
from robo_rl.data import concat, read_episodes, read_reward_table, write_episodes, write_reward_table
from robo_rl.data.progress_table import export_progress, import_progress
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal

JUDGE = {"id": "judge@1"}
LENGTHS = [7, 10, 9, 6]  # rows of the sample's episodes: T + 1


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets") / "progress"
    write_episodes(root, [replace(one, images={}) for one in sample_episodes()])
    return root


@pytest.fixture(scope="module")
def episodes(root):
    return read_episodes(root)


@pytest.fixture
def said(episodes) -> list[RewardSignal]:
    """Rising by 0.1 a frame in every episode but the second, which falls."""
    return [
        RewardSignal(
            episode_id=one.episode_id,
            model_id="judge@1",
            progress=(np.arange(len(one) + 1) * 0.1 if number != 1 else 0.9 - np.arange(10) * 0.1).astype(np.float32),
            success_prob=np.full(len(one) + 1, 0.25, np.float32),
        )
        for number, one in enumerate(episodes)
    ]


@pytest.fixture
def table(episodes, said, tmp_path):
    write_reward_table(tmp_path / "table.parquet", episodes, said, judge=JUDGE)
    return tmp_path / "table.parquet"


@pytest.fixture
def exported(table, episodes, tmp_path):
    export_progress(table, episodes, tmp_path / "sarm_progress.parquet")
    return tmp_path / "sarm_progress.parquet"


def theirs(path, *, rows=None, metadata=None, **changes):
    """A file as lerobot's SARM script writes one, with columns changed."""
    columns = {
        "index": np.arange(32),
        "episode_index": np.repeat(np.arange(4), LENGTHS),
        "frame_index": np.concatenate([np.arange(n) for n in LENGTHS]),
        "progress_sparse": np.linspace(0, 1, 32).astype(np.float32),
    } | changes
    made = pa.table(columns)
    made = made if rows is None else made.take(rows)
    pq.write_table(made.replace_schema_metadata(metadata or {"reward_model_path": "someone/sarm"}), path)
    return path


# --- lerobot reads ours ---------------------------------------------------------------------------------


def test_rabc_gives_the_weights_that_the_papers_rule_gives(exported):
    from lerobot.rewards.sarm.rabc import RABCWeights

    weighter = RABCWeights(exported, chunk_size=2, kappa=0.25, device=torch.device("cpu"))
    # Two frames ahead, progress is 0.2 higher; beyond the end the final observation counts: 0.1, then 0. Falling
    # episode: -0.2, ..., -0.1, 0. 5 + 7 + 4 deltas of 0.2, 3 of 0.1, 4 of 0, 8 of -0.2, 1 of -0.1: 32 frames.
    deltas = np.repeat([0.2, 0.1, 0.0, -0.2, -0.1], [16, 3, 4, 8, 1])
    assert weighter.get_stats()["num_frames"] == 32
    assert weighter.delta_mean == pytest.approx(deltas.mean(), abs=1e-6)
    assert weighter.delta_std == pytest.approx(deltas.std(), abs=1e-6)
    # rows 0 (rises), 7 (falls), 31 (an episode's final observation, which is a row to lerobot like any other)
    weights, stats = weighter.compute_batch_weights({"index": torch.tensor([0, 7, 31])})
    low, span = deltas.mean() - 2 * deltas.std(), 4 * deltas.std()
    soft = np.array([(0.2 - low) / span, 0.0, (0.0 - low) / span])
    np.testing.assert_allclose(weights.numpy(), soft * 3 / soft.sum(), rtol=1e-4)
    assert stats["num_zero_weight"] == 1


def test_a_weighted_policy_does_not_learn_from_steps_that_lose_progress(exported, episodes):
    from lerobot.utils.sample_weighting import SampleWeightingConfig, make_sample_weighter

    class Policy(torch.nn.Module):
        """The mean action: with weights w it is sum(w a) / sum(w)."""

        config = argparse.Namespace(chunk_size=2)

        def __init__(self):
            super().__init__()
            self.action = torch.nn.Parameter(torch.zeros(()))

        def forward(self, batch, reduction):
            assert reduction == "none"
            return (self.action - batch["action"]).square(), {}

    policy = Policy()
    weighter = make_sample_weighter(
        SampleWeightingConfig(progress_path=str(exported)), policy, torch.device("cpu"), dataset_root=str(episodes.root)
    )
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.2)
    # in the falling episode (rows 7 to 16) the action is -1, in all others +1
    index = torch.arange(15)
    batch = {"index": index, "action": torch.where(index < 7, 1.0, -1.0)}
    for _ in range(60):
        weights, _ = weighter.compute_batch_weights(batch)
        losses, _ = policy(batch, reduction="none")
        loss = (losses * weights).sum() / (weights.sum() + 1e-6)  # as lerobot's update_policy does
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # rows 7 to 14 all lose progress within two frames; without weights the mean is (7 - 8) / 15
    assert float(policy.action.detach()) == pytest.approx(1.0, abs=1e-3)


def test_rows_are_those_of_lerobots_dataset(root, exported):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("local/x", root=root)
    rows = pq.read_table(exported).to_pandas()
    for position in range(len(dataset)):
        item = dataset[position]
        for key in ("index", "episode_index", "frame_index"):
            assert int(item[key]) == rows[key][position]
    assert len(dataset) == len(rows)


def test_export_keeps_all_columns_and_names_the_judge(exported, table):
    schema = pq.read_schema(exported)
    assert schema.names[:4] == ["index", "episode_index", "frame_index", "progress_sparse"]
    assert set(schema.names) == set(pq.read_schema(table).names)
    assert schema.metadata[b"reward_model_path"] == b"judge@1"


def test_another_column_can_be_the_progress(table, episodes, tmp_path):
    export_progress(table, episodes, tmp_path / "p.parquet", column="success_prob")
    assert set(pq.read_table(tmp_path / "p.parquet")["progress_sparse"].to_pylist()) == {0.25}
    # what comes back is no longer the judge's progress, and does not carry its name
    assert import_progress(tmp_path / "p.parquet", episodes)[0].model_id != "judge@1"
    with pytest.raises(DataError, match="no column 'value'"):
        export_progress(table, episodes, tmp_path / "q.parquet", column="value")


def test_an_export_does_not_overwrite_unless_asked(table, episodes, exported):
    with pytest.raises(DataError, match="already exists"):
        export_progress(table, episodes, exported)
    export_progress(table, episodes, exported, overwrite=True)
    assert [path.name for path in exported.parent.glob("*.partial*")] == []


def test_only_a_whole_dataset_has_lerobots_row_numbers(table, episodes, tmp_path):
    for part in (episodes.select([1, 0, 2, 3]), concat([episodes, episodes])):
        with pytest.raises(DataError, match="one whole dataset"):
            export_progress(table, part, tmp_path / "p.parquet")
        with pytest.raises(DataError, match="one whole dataset"):
            import_progress(theirs(tmp_path / "t.parquet"), part)


# --- we read theirs -------------------------------------------------------------------------------------


def test_what_was_exported_comes_back(exported, episodes, said):
    for before, after in zip(said, import_progress(exported, episodes), strict=True):
        assert (after.episode_id, after.model_id) == (before.episode_id, "judge@1")
        np.testing.assert_allclose(after.progress, before.progress, atol=1e-7)
        assert after.abstained is None


def test_a_file_of_sarm_with_two_heads(episodes, tmp_path):
    dense = np.full(32, 0.5, np.float32)
    path = theirs(tmp_path / "sarm_progress.parquet", progress_dense=dense)
    signals = import_progress(path, episodes)
    np.testing.assert_array_equal(np.concatenate([s.progress for s in signals]), np.linspace(0, 1, 32, dtype="f4"))
    np.testing.assert_array_equal(signals[2].extra["progress_dense"], dense[:9])
    assert re.fullmatch(r"someone/sarm@[0-9a-f]{10}", signals[0].model_id)
    other = import_progress(path, episodes, head="dense")
    np.testing.assert_array_equal(other[3].progress, dense[:6])
    assert other[0].model_id != signals[0].model_id
    with pytest.raises(DataError, match="head must be"):
        import_progress(path, episodes, head="both")


def test_rows_in_another_order_are_the_same_rows(episodes, tmp_path):
    # `--episodes 2 0 1 3` of lerobot's scripts writes them so
    straight = import_progress(theirs(tmp_path / "a.parquet"), episodes)
    mixed = import_progress(theirs(tmp_path / "b.parquet", rows=np.random.default_rng(0).permutation(32)), episodes)
    for one, other in zip(straight, mixed, strict=True):
        np.testing.assert_array_equal(one.progress, other.progress)


def test_topreward_may_name_only_its_vlm(episodes, tmp_path):
    path = theirs(tmp_path / "topreward_progress.parquet", metadata={"vlm_name": "Qwen/Qwen3-VL-8B-Instruct"})
    assert import_progress(path, episodes)[0].model_id.startswith("Qwen/Qwen3-VL-8B-Instruct@")
    path = theirs(tmp_path / "topreward_progress.parquet", metadata={"unrelated": "x"})
    assert import_progress(path, episodes)[0].model_id.startswith("topreward_progress@")


def test_frames_without_an_answer_repeat_the_nearest(episodes, tmp_path):
    progress = np.linspace(0, 1, 32).astype(np.float32)
    progress[[0, 2, 3]] = np.nan
    path = theirs(tmp_path / "p.parquet", progress_sparse=progress)
    with pytest.raises(DataError, match=r"p.parquet: progress_sparse is NaN at frame 0 of episode 0 \('e0'\) \(3 such"):
        import_progress(path, episodes)
    first, second, *_ = import_progress(path, episodes, abstain=True)
    # rows 0 and 2 take row 1's, row 3 takes row 4's
    np.testing.assert_array_equal(first.progress, progress[[1, 1, 1, 4, 4, 5, 6]])
    assert first.abstained.tolist() == [True, False, True, True, False, False, False]
    assert not second.abstained.any()  # every episode of a table has the mask, or none
    progress[7:17] = np.nan
    with pytest.raises(DataError, match="episode 'e1' has no answer at all"):
        import_progress(theirs(tmp_path / "p.parquet", progress_sparse=progress), episodes, abstain=True)


def test_an_abstention_is_nan_to_lerobot(episodes, said, tmp_path, monkeypatch):
    silent = [replace(s, abstained=np.arange(len(s.progress)) == 2) for s in said]
    write_reward_table(tmp_path / "t.parquet", episodes, silent, judge=JUDGE)
    monkeypatch.setattr("robo_rl.data.progress_table.read_reward_table", lambda *_: silent)
    export_progress(tmp_path / "t.parquet", episodes, tmp_path / "p.parquet")
    progress = pq.read_table(tmp_path / "p.parquet")["progress_sparse"].to_numpy()
    assert np.flatnonzero(np.isnan(progress)).tolist() == [2, 9, 19, 28]


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (np.arange(17), {}, r"frame 0 of episode 2 \('e2'\) is not scored \(15 such frames\)"),  # --episodes 0 1
        (np.append(np.arange(32), 8), {}, r"frame 1 of episode 1 \('e1'\) is scored 2 times"),
        (None, {"index": np.arange(32) + 1}, "frame 32 is scored, but the dataset has 32 frames"),
        (
            None,
            {"episode_index": np.repeat(np.arange(4), [8, 9, 9, 6])},
            r"row 7 is frame 0 of episode 0 there, but frame 0 of episode 1 \('e1'\) in the dataset",
        ),
        (
            None,
            {"frame_index": np.concatenate([np.arange(n) for n in (7, 9, 10, 6)])},
            r"row 16 is frame 0 of episode 1 there, but frame 9 of episode 1",
        ),
        (None, {"progress_sparse": np.full(32, -1.5, np.float32)}, r"is -1.5 at frame 0 of episode 0 \('e0'\)"),
        (None, {"progress_sparse": np.full(32, np.inf, np.float32)}, r"is inf at frame 0 of episode 0"),
        (None, {"progress_sparse": ["a"] * 32}, "holds string, not numbers"),
        (None, {"index": np.arange(32.0)}, "'index' must hold whole numbers"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(episodes, tmp_path, rows, changes, message):
    path = theirs(tmp_path / "robometer_progress.parquet", rows=rows, **changes)
    with pytest.raises(DataError, match=f"robometer_progress.parquet: .*{message}") as caught:
        import_progress(path, episodes)
    assert "\n" not in str(caught.value)


def test_a_file_without_the_column_says_what_it_has(episodes, tmp_path):
    with pytest.raises(DataError, match=r"'progress_dense' is missing; .* progress_sparse"):
        import_progress(theirs(tmp_path / "p.parquet"), episodes, head="dense")


def test_our_fingerprint_tells_a_stale_file(episodes, tmp_path, table):
    export_progress(table, episodes, tmp_path / "p.parquet")
    again = tmp_path / "again"
    changed = [replace(one, images={}, actions=-one.actions) for one in sample_episodes()]  # the same lengths
    write_episodes(again, changed)
    with pytest.raises(DataError, match="made for another state of the dataset"):
        import_progress(tmp_path / "p.parquet", read_episodes(again))


# --- commands -------------------------------------------------------------------------------------------


def test_the_commands_go_there_and_back(root, table, tmp_path, said, capsys):
    progress, back = tmp_path / "out.parquet", tmp_path / "back.parquet"
    there = ["reward", "export", str(table), str(root), f"--out={progress}"]
    assert cli.main(there) == 0
    assert cli.main(there) == 2
    assert "already exists" in capsys.readouterr().err
    assert cli.main([*there, "--overwrite", "--column=success_prob"]) == 0
    assert cli.main([*there, "--overwrite"]) == 0
    here = ["reward", "import", str(progress), str(root), f"--out={back}"]
    assert cli.main(here) == 0
    assert "32 frames, judged by judge@1" in capsys.readouterr().out
    for before, after in zip(said, read_reward_table(back, read_episodes(root)), strict=True):
        np.testing.assert_allclose(after.progress, before.progress, atol=1e-7)
    assert cli.main(here) == 2
    assert capsys.readouterr().err.startswith(f"robo-rl: {back}: already exists")
