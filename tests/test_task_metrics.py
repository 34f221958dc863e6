"""Metrics by task, on the scale 1-5, of pairs; recalibration on held-out episodes. Worked by hand, and laws."""

import math
from itertools import product

import numpy as np
import pytest

from reward_models import metrics
from reward_models.rating_metrics import rating_mae, rating_of
from reward_models.recalibrate import (
    Isotonic,
    Temperature,
    fit_isotonic,
    fit_temperature,
    recalibrate,
    split_by_episode,
)
from reward_models.task_metrics import (
    kendall_tau_outcome_macro,
    kendall_tau_quality,
    kendall_tau_quality_macro,
    macro,
    pair_accuracy,
    pair_accuracy_with_ties,
    ranking_accuracy,
)
from robo_rl.errors import DataError
from robo_rl.statistics import auroc, brier


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


# --- by task ------------------------------------------------------------------------------------------------


def test_outcome_tau_is_a_mean_over_tasks_with_both_outcomes() -> None:
    # task a: .9 against .1: +1. Task b: .2 against .3 and .2: -1 and a tie, (0 - 1) / 2. Task c has no failure.
    scores, labels = array(0.9, 0.1, 0.2, 0.3, 0.2, 0.7), array(1, 0, 1, 0, 0, 1)
    found = kendall_tau_outcome_macro(scores, labels, list("aabbbc"))
    assert found.value == pytest.approx((1.0 - 0.5) / 2)
    assert (found.count, found.reason) == (2, "undefined for 1 of 3")
    nothing = kendall_tau_outcome_macro(array(0.1, 0.2), array(1, 1), ["a", "b"])
    assert math.isnan(nothing.value)
    assert nothing.reason == "undefined for 2 of 2"


def test_a_judge_that_is_generous_with_one_task_is_not_punished_for_it() -> None:
    # failures of task b score above successes of task a; within each task the order is right
    scores, labels, tasks = array(0.3, 0.1, 0.9, 0.7), array(1, 0, 1, 0), list("aabb")
    assert kendall_tau_outcome_macro(scores, labels, tasks).value == 1.0
    assert metrics.kendall_tau_outcome(scores, labels).value == pytest.approx(0.5)  # 3 right, 1 wrong of 4
    assert ranking_accuracy(scores, labels, tasks).value == 1.0


def test_quality_tau_by_hand() -> None:
    # failure .2, suboptimal .2 and .6, success .5. Tuples (.2, .2, .5): tie, +, + = 2/3; (.2, .6, .5): +, +, - = 1/3
    found = kendall_tau_quality(array(0.2, 0.2, 0.6, 0.5), array(1, 2, 2, 3))
    assert found.value == pytest.approx(0.5)
    assert math.isnan(kendall_tau_quality(array(0.2, 0.3), array(2, 2)).value)


def test_quality_tau_is_the_mean_over_all_tuples_and_over_pairs_of_levels() -> None:
    rng = np.random.default_rng(0)
    scores, quality = rng.integers(0, 5, 14) / 4, np.array([1] * 3 + [2] * 5 + [3] * 6)
    tuples = []
    for clip in product(*(scores[quality == level] for level in (1, 2, 3))):
        tuples.append(metrics.kendall_tau_ranking(np.array(clip), np.array([1, 2, 3])).value)
    found = kendall_tau_quality(scores, quality).value
    assert found == pytest.approx(np.mean(tuples))
    areas = []
    for low, high in ((1, 2), (1, 3), (2, 3)):
        rows = np.isin(quality, (low, high))
        areas.append(2 * auroc(scores[rows], quality[rows] == high).value - 1)
    assert found == pytest.approx(np.mean(areas))
    # with two levels it is the tau of outcomes
    two = quality != 2
    assert kendall_tau_quality(scores[two], quality[two]).value == pytest.approx(
        metrics.kendall_tau_outcome(scores[two], quality[two] == 3).value
    )


