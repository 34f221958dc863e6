"""Scoring of whole datasets: nothing is lost, mixed up or made up, whatever happens to the process or the data."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_sample import episode
from scoring_toy import ToyJudge, instruction_mark

from reward_models.journal import Journal
from reward_models.score import score
from reward_models.score_summary import skipped_path
from reward_models.scoring import ScoreConfig, ScoreSummary, Work, divide, score_dataset
from reward_models.scoring_pool import score_in_processes
from robo_rl.app import cli
from robo_rl.app.reward_commands import reward_merge
from robo_rl.data import EpisodeSet, read_episodes, read_reward_table, write_episodes
from robo_rl.data.reward_parts import frames_hash, merge_reward_tables, part_path
from robo_rl.errors import DataError, RewardError
from robo_rl.types import Trajectory

TESTS = Path(__file__).parent
EPISODES = 7  # of 7, 8, 9, 7, 8, 9, 7 frames: 55 in all
FRAMES = 55
TWO = ScoreConfig(group_episodes=2)  # groups (0, 1), (2, 3), (4, 5), (6)


def made(number: int, **changes: object) -> Trajectory:
    told = {"instruction": f"put cube {number} away"}
    return episode(number, 6 + number % 3, cameras=("front",), **(told | changes))


def quiet(text: str) -> None:
    """Nobody listens."""


def run(judge: ToyJudge, data: EpisodeSet, out: Path, config: ScoreConfig = TWO, **more: object) -> ScoreSummary:
    return score_dataset(judge, Work(episodes=data, out=out, config=config), say=quiet, **more)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scoring") / "data"
    write_episodes(folder, [made(n) for n in range(EPISODES)])
    return folder


@pytest.fixture(scope="module")
def data(root) -> EpisodeSet:
    return read_episodes(root)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """The table of a run in which nothing happened."""
    out = tmp_path_factory.mktemp("scoring") / "t.parquet"
    run(ToyJudge(), data, out)
    return out


@pytest.fixture
def copied(root, tmp_path) -> Path:
    shutil.copytree(root, tmp_path / "data", ignore=shutil.ignore_patterns(".cache"))
    return tmp_path / "data"


def asked(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


# --- what a table holds ---------------------------------------------------------------------------------


def test_a_table_holds_what_the_judge_says_of_every_frame(data, whole):
    for said, kept in zip(score(ToyJudge(), data), read_reward_table(whole, data), strict=True):
        assert kept.model_id == "toy@1"
        for name in ("progress", "success_prob", "tri_state", "abstained"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(said, name), err_msg=name)
        for name, column in said.extra.items():
            np.testing.assert_array_equal(kept.extra[name], column)  # NaN where the judge says NaN
        assert kept.uncertainty is None
        assert kept.abstained is not None
        assert kept.abstained.dtype == bool


def test_every_episode_is_scored_against_its_own_instruction(data, whole):
    for one, kept in zip(data, read_reward_table(whole, data), strict=True):
        assert set(kept.extra["mark"]) == {instruction_mark(one.instruction)}
    assert len({instruction_mark(one.instruction) for one in data}) == EPISODES


def test_a_table_says_who_judged_what(data, whole):
    facts = {key.decode(): value.decode() for key, value in pq.read_schema(whole).metadata.items()}
    assert facts["judge_id"] == "toy@1"
    assert (facts["judge_revision"], facts["judge_prompt"]) == ("r1", "how far?")
    assert facts["dataset_fingerprint"] == data.fingerprint
    assert facts["num_frames"] == str(FRAMES)
    assert len(facts["frames_fingerprint"]) == 32
    assert "skipped" not in facts


@pytest.mark.parametrize("change", ["pixel", "instruction", "camera"])
def test_the_hash_of_what_was_shown_changes_with_it(change):
    one = made(3)
    images = {"front": one.images["front"].copy()}
    images["front"][-1, 0, 0, 2] ^= 1
    other = {
        "pixel": replace(one, images=images),
        "instruction": replace(one, instruction="put cube 3 there"),
        "camera": replace(one, images={"wrist": one.images["front"]}),
    }[change]
    assert frames_hash(other) != frames_hash(one)
    assert frames_hash(made(3)) == frames_hash(one)


def test_groups_depend_on_the_dataset_alone(data):
    work = Work(episodes=data, out=Path("t"), config=TWO)
    assert divide(work) == [[0, 1], [2, 3], [4, 5], [6]]
    # at most 24 frames: 7 + 8 + 9, then 7 + 8 + 9, then 7; an episode longer than that has a group of its own
    assert divide(replace(work, config=ScoreConfig(group_frames=24))) == [[0, 1, 2], [3, 4, 5], [6]]
    assert divide(replace(work, config=ScoreConfig(group_frames=8))) == [[n] for n in range(EPISODES)]
    assert divide(replace(work, episodes=data.select([0, 4]))) == divide(work)


def test_progress_counts_frames_and_the_summary_adds_up(data, tmp_path):
    seen: list[tuple[int, int]] = []
    summary = run(ToyJudge(), data, tmp_path / "t.parquet", progress_callback=lambda *given: seen.append(given))
    assert seen == [(0, 55), (15, 55), (31, 55), (48, 55), (55, 55)]
    assert (summary.frames, summary.scored_now, summary.skipped) == (55, 55, ())
    assert summary.abstained == 2 * 2 + EPISODES - 2  # frames 3 of all, 8 of the two of 9 frames
    text = "\n".join(summary.lines())
    for word in ("55 frames, judged by toy@1", "frames/s", "ms a frame", "peak memory", "9 frames without an answer"):
        assert word in text
    assert 10e6 < summary.peak_memory < 100e9


def test_a_group_is_given_to_the_judge_together(data, tmp_path):
    judge = ToyJudge()
    run(judge, data, tmp_path / "t.parquet")
    assert judge.batches == [2, 2, 2, 1]


# --- killed and continued -------------------------------------------------------------------------------


def test_a_run_killed_at_any_moment_goes_on_to_the_same_bytes(tmp_path):
    # three episodes in two groups; one has no instruction and is skipped, so its list is compared, too
    write_episodes(tmp_path / "data", [episode(n, 3, images={}, instruction="lift"[: 4 * (n != 2)]) for n in range(4)])
    done = subprocess.run(
        [sys.executable, str(TESTS / "scoring_kill.py"), str(tmp_path / "data"), str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["different"] == []
    assert result["files"] == ["t.parquet", "t.parquet.skipped.json"]
    assert result["kills"] > 20


def fail_then(judge: ToyJudge, data: EpisodeSet, out: Path, name: str) -> None:
    """A run that stops at an episode."""
    with pytest.raises(RewardError, match=name):
        run(replace(judge, fails=(name,)), data, out)


def test_what_was_scored_is_not_scored_again(data, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    fail_then(judge, data, out, "e4")
    assert not out.exists()
    assert (tmp_path / "t.parquet.partial").is_dir()
    judge.log.unlink()
    said: list[str] = []
    score_dataset(judge, Work(episodes=data, out=out, config=TWO), say=said.append)
    assert asked(judge.log) == ["e4", "e5", "e6"]
    assert said == [f"{out}: 31 of 55 frames are scored already; going on"]
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "t.parquet"]


def test_a_finished_table_is_not_made_again_nor_written_over(data, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    shutil.copy(whole, out)
    summary = run(judge, data, out)
    assert (asked(judge.log), summary.scored_now, summary.frames) == ([], 0, FRAMES)
    assert "nothing was left to score" in summary.lines()
    for other, said in (
        (ToyJudge(model_id="toy@2"), "judge_id 'toy@1' where this has 'toy@2'"),
        (ToyJudge(prompt="done?"), "judge_prompt 'how far\\?' where this has 'done\\?'"),
    ):
        with pytest.raises(DataError, match=said):
            run(other, data, out)
    with pytest.raises(DataError, match="dataset_fingerprint"):
        run(judge, _other(tmp_path), out)
    assert out.read_bytes() == whole.read_bytes()


def _other(folder: Path) -> EpisodeSet:
    write_episodes(folder / "other", [made(n, seed=9) for n in range(EPISODES)])
    return read_episodes(folder / "other")


def test_unfinished_scores_of_another_judge_or_dataset_are_refused(data, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge()
    fail_then(judge, data, out, "e4")
    kept = sorted((tmp_path / "t.parquet.partial").iterdir())
    for other, said in (
        (ToyJudge(model_id="toy@2"), "unfinished scores of another judge: id is 'toy@1' there, 'toy@2' here"),
        (ToyJudge(prompt="done?"), "another judge: prompt is 'how far?' there, 'done?' here"),
    ):
        with pytest.raises(DataError) as error:
            run(other, data, out)
        assert said in str(error.value)
    with pytest.raises(DataError, match=r"another division into groups: episodes is 2 there, 3 here"):
        run(judge, data, out, ScoreConfig(group_episodes=3))
    with pytest.raises(DataError, match="unfinished scores of another dataset"):
        run(judge, _other(tmp_path), out)
    assert sorted((tmp_path / "t.parquet.partial").iterdir()) == kept


def rewrite(root: Path, **changes: object) -> EpisodeSet:
    """The dataset with another episode 1."""
    write_episodes(root, [made(n, **(changes if n == 1 else {})) for n in range(EPISODES)], overwrite=True)
    return read_episodes(root)


def test_when_the_dataset_changes_only_groups_that_changed_are_scored_again(copied, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    fail_then(judge, read_episodes(copied), out, "e6")
    judge.log.unlink()
    changed = rewrite(copied, instruction="leave cube 1 alone")
    said: list[str] = []
    score_dataset(judge, Work(episodes=changed, out=out, config=TWO), say=said.append)
    assert asked(judge.log) == ["e0", "e1", "e6"]
    assert "the dataset has changed since; 2 groups are as they were, 2 not" in said[0]
    fresh = tmp_path / "fresh.parquet"
    run(ToyJudge(), changed, fresh)
    assert out.read_bytes() == fresh.read_bytes()
    assert read_reward_table(out, changed)[1].extra["mark"][0] == instruction_mark("leave cube 1 alone")
    assert len({pq.read_schema(path).metadata[b"frames_fingerprint"] for path in (out, fresh, whole)}) == 2


def test_other_lengths_begin_everything_anew(copied, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    fail_then(judge, read_episodes(copied), out, "e6")
    judge.log.unlink()
    write_episodes(copied, [made(n) for n in range(EPISODES + 1)], overwrite=True)
    run(judge, read_episodes(copied), out)
    assert len(asked(judge.log)) == EPISODES + 1


def test_a_moved_dataset_is_the_same_dataset(data, copied, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    fail_then(judge, data, out, "e4")
    judge.log.unlink()
    run(judge, read_episodes(copied), out)
    assert asked(judge.log) == ["e4", "e5", "e6"]


def test_a_damaged_file_of_the_journal_is_scored_again(data, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    fail_then(judge, data, out, "e4")
    path = tmp_path / "t.parquet.partial" / "group-000001.parquet"
    path.write_bytes(path.read_bytes()[:-20])  # a power cut
    judge.log.unlink()
    said: list[str] = []
    score_dataset(judge, Work(episodes=data, out=out, config=TWO), say=said.append)
    assert asked(judge.log) == ["e2", "e3", "e4", "e5", "e6"]
    assert "not readable as parquet" in said[0]
    assert out.read_bytes() == whole.read_bytes()


def test_a_folder_of_something_else_is_not_touched(data, tmp_path):
    folder = tmp_path / "t.parquet.partial"
    folder.mkdir()
    (folder / "thesis.txt").write_text("")
    with pytest.raises(DataError, match=r"holds thesis\.txt, not unfinished scores"):
        run(ToyJudge(), data, tmp_path / "t.parquet")
    (folder / "head.json").write_text("{")
    with pytest.raises(DataError, match=r"head\.json: cannot be read"):
        run(ToyJudge(), data, tmp_path / "t.parquet")
    (folder / "head.json").write_text('{"format": 0}')
    with pytest.raises(DataError, match="of another version"):
        run(ToyJudge(), data, tmp_path / "t.parquet")
    assert (folder / "thesis.txt").exists()


def test_one_process_at_a_time_writes_a_table(data, tmp_path):
    with (
        Journal(tmp_path / "t.parquet.partial", {}, quiet),
        pytest.raises(DataError, match="another process is writing this table"),
    ):
        run(ToyJudge(), data, tmp_path / "t.parquet")
    run(ToyJudge(), data, tmp_path / "t.parquet")


def test_nothing_is_left_when_nothing_was_scored(data, tmp_path):
    fail_then(ToyJudge(), data, tmp_path / "rewards" / "deep" / "t.parquet", "e0")
    assert list(tmp_path.iterdir()) == []


# --- parts ----------------------------------------------------------------------------------------------


def part(number: int, count: int, **changes: object) -> ScoreConfig:
    return replace(TWO, shard=(number, count), **changes)


def test_parts_are_put_together_by_the_last_one(data, whole, tmp_path):
    out = tmp_path / "t.parquet"
    first = run(ToyJudge(), data, out, part(3, 3))
    assert (first.table, first.missing_parts, first.frames) == (part_path(out, 3, 3), (1, 2), 9 + 8)
    assert run(ToyJudge(), data, out, part(1, 3)).missing_parts == (2,)
    with pytest.raises(DataError, match="part 1/3 of a table; put the parts together"):
        read_reward_table(part_path(out, 1, 3), data)
    last = run(ToyJudge(), data, out, part(2, 3))
    assert (last.table, last.missing_parts, last.frames, last.scored_now) == (out, (), FRAMES, 16)
    assert out.read_bytes() == whole.read_bytes()
    assert list(tmp_path.iterdir()) == [out]
    assert run(ToyJudge(), data, out, part(2, 3)).scored_now == 0


@pytest.fixture(scope="module")
def parts(data, tmp_path_factory) -> list[Path]:
    """Three parts that nobody has put together: each lies in a folder of its own."""
    found = []
    for number in (1, 2, 3):
        folder = tmp_path_factory.mktemp("part")
        run(ToyJudge(), data, folder / "t.parquet", part(number, 3))
        found.append(part_path(folder / "t.parquet", number, 3))
    return found


def test_parts_of_several_machines_make_the_same_table(parts, whole, tmp_path):
    merge_reward_tables(parts[::-1], tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == whole.read_bytes()
    assert all(path.exists() for path in parts)


def foreign(folder: Path, data: EpisodeSet, judge: ToyJudge, config: ScoreConfig) -> Path:
    run(judge, data, folder / "t.parquet", config)
    return part_path(folder / "t.parquet", *config.shard)


def renamed(path: Path, to: Path, rows: int | None = None, **facts: str) -> Path:
    """A part with other metadata, or only some of its rows."""
    table = pq.read_table(path)
    known = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    pq.write_table(table.slice(0, rows).replace_schema_metadata(known | facts), to)
    return to


def test_parts_that_do_not_fit_are_refused(parts, data, whole, tmp_path):
    out = tmp_path / "out.parquet"
    a, b, c = parts
    cases: list[tuple[list[Path], str]] = [
        ([], "there are no parts"),
        ([a, c], "part 2 of 3 is missing; score it with --shard=2/3"),
        ([a, b, b], "part 2 of 3 is given already"),
        ([a, b, whole], "not a part of a reward table"),
        ([a, b, tmp_path / "none"], "the file is missing"),
        ([a, b, foreign(tmp_path / "1", data, ToyJudge(model_id="toy@2"), part(3, 3))], "another judge .* judge_id"),
        ([a, b, foreign(tmp_path / "2", data, ToyJudge(prompt="?"), part(3, 3))], "another judge .* judge_prompt"),
        ([a, b, foreign(tmp_path / "3", _other(tmp_path), ToyJudge(), part(3, 3))], "another dataset .* dataset"),
        ([a, b, foreign(tmp_path / "4", data, ToyJudge(), part(3, 4))], "part 3/4, but .* is part 1/3"),
        ([a, b, foreign(tmp_path / "5", data, ToyJudge(), part(3, 3, group_episodes=1))], "another division"),
        ([a, b, renamed(b, tmp_path / "6", shard="3/3")], "episode 2 is in .*shard-2-of-3 and in 6"),
        ([a, b, renamed(c, tmp_path / "7", seen='{"4": ""}')], "episode 5 is in none of the parts"),
        ([a, b, renamed(c, tmp_path / "8", rows=10)], "episode 5 has 2 of 9 rows"),
    ]
    for given, said in cases:
        with pytest.raises(DataError, match=said) as error:
            merge_reward_tables(given, out)
        assert "\n" not in str(error.value)
        assert not out.exists()


def test_there_may_be_more_parts_than_groups(data, whole, tmp_path):
    out = tmp_path / "t.parquet"
    for number in range(1, 7):
        run(ToyJudge(), data, out, part(number, 6))
    assert out.read_bytes() == whole.read_bytes()


def test_a_part_goes_on_where_it_stopped(data, whole, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    with pytest.raises(RewardError):
        run(replace(judge, fails=("e5",)), data, out, part(1, 2))  # groups (0, 1) and (4, 5)
    judge.log.unlink()
    run(judge, data, out, part(1, 2))
    assert asked(judge.log) == ["e4", "e5"]
    run(judge, data, out, part(2, 2))
    assert out.read_bytes() == whole.read_bytes()


# --- processes ------------------------------------------------------------------------------------------


def pool(load: Callable[[], ToyJudge], data: EpisodeSet, out: Path, **changes: object) -> ScoreSummary:
    work = Work(episodes=data, out=out, config=replace(TWO, **changes))
    return score_in_processes(load, work, workers=2, context=multiprocessing.get_context("forkserver"), say=quiet)


class _Different:
    """A judge whose name is another one in every process."""

    def __call__(self) -> ToyJudge:
        return ToyJudge(model_id=f"toy@{os.getpid()}")


def test_several_processes_write_the_same_table(data, whole, tmp_path):
    summary = pool(partial(ToyJudge, log=tmp_path / "log"), data, tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == whole.read_bytes()
    assert sorted(asked(tmp_path / "log")) == [f"e{number}" for number in range(EPISODES)]
    assert (summary.processes, summary.scored_now) == (2, FRAMES)
    assert "in each of 2 processes" in "\n".join(summary.lines())


def test_a_process_that_dies_loses_one_group(data, whole, tmp_path):
    out = tmp_path / "t.parquet"
    with pytest.raises(RewardError, match="a scoring process ended with code -9"):
        pool(partial(ToyJudge, dies=("e6",)), data, out)
    judge = ToyJudge(log=tmp_path / "log")
    run(judge, data, out)
    assert "e6" in asked(judge.log)
    assert len(asked(judge.log)) <= 3  # the group that died, and at most one more that was being scored
    assert out.read_bytes() == whole.read_bytes()


def test_a_mistake_in_a_process_is_told_as_it_is(data, tmp_path):
    with pytest.raises(RewardError, match=r"episode 3 \('e3'\): toy@1: episode 'e3': no answer"):
        pool(partial(ToyJudge, fails=("e3",)), data, tmp_path / "t.parquet")


def test_a_judge_that_is_another_one_in_every_process_is_refused(data, tmp_path):
    with pytest.raises(RewardError, match="the judge is another one in each process"):
        pool(_Different(), data, tmp_path / "t.parquet")


# --- episodes that cannot be scored ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_root(tmp_path_factory) -> Path:
    """Episode 2 has no instruction."""
    folder = tmp_path_factory.mktemp("scoring") / "odd"
    write_episodes(folder, [replace(made(n), instruction="" if n == 2 else f"do {n}") for n in range(EPISODES)])
    return folder


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (ToyJudge(fails=("e1",)), "episode 1 ('e1'): toy@1: episode 'e1': no answer"),
        (ToyJudge(nan=("e1",)), "episode 1 ('e1'): toy@1: episode 'e1': progress is not finite at frame 0"),
        (ToyJudge(), "episode 2 ('e2'): its instruction is empty"),
    ],
)
def test_without_leave_to_skip_the_episode_is_named_and_nothing_is_lost(odd_root, tmp_path, judge, said):
    with pytest.raises(RewardError) as error:
        run(judge, read_episodes(odd_root), tmp_path / "t.parquet")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t.parquet").exists()


def test_with_leave_they_are_listed_and_the_rest_is_scored(odd_root, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(fails=("e0",), nan=("e4",))
    data = read_episodes(odd_root)
    summary = run(judge, data, out, replace(TWO, skip_bad=True))
    assert [one.number for one in summary.skipped] == [0, 2, 4]
    listed = json.loads(skipped_path(out).read_text())
    assert [(one["number"], one["episode_id"]) for one in listed] == [(0, "e0"), (2, "e2"), (4, "e4")]
    assert listed[0]["why"] == "toy@1: episode 'e0': no answer"
    assert listed[1]["why"] == "its instruction is empty"
    assert "progress is not finite" in listed[2]["why"]
    lines = summary.lines()
    assert sum(line.startswith("skipped: episode ") for line in lines) == 3
    assert "3 episodes skipped" in "\n".join(lines)
    # the others of their groups are what they would have been
    clean = ToyJudge()
    for number, kept in enumerate(read_reward_table(out, data, allow_missing=True)):
        if number in (0, 2, 4):
            assert kept is None
        else:
            assert kept is not None
            np.testing.assert_array_equal(kept.progress, clean.score([data[number]])[0].progress)
            assert kept.extra["mark"][0] == instruction_mark(f"do {number}")
    # rows of episodes 1 (8 frames), 3 (7), 5 (9), 6 (7)
    assert pq.read_metadata(out).num_rows == 8 + 7 + 9 + 7 == summary.frames


def test_a_missing_score_is_never_a_number(odd_root, tmp_path):
    out, data = tmp_path / "t.parquet", read_episodes(odd_root)
    run(ToyJudge(), data, out, replace(TWO, skip_bad=True))
    with pytest.raises(DataError, match=r"episode 2 \('e2'\): its instruction is empty \(1 such episodes\)"):
        read_reward_table(out, data)
    # whoever leaves the episode out himself may read the rest
    part = data.select([0, 1, 3])
    assert [signal.episode_id for signal in read_reward_table(out, part)] == ["e0", "e1", "e3"]
    with pytest.raises(DataError, match="'e2'"):
        read_reward_table(out, data.select([0, 2]))


def test_after_mending_only_what_was_missing_is_scored(copied, tmp_path):
    out, judge = tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    broken = rewrite(copied, instruction=" ")
    with pytest.raises(RewardError, match=r"episode 1 .*: its instruction is empty"):
        run(judge, broken, out, replace(TWO, group_episodes=1))
    assert asked(judge.log) == ["e0"]
    mended = rewrite(copied, instruction="put cube 1 away")
    run(judge, mended, out, replace(TWO, group_episodes=1))
    assert asked(judge.log) == [f"e{number}" for number in range(EPISODES)]


def test_leave_to_skip_may_be_given_later_and_taken_back(odd_root, tmp_path):
    data, out, judge = read_episodes(odd_root), tmp_path / "t.parquet", ToyJudge(log=tmp_path / "log")
    with pytest.raises(RewardError):
        run(judge, data, out)
    with pytest.raises(KeyboardInterrupt):  # stopped once more, behind the episode that is skipped
        _stop_after(31, judge, data, out)
    judge.log.unlink()
    with pytest.raises(
        RewardError, match="its instruction is empty"
    ):  # the group with a skipped episode is tried again
        run(judge, data, out)
    run(judge, data, out, replace(TWO, skip_bad=True))
    assert "e0" not in asked(judge.log)
    with pytest.raises(DataError, match="exists already, but lacks episode 2"):
        run(judge, data, out)


def _stop_after(frames: int, judge: ToyJudge, data: EpisodeSet, out: Path) -> None:
    """Score with leave to skip, until so many frames are done."""

    def stop(done: int, total: int) -> None:
        if done >= frames:
            raise KeyboardInterrupt

    run(judge, data, out, replace(TWO, skip_bad=True), progress_callback=stop)


def test_when_no_episode_can_be_scored_it_is_an_error(data, tmp_path):
    judge = ToyJudge(cameras=("top",))
    with pytest.raises(RewardError, match=r"no episode could be scored; episode 0 .*the judge needs camera 'top'"):
        run(judge, data, tmp_path / "t.parquet", replace(TWO, skip_bad=True))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_video_costs_only_its_episode(copied, tmp_path):
    (video,) = (copied / "videos").rglob("*.mp4")
    content = bytearray(video.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(20)
    video.write_bytes(bytes(content))
    good, bad = read_episodes(copied, skip_bad=True)
    (lost,) = (one.number for one in bad)
    out = tmp_path / "t.parquet"
    work = Work(episodes=good, out=out, bad=tuple(bad), config=replace(TWO, skip_bad=True))
    summary = score_dataset(ToyJudge(), work, say=quiet)
    assert [one.number for one in summary.skipped] == [lost]
    assert len(read_reward_table(out, good)) == EPISODES - 1
    assert json.loads(skipped_path(out).read_text())[0]["why"].count("the video is damaged") == 1


def test_skipped_episodes_survive_parts(odd_root, tmp_path):
    data = read_episodes(odd_root)
    for number in (1, 2):
        run(ToyJudge(), data, tmp_path / "t.parquet", part(number, 2, skip_bad=True))
    run(ToyJudge(), data, tmp_path / "whole.parquet", replace(TWO, skip_bad=True))
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert skipped_path(tmp_path / "t.parquet").read_text() == skipped_path(tmp_path / "whole.parquet").read_text()


# --- memory ---------------------------------------------------------------------------------------------

PEAK = """
import sys
from pathlib import Path
from scoring_toy import ToyJudge
from reward_models.scoring import Work, score_dataset
from robo_rl.data import read_episodes
summary = score_dataset(ToyJudge(), Work(episodes=read_episodes(sys.argv[1]), out=Path(sys.argv[2])), say=len)
print(summary.peak_memory, summary.scored_now)
"""


def test_ten_times_as_many_frames_take_no_more_memory(tmp_path):
    peaks = []
    for name, count in (("one", 4), ("ten", 40)):
        images = {"front": np.full((26, 256, 256, 3), 99, np.uint8)}
        write_episodes(tmp_path / name, (episode(n, 25, images=images) for n in range(count)))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / name), str(tmp_path / f"{name}.parquet")],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
        )
        peak, frames = map(int, done.stdout.split())
        assert frames == 26 * count
        peaks.append(peak / 1e6)
    # 20 and 204 MB of frames. A group of 16 episodes is 82 MB, the first dataset has but one of 20 MB: 62 MB more
    assert peaks[1] < peaks[0] + 62 + 40, peaks


# --- the command ----------------------------------------------------------------------------------------

JUDGE = """
type: causal
name: small
backbone: {type: compact, cameras: [front], channels: 8, dim: 16, layers: 1, queries: 4, values: 4, map_size: 4}
objectives: {progress: {}}
"""


@pytest.fixture(scope="module")
def judge_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("judge") / "small.yaml"
    path.write_text(JUDGE)
    return path


def command(*arguments: object) -> int:
    return cli.main(["reward", *map(str, arguments)])


def test_any_judge_file_scores_a_dataset(judge_file, copied, capsys):
    assert command("score", judge_file, copied) == 0
    said = capsys.readouterr()
    table = copied / "rewards" / "small.parquet"
    assert f"{table}: 55 frames, judged by small@" in said.out
    for word in ("frames/s", "ms a frame", "peak memory", "0 frames without an answer; 0 episodes skipped"):
        assert word in said.out
    assert "score: started" in said.err
    assert len(read_reward_table(table, read_episodes(copied))) == EPISODES
    facts = pq.read_schema(table).metadata
    assert b"judge_objectives" in facts


def test_parts_by_command(judge_file, copied, tmp_path, capsys):
    out = tmp_path / "t.parquet"
    assert command("score", judge_file, copied, f"--out={out}", "--shard=1/2") == 0
    assert "still to be scored: part 2" in capsys.readouterr().out
    shutil.move(part_path(out, 1, 2), tmp_path / "first")
    assert command("score", judge_file, copied, f"--out={out}", "--shard=2/2") == 0
    both = [tmp_path / "first", part_path(out, 2, 2)]
    assert reward_merge(Namespace(parts=both, out=tmp_path / "m.parquet")) == 0
    assert "m.parquet: 55 frames of 2 parts, 0 of them without an answer" in capsys.readouterr().out
    assert len(read_reward_table(tmp_path / "m.parquet", read_episodes(copied))) == EPISODES
    with pytest.raises(DataError, match="part 2 of 2 is missing"):
        reward_merge(Namespace(parts=both[:1], out=tmp_path / "n.parquet"))
    with pytest.raises(DataError, match="already exists"):
        reward_merge(Namespace(parts=both, out=tmp_path / "m.parquet"))


def test_workers_by_command(judge_file, copied, monkeypatch, capsys):
    # the processes themselves are tested above; here, that the command hands over what they need
    seen: dict[str, object] = {}

    def here(load: Callable[[], object], work: Work, **more: object) -> ScoreSummary:
        seen.update(more, load=load)
        return score_dataset(load(), work, say=quiet)

    monkeypatch.setattr("reward_models.scoring_pool.score_in_processes", here)
    assert command("score", judge_file, copied, "--workers=3") == 0
    assert seen["workers"] == 3
    assert seen["load"].args == (judge_file,)
    assert seen["context"].get_start_method() in ("forkserver", "spawn")
    assert command("score", judge_file, copied, "--workers=0") == 2
    assert "--workers must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "a/b", "1/0"])
def test_a_part_that_cannot_be_is_refused(judge_file, copied, text, capsys):
    with pytest.raises(SystemExit) as end:
        command("score", judge_file, copied, f"--shard={text}")
    assert end.value.code == 2
    assert "must be I/N" in capsys.readouterr().err


def test_a_bad_episode_ends_in_one_line_and_with_leave_in_a_list(judge_file, odd_root, tmp_path, capsys):
    out = tmp_path / "t.parquet"
    assert command("score", judge_file, odd_root, f"--out={out}") == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("robo-rl: ")]
    assert "episode 2 ('e2'): its instruction is empty" in said
    assert command("score", judge_file, odd_root, f"--out={out}", "--skip-bad") == 0
    assert "skipped: episode 2 ('e2'): its instruction is empty" in capsys.readouterr().out


def test_an_audit_takes_a_judge_file(judge_file, root, tmp_path):
    assert command("audit", judge_file, root, f"--out={tmp_path / 'audit.json'}") in (0, 1)
    assert json.loads((tmp_path / "audit.json").read_text())["rows"]
