"""Reward tables: what a judge said comes back, and a table that does not fit its dataset is refused."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sample import sample_episodes

from robo_rl.data import concat, read_episodes, read_reward_table, write_episodes, write_reward_table
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal

JUDGE = {"id": "judge@1", "revision": "abc", "prompt": "how far?"}


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets") / "table"
    write_episodes(root, [replace(one, images={}) for one in sample_episodes()])
    return read_episodes(root)


def opinions(episodes, *, all_heads: bool = True) -> list[RewardSignal]:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return rng.random(shape).astype(np.float32)

    return [
        RewardSignal(
            episode_id=one.episode_id,
            model_id="judge@1",
            progress=numbers(len(one) + 1),
            success_prob=numbers(len(one) + 1) if all_heads else None,
            tri_state=numbers(len(one), 3) if all_heads else None,
            uncertainty=numbers(len(one) + 1) if all_heads else None,
        )
        for one in episodes
    ]


@pytest.mark.parametrize("all_heads", [True, False])
def test_a_table_gives_back_what_the_judge_said(episodes, tmp_path, all_heads):
    said = opinions(episodes, all_heads=all_heads)
    write_reward_table(tmp_path / "t.parquet", episodes, said, judge=JUDGE)
    for before, after in zip(said, read_reward_table(tmp_path / "t.parquet", episodes), strict=True):
        assert (after.episode_id, after.model_id) == (before.episode_id, "judge@1")
        for name in ("progress", "success_prob", "tri_state", "uncertainty"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


def test_abstentions_and_raw_columns_come_back(episodes, tmp_path):
    # the second episode has neither: it was answered throughout, and has no raw numbers
    said = opinions(episodes)
    silent = np.array([False, True, True, False, False, False, True])
    raw = {"log_prob": np.array([0, np.nan, -2, -1, 0, 0, 1], np.float32), "a/b": np.ones(7, np.float32)}
    said[0] = replace(said[0], abstained=silent, extra=raw)
    write_reward_table(tmp_path / "t.parquet", episodes, said, judge=JUDGE)
    names = pq.read_schema(tmp_path / "t.parquet").names
    assert names[-3:] == ["abstained", "raw.a/b", "raw.log_prob"]
    first, second = read_reward_table(tmp_path / "t.parquet", episodes)[:2]
    np.testing.assert_array_equal(first.abstained, silent)
    np.testing.assert_array_equal(first.extra["log_prob"], raw["log_prob"])
    assert second.abstained is not None
    assert not second.abstained.any()
    assert np.isnan(second.extra["a/b"]).all()


def test_a_table_of_an_earlier_version_is_read(episodes, tmp_path):
    # before abstentions: the same columns in one row group, no word of skipped episodes
    said = opinions(episodes)
    columns = {
        "index": np.arange(32),
        "episode_index": episodes.episode_of_frame,
        "frame_index": np.arange(32) - np.repeat(episodes.first_frame, episodes.lengths),
        "progress_sparse": np.concatenate([one.progress for one in said]),
    }
    facts = {"robo_rl_format": "1", "dataset": "table", "dataset_fingerprint": episodes.fingerprint}
    table = pa.table(columns).replace_schema_metadata(facts | {"num_frames": "32", "judge_id": "old@1"})
    pq.write_table(table, tmp_path / "t.parquet")
    for before, after in zip(said, read_reward_table(tmp_path / "t.parquet", episodes), strict=True):
        np.testing.assert_array_equal(after.progress, before.progress)
        assert (after.model_id, after.abstained, dict(after.extra)) == ("old@1", None, {})


def test_a_table_of_a_dataset_serves_a_selection_of_it(episodes, tmp_path):
    said = opinions(episodes)
    write_reward_table(tmp_path / "t.parquet", episodes, said, judge=JUDGE)
    part = read_reward_table(tmp_path / "t.parquet", episodes.select([3, 1]))
    assert [one.episode_id for one in part] == ["e3", "e1"]
    np.testing.assert_array_equal(part[0].progress, said[3].progress)
    np.testing.assert_array_equal(part[1].tri_state, said[1].tri_state)


def test_large_tables_are_written_in_groups_of_rows(episodes, tmp_path, monkeypatch):
    monkeypatch.setattr("robo_rl.data.reward_table.ROWS", 10)
    said = opinions(episodes)
    write_reward_table(tmp_path / "t.parquet", episodes, said, judge=JUDGE)
    metadata = pq.read_metadata(tmp_path / "t.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [10, 10, 10, 2]
    for before, after in zip(said, read_reward_table(tmp_path / "t.parquet", episodes), strict=True):
        np.testing.assert_array_equal(after.progress, before.progress)


def test_rows_are_frames_in_order(episodes, tmp_path):
    said = opinions(episodes)
    weight = np.arange(32, dtype=np.float32)
    write_reward_table(tmp_path / "t.parquet", episodes, said, judge=JUDGE, extra={"weight": weight})
    table = pq.read_table(tmp_path / "t.parquet")
    assert table["index"].to_pylist() == list(range(32))
    assert table["episode_index"].to_pylist() == [0] * 7 + [1] * 10 + [2] * 9 + [3] * 6
    assert table["frame_index"].to_pylist()[5:9] == [5, 6, 0, 1]
    np.testing.assert_array_equal(table["progress_sparse"].to_numpy()[7:17], said[1].progress)
    # a final observation has no step, so it has no tri-state
    states = table["p_stagnant"].to_numpy()
    assert np.flatnonzero(np.isnan(states)).tolist() == [6, 16, 25, 31]
    assert states[7] == said[1].tri_state[0, 1]
    np.testing.assert_array_equal(table["weight"].to_numpy(), weight)
    facts = table.schema.metadata
    assert facts[b"reward_model_path"] == b"judge@1"
    assert facts[b"judge_prompt"] == b"how far?"
    assert facts[b"dataset_fingerprint"].decode() == episodes.fingerprint
    assert facts[b"num_frames"] == b"32"


def test_a_judge_without_a_head_leaves_no_column(episodes, tmp_path):
    write_reward_table(tmp_path / "t.parquet", episodes, opinions(episodes, all_heads=False), judge=JUDGE)
    names = pq.read_schema(tmp_path / "t.parquet").names
    assert names == ["index", "episode_index", "frame_index", "progress_sparse"]


def test_a_table_of_several_datasets_belongs_to_their_union(episodes, tmp_path):
    both = concat([episodes.select([2]), episodes.select([0, 1])])
    said = opinions(both)
    write_reward_table(tmp_path / "t.parquet", both, said, judge=JUDGE)
    np.testing.assert_array_equal(read_reward_table(tmp_path / "t.parquet", both)[2].progress, said[2].progress)
    with pytest.raises(DataError, match="made for dataset"):
        read_reward_table(tmp_path / "t.parquet", episodes.select([0, 1, 2]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda signals: signals[:-1], "4 episodes but 3 signals"),
        (lambda signals: signals[::-1], "episode 'e0' got the signal of 'e3'"),
        (lambda signals: [replace(signals[0], uncertainty=None), *signals[1:]], "'e0' has no uncertainty"),
        (
            lambda signals: [RewardSignal(episode_id="e0", model_id="j", progress=np.zeros(6)), *signals[1:]],
            "episode 'e0' has 7 frames but 6 were scored",
        ),
    ],
)
def test_signals_that_do_not_fit_are_not_written(episodes, tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        write_reward_table(tmp_path / "t.parquet", episodes, change(opinions(episodes)), judge=JUDGE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", [{"weight": np.zeros(31)}, {"progress_sparse": np.zeros(32)}])
def test_extra_columns_fit_and_have_names_of_their_own(episodes, tmp_path, extra):
    with pytest.raises(DataError, match="extra column"):
        write_reward_table(tmp_path / "t.parquet", episodes, opinions(episodes), judge=JUDGE, extra=extra)


def test_a_judge_has_a_name(episodes, tmp_path):
    with pytest.raises(DataError, match="judge needs an 'id'"):
        write_reward_table(tmp_path / "t.parquet", episodes, opinions(episodes), judge={"revision": "1"})


def without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def with_value(table: pa.Table, name: str, row: int, value: float) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(values, table.schema.field(name).type))


def with_fact(table: pa.Table, key: str, value: str | None) -> pa.Table:
    facts = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    facts.pop(key)
    return table.replace_schema_metadata(facts if value is None else facts | {key: value})


CHANGES = {
    # row 9 is frame 2 of episode 1, which begins at row 7
    "missing": (lambda t: without(t, 9), "frame 2 of episode 'e1' is not scored (1 such frames)"),
    "repeated": (lambda t: pa.concat_tables([t, t.slice(9, 1)]), "frame 2 of episode 'e1' is scored 2 times"),
    "cut": (lambda t: t.slice(0, 20), "frame 3 of episode 'e2' is not scored (12 such frames)"),
    "beyond": (lambda t: with_value(t, "index", 31, 40), "frame 40 is scored, but the dataset has 32"),
    "shuffled": (lambda t: t.take(list(reversed(range(32)))), "out of order"),
    "nan": (lambda t: with_value(t, "progress_sparse", 9, float("nan")), "'e1': progress is not finite at frame 2"),
    "no progress": (lambda t: t.drop_columns(["progress_sparse"]), "'progress_sparse' is missing"),
    "half a state": (lambda t: t.drop_columns(["p_stagnant"]), "only 2 of the columns"),
    "foreign": (lambda t: t.replace_schema_metadata({}), "not a reward table of robo_rl"),
    "newer": (lambda t: with_fact(t, "robo_rl_format", "9"), "a reward table of format 9"),
    "no judge": (lambda t: with_fact(t, "judge_id", None), "'judge_id' is missing"),
    "other data": (lambda t: with_fact(t, "dataset_fingerprint", "f" * 32), "made for dataset 'table' (ffffffffffff)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_table_that_does_not_fit_is_refused_in_one_line(episodes, tmp_path, name):
    change, said = CHANGES[name]
    path = tmp_path / "t.parquet"
    write_reward_table(path, episodes, opinions(episodes), judge=JUDGE)
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(DataError) as error:
        read_reward_table(path, episodes)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_named(episodes, tmp_path):
    path = tmp_path / "t.parquet"
    with pytest.raises(DataError, match=r"t\.parquet: the file is missing"):
        read_reward_table(path, episodes)
    write_reward_table(path, episodes, opinions(episodes), judge=JUDGE)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"t\.parquet: not readable as parquet"):
        read_reward_table(path, episodes)


def test_writing_again_replaces_the_table(episodes, tmp_path):
    for judge in ("one@1", "two@1"):
        write_reward_table(tmp_path / "t.parquet", episodes, opinions(episodes), judge={"id": judge})
    assert read_reward_table(tmp_path / "t.parquet", episodes)[0].model_id == "two@1"
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