def test_quality_tau_over_tasks_leaves_out_tasks_of_one_level() -> None:
    scores, quality = array(0.1, 0.9, 0.9, 0.1, 0.5), array(1, 3, 1, 2, 1)
    found = kendall_tau_quality_macro(scores, quality, list("aabbc"))
    assert (found.value, found.count, found.reason) == (0.0, 2, "undefined for 1 of 3")


def test_ranking_accuracy_counts_pairs_of_different_labels_within_a_task() -> None:
    # task a: labels 1, 2, 2 and scores .1, .3, .1: one right, one tie. Task b: 1, 3 and .5, .4: wrong
    scores, quality, tasks = array(0.1, 0.3, 0.1, 0.5, 0.4), array(1, 2, 2, 1, 3), list("aaabb")
    assert ranking_accuracy(scores, quality, tasks).value == pytest.approx(1 / 3)
    assert ranking_accuracy(scores, quality, tasks, ties="half").value == pytest.approx(1.5 / 3)
    assert ranking_accuracy(scores, quality, tasks).count == 3
    assert math.isnan(ranking_accuracy(array(0.1, 0.2), array(1, 2), ["a", "b"]).value)


def test_macro_of_any_metric() -> None:
    found = macro(metrics.success_failure_gap, array(0.9, 0.1, 0.4, 0.2), array(1, 0, 1, 0), list("aabb"))
    assert found.value == pytest.approx((0.8 + 0.2) / 2)


def test_half_right_ties_are_the_auroc() -> None:
    scores, labels = array(0.9, 0.5, 0.5, 0.1), array(1, 1, 0, 0)
    assert metrics.preference_accuracy(scores, labels).value == pytest.approx(3 / 4)
    assert metrics.preference_accuracy(scores, labels, ties="half").value == pytest.approx(3.5 / 4)
    assert metrics.preference_accuracy(scores, labels, ties="half").value == pytest.approx(auroc(scores, labels).value)
    with pytest.raises(DataError, match="ties must be 'wrong' or 'half'"):
        metrics.preference_accuracy(scores, labels, ties="right")  # type: ignore[arg-type]


def test_pairs_with_labels() -> None:
    # told apart: right, wrong, equal scores; a labelled tie with .1 between its scores
    a, b, labels = array(0.9, 0.2, 0.5, 0.5), array(0.1, 0.4, 0.5, 0.6), array(1, 1, -1, 0)
    assert pair_accuracy(a, b, labels).value == pytest.approx(1 / 3)
    assert pair_accuracy(a, b, labels, ties="half").value == pytest.approx(1.5 / 3)
    assert pair_accuracy(a, b, labels).count == 3
    assert pair_accuracy_with_ties(a, b, labels).value == pytest.approx(1 / 4)
    assert pair_accuracy_with_ties(a, b, labels, margin=0.15).value == pytest.approx(2 / 4)
    assert math.isnan(pair_accuracy(a[3:], b[3:], labels[3:]).value)
    with pytest.raises(DataError, match="that of pair 1 is 2"):
        pair_accuracy(a[:2], b[:2], array(1, 2))


# --- of one video, and of its end --------------------------------------------------------------------------


def test_pearson_to_the_truth_by_hand() -> None:
    # (0, .5, .4) and (0, .5, 1): centred (-.3, .2, .1), (-.5, 0, .5): .2 / sqrt(.14 * .5) = .756
    found = metrics.progress_pearson(array(0.0, 0.5, 0.4), array(0.0, 0.5, 1.0))
    assert found.value == pytest.approx(0.2 / math.sqrt(0.14 * 0.5))
    assert metrics.progress_pearson(array(1, 1), array(0, 1)).reason == "constant prediction"
    assert metrics.progress_pearson(array(0, 1), array(1, 1)).reason == "constant true progress"


def test_terminal_mse_against_soft_targets_is_brier_for_hard_ones() -> None:
    assert metrics.terminal_mse(array(0.5, 1.0), array(0.7, 0.8)).value == pytest.approx(0.04)
    scores, labels = array(0.2, 0.9, 0.4), array(0, 1, 1)
    assert metrics.terminal_mse(scores, labels).value == pytest.approx(brier(scores, labels).value)
    assert math.isnan(metrics.terminal_mse(array(), array()).value)
    with pytest.raises(DataError, match="number 1 is 2"):
        metrics.terminal_mse(array(0, 0), array(0, 2))


