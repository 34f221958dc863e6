"""Evaluation results: rates, paired comparison, storage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robo_rl.errors import DataError
from robo_rl.evaluation import EvaluationResult, compare
from robo_rl.types import EpisodeResult


def episodes(successes: str, *, first: int = 0, steps: int = 10) -> list[EpisodeResult]:
    """One episode a letter: s success, f failure, t timeout, x abort. Tasks alternate a, b."""
    outcomes = {"s": "success", "f": "failure", "t": "timeout", "x": "abort"}
    return [
        EpisodeResult(
            task="ab"[i % 2],
            index=first + i,
            success=letter == "s",
            steps=steps + i,
            seconds=0.5,
            extra={"outcome": outcomes[letter], "policy_id": "someone"},
        )
        for i, letter in enumerate(successes)
    ]


def result(successes: str, *, seed: int = 1, first: int = 0, steps: int = 10, world: str = "w") -> EvaluationResult:
    return EvaluationResult.from_episodes(episodes(successes, first=first, steps=steps), seed=seed, world=world)


def test_summary_counts_by_hand() -> None:
    # sssfttxs: 4 successes of 7 valid; task a (even places) s s t x -> 2 of 3, task b s f t s -> 2 of 4.
    summary = result("sssfttxs").summary()
    assert (summary.num_episodes, summary.num_aborted) == (8, 1)
    assert summary.success.value == pytest.approx(4 / 7)
    assert summary.success.count == 7
    assert summary.per_task["a"].value == pytest.approx(2 / 3)
    assert summary.per_task["b"].value == pytest.approx(2 / 4)
    # Successes are episodes 0, 1, 2, 7 with 10, 11, 12, 17 steps: mean 12.5.
    assert summary.mean_steps_of_successes == pytest.approx(12.5)
    assert summary.seconds_per_episode == pytest.approx(0.5)
    # Wilson, 4 of 7, z = 1.96: centre (4/7 + z^2/14) / (1 + z^2/7) = .5461, half width .2958
    assert summary.success.low == pytest.approx(0.2505, abs=1e-3)
    assert summary.success.high == pytest.approx(0.8418, abs=1e-3)


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    failed = result("ft").summary()
    assert math.isnan(failed.mean_steps_of_successes)
    assert failed.as_dict()["mean_steps_of_successes"] is None
    aborted = result("xx").summary()
    assert not aborted.success.defined
    assert aborted.as_dict()["success"]["value"] is None
    assert aborted.success.reason == "no trials"


def test_the_policy_is_named_by_its_results() -> None:
    assert result("sf").policy_id == "someone"
    mixed = [*episodes("s"), replace(episodes("s", first=1)[0], extra={"policy_id": "other"})]
    with pytest.raises(DataError, match="several policies: other, someone"):
        EvaluationResult.from_episodes(mixed, seed=1)
    assert EvaluationResult.from_episodes(mixed, seed=1, policy_id="both").policy_id == "both"


def test_compare_pairs_by_index() -> None:
    # a: s s s s s s f f   b: s f f f f f f s -> only a: 5, only b: 1, both: 1, neither: 1.
    # Exact two-sided McNemar: 2 (C(6,0) + C(6,1)) / 2^6 = 2 x 7 / 64 = 0.21875.
    a, b = result("ssssssff"), result("sffffffs", steps=14)
    comparison = compare(a, b)
    assert (comparison.test.both, comparison.test.only_a, comparison.test.only_b, comparison.test.neither) == (
        1,
        5,
        1,
        1,
    )
    assert comparison.test.p_value == pytest.approx(0.21875)
    assert comparison.difference.value == pytest.approx(6 / 8 - 2 / 8)
    assert comparison.difference.low < 0.5 < comparison.difference.high
    # Only episode 0 is a success of both: 14 - 10 steps.
    assert comparison.steps_saved == pytest.approx(4.0)
    # The order in which episodes ran does not matter.
    order = np.array([3, 1, 0, 2, 7, 6, 5, 4])
    shuffled = replace(
        b, **{n: getattr(b, n)[order] for n in ("task", "index", "success", "steps", "seconds", "aborted")}
    )
    assert compare(a, shuffled) == comparison


def test_an_aborted_episode_drops_its_pair() -> None:
    comparison = compare(result("ssfx"), result("xsss"))
    # Pairs left: (s, s), (f, s).
    assert (comparison.num_pairs, comparison.num_dropped) == (2, 2)
    assert (comparison.rate_a.value, comparison.rate_b.value) == (0.5, 1.0)
    assert math.isnan(compare(result("f"), result("s")).steps_saved)
    assert compare(result("f"), result("s")).as_dict()["steps_saved"] is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (result("sf", seed=2), "seed 1 against 2"),
        (result("sf", world="v"), "world 'w' against 'v'"),
        (result("sf", first=1), "2 indices are in one of them only, the first is 0"),
        (result("sfs"), "1 indices are in one of them only, the first is 2"),
        (replace(result("sf"), task=np.array(["a", "c"])), "index 1 is 'b' against 'c'"),
    ],
)
def test_different_initial_states_are_not_compared(other: EvaluationResult, message: str) -> None:
    with pytest.raises(DataError, match=f"not evaluated on the same initial states: {message}"):
        compare(result("sf"), other)


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "stage" / "evaluation.json"
    original = result("ssfxt")
    original.save(path)
    loaded = EvaluationResult.load(path)
    assert (loaded.seed, loaded.policy_id, loaded.world) == (1, "someone", "w")
    for name in ("task", "index", "success", "steps", "seconds", "aborted"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(original, name))
    assert [file.name for file in path.parent.iterdir()] == ["evaluation.json"]  # no temporary file is left
    assert json.loads(path.read_text())["summary"]["success"]["count"] == 4


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluation.json"
    result("ss").save(path)
    before = path.read_text()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        result("ff").save(path)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not an evaluation that can be read"),
        ("[]", "not an evaluation of format 1"),
        ('{"format": 1}', "a broken evaluation"),
        ('{"format": 9}', "not an evaluation of format 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "evaluation.json"
    with pytest.raises(DataError, match=f"{path}: no such evaluation"):
        EvaluationResult.load(path)
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        EvaluationResult.load(path)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = result("sf")
    with pytest.raises(DataError, match=r"steps must be \(2,\)"):
        replace(good, steps=np.arange(3))
    with pytest.raises(DataError, match="index 0 occurs more than once"):
        replace(good, index=np.zeros(2, np.int64))
    with pytest.raises(DataError, match="index 0 is both a success and aborted"):
        replace(good, aborted=np.ones(2, bool))
    with pytest.raises(DataError, match="success must be bool"):
        replace(good, success=np.ones(2))
    with pytest.raises(DataError, match="no episodes"):
        EvaluationResult.from_episodes([], seed=0)
    path = tmp_path / "evaluation.json"
    good.save(path)
    path.write_text(path.read_text().replace('"aborted": [\n   false,', '"aborted": [\n   true,'))
    with pytest.raises(DataError, match=f"{path}: evaluation: index 0 is both"):
        EvaluationResult.load(path)