# --- 1 to 5 --------------------------------------------------------------------------------------------------


def test_rating_of_a_continuous_judge() -> None:
    # 4 v = -.4, .4, .6, 2.4, 3.6, 4.4
    assert rating_of(array(-0.1, 0.1, 0.15, 0.6, 0.9, 1.1)).tolist() == [1, 1, 2, 3, 5, 5]
    assert rating_of((np.array([1, 2, 3, 4, 5]) - 1) / 4).tolist() == [1, 2, 3, 4, 5]


def test_mae_macro_counts_every_subset_alike() -> None:
    # subset x: errors 0, 1, 2: mean 1; subset y: 3. macro 2, micro 6 / 4
    found = rating_mae(array(1, 2, 3, 5), array(1, 1, 5, 2), ["x", "x", "x", "y"])
    assert (found.macro.value, found.micro.value) == (pytest.approx(2.0), pytest.approx(1.5))
    assert {name: part.value for name, part in found.by_subset.items()} == {"x": 1.0, "y": 3.0}
    assert rating_mae(array(1, 2), array(1, 1)).macro.value == rating_mae(array(1, 2), array(1, 1)).micro.value
    assert math.isnan(rating_mae(array(), array()).macro.value)


def test_ratings_are_whole_numbers_from_1_to_5() -> None:
    with pytest.raises(DataError, match="every rating must be 1, 2, 3, 4 or 5; number 1 is 6"):
        rating_mae(array(1, 1), array(1, 6))
    with pytest.raises(DataError, match="every predicted rating"):
        rating_mae(array(1.5), array(1))


# --- recalibration -------------------------------------------------------------------------------------------


def overconfident(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes with probability p, and what a judge says whose logits are three times too large."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1.2, n)
    return 1 / (1 + np.exp(-3 * x)), (rng.random(n) < 1 / (1 + np.exp(-x))).astype(np.float64)


def test_temperature_1_is_the_identity_and_one_half_stays() -> None:
    p = array(0.0, 0.2, 0.5, 0.9, 1.0)
    assert Temperature().apply(p).tolist() == p.tolist()
    assert Temperature(temperature=3.0).apply(p)[[0, 2, 4]].tolist() == [0.0, 0.5, 1.0]
    # logit(.9) = ln 9, halved is ln 3, which is 3 / 4
    assert Temperature(temperature=2.0).apply(array(0.9))[0] == pytest.approx(0.75)


def test_temperature_finds_how_much_too_certain_a_judge_is() -> None:
    p, z = overconfident(4000)
    assert fit_temperature(p, z).temperature == pytest.approx(3.0, rel=0.1)


def test_temperature_never_has_more_log_loss_than_the_identity_where_it_was_fitted() -> None:
    for seed in range(5):
        p, z = overconfident(40, seed)
        mended = fit_temperature(p, z).apply(p)
        loss = [-np.mean(z * np.log(q) + (1 - z) * np.log1p(-q)) for q in (p, mended)]
        assert loss[1] <= loss[0] + 1e-12


def test_isotonic_by_hand() -> None:
    # outcomes 0, 1, 0, 1 in rising order of p: the two in the middle are pooled to .5
    found = fit_isotonic(array(0.1, 0.4, 0.6, 0.9), array(0, 1, 0, 1))
    assert found.apply(array(0.1, 0.4, 0.6, 0.9)).tolist() == [0.0, 0.5, 0.5, 1.0]
    assert found.apply(array(0.0, 0.25, 1.0)).tolist() == pytest.approx([0.0, 0.25, 1.0])


def test_isotonic_is_never_worse_in_brier_where_it_was_fitted_and_keeps_the_order() -> None:
    for seed in range(5):
        p, z = overconfident(60, seed)
        mended = fit_isotonic(p, z).apply(p)
        assert brier(mended, z).value <= brier(p, z).value
        assert brier(mended, z).value <= brier(fit_temperature(p, z).apply(p), z).value + 1e-12
        assert (np.diff(mended[np.argsort(p)]) >= 0).all()


@pytest.mark.parametrize("fit", [fit_temperature, fit_isotonic])
def test_one_outcome_only_gives_the_identity_with_a_reason(fit) -> None:
    found = fit(array(0.2, 0.4), array(1, 1))
    assert found.apply(array(0.2, 0.7)).tolist() == [0.2, 0.7]
    assert found.reason == "2 successes and 0 failures to fit to"


def test_split_keeps_episodes_whole_and_outcomes_halved() -> None:
    names = [f"e{n // 3}" for n in range(36)]  # twelve episodes of three rows
    labels = np.repeat(array(*([1] * 4 + [0] * 8)), 3)
    to_fit, to_measure = split_by_episode(names, labels, rng=np.random.default_rng(1))
    assert (to_fit ^ to_measure).all()
    assert all(len(set(to_fit[3 * n : 3 * n + 3])) == 1 for n in range(12))
    assert (labels[to_fit].sum() / 3, labels[to_measure].sum() / 3) == (2, 2)


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_recalibration_helps_on_episodes_it_has_not_seen(method) -> None:
    p, z = overconfident(1500)
    names = [str(n) for n in range(len(p))]
    found = recalibrate(p, z, names, method=method, rng=np.random.default_rng(0))
    assert found.brier_after.value < found.brier_before.value - 0.01
    assert found.ece_after.value < found.ece_before.value / 2
    assert found.num_fitted + found.num_measured == 1500
    assert abs(found.num_fitted - found.num_measured) <= 2
    assert sum(part.count for part in found.diagram_after) == found.num_measured
    again = recalibrate(p, z, names, method=method, rng=np.random.default_rng(0))
    assert again == found


def test_recalibration_names_what_is_wrong() -> None:
    with pytest.raises(DataError, match=r"number 1 is 1\.2"):
        recalibrate(array(0.2, 1.2), array(0, 1), ["a", "b"], method="isotonic", rng=np.random.default_rng(0))
    with pytest.raises(DataError, match="method must be"):
        recalibrate(array(0.2), array(0), ["a"], method="platt", rng=np.random.default_rng(0))  # type: ignore[arg-type]
    assert Isotonic().apply(array(0.3)).tolist() == [0.3]


# --- intervals -----------------------------------------------------------------------------------------------


def test_bootstrap_redraws_whole_clusters() -> None:
    # two videos, each shown under 50 instructions: the mean of what is drawn is 0, 1/2 or 1, so the interval is [0, 1]
    values, clusters = np.repeat(array(0, 1), 50), np.repeat(["u", "v"], 50)
    statistic = lambda rows: float(values[rows].mean())  # noqa: E731
    whole = metrics.bootstrap(0.5, statistic, 100, clusters=clusters, rng=np.random.default_rng(0))
    apart = metrics.bootstrap(0.5, statistic, 100, rng=np.random.default_rng(0))
    assert (whole.low, whole.high, whole.count) == (0.0, 1.0, 2)
    assert apart.high - apart.low < 0.25
    one = metrics.bootstrap(0.5, statistic, 100, clusters=np.zeros(100), rng=np.random.default_rng(0))
    assert math.isnan(one.low)
    assert one.reason == "too few episodes for an interval"


def test_bootstrap_with_clusters_of_one_is_the_plain_one() -> None:
    values = np.random.default_rng(0).normal(size=30)
    statistic = lambda rows: float(values[rows].mean())  # noqa: E731
    plain = metrics.bootstrap(0.0, statistic, 30, rng=np.random.default_rng(5))
    clustered = metrics.bootstrap(0.0, statistic, 30, clusters=np.arange(30), rng=np.random.default_rng(5))
    assert (plain.low, plain.high) == (pytest.approx(clustered.low), pytest.approx(clustered.high))
