"""Quality of a judge: worked examples by hand, laws, and what is undefined."""

import json
import math

import numpy as np
import pytest

from reward_models import metrics
from reward_models.calibrate import MIN_PER_CLASS, apply_calibration, fit_calibration
from reward_models.quality import measure_quality
from robo_rl.errors import DataError
from robo_rl.statistics import auroc
from robo_rl.types import Outcome, RewardSignal, Trajectory


def trajectory(name: str, outcome: Outcome, steps: int = 3) -> Trajectory:
    return Trajectory(
        episode_id=name,
        instruction="do it",
        images={},
        state=np.zeros((steps + 1, 1), np.float32),
        actions=np.zeros((steps, 1), np.float32),
        controller=np.zeros(steps, np.int8),
        outcome=outcome,
        fps=10.0,
    )


def signal(name: str, progress: list[float], success: list[float] | None = None) -> RewardSignal:
    return RewardSignal(
        episode_id=name,
        model_id="m@1",
        progress=np.array(progress, np.float32),
        success_prob=None if success is None else np.array(success, np.float32),
    )


def test_voc_by_hand() -> None:
    # ranks of (.1, .4, .2, .9) are (1, 3, 2, 4), of time (1, 2, 3, 4): d = (0, 1, -1, 0),
    # Spearman = 1 - 6 * 2 / (4 * 15) = 0.8
    assert metrics.voc(np.array([0.1, 0.4, 0.2, 0.9])).value == pytest.approx(0.8)


def test_voc_gives_ties_their_average_rank() -> None:
    # ranks of (0, .5, .5) are (1, 2.5, 2.5) against (1, 2, 3): Pearson of (-1, .5, .5) and (-1, 0, 1)
    # = 1.5 / sqrt(1.5 * 2) = 0.8660
    assert metrics.voc(np.array([0.0, 0.5, 0.5])).value == pytest.approx(1.5 / math.sqrt(3.0))


def test_a_clock_has_voc_1_and_vroc_minus_1() -> None:
    clock = np.linspace(0, 1, 9)
    assert metrics.voc(clock).value == pytest.approx(1.0)
    assert metrics.vroc(clock).value == pytest.approx(-1.0)
    assert metrics.vroc(clock[::-1]).value == pytest.approx(1.0)  # falls while the video runs backwards: right


def test_a_constant_is_undefined_and_says_why() -> None:
    found = metrics.voc(np.full(5, 0.3))
    assert math.isnan(found.value)
    assert found.reason == "constant prediction"
    mean = metrics.mean_defined([found, metrics.voc(np.arange(5.0))])
    assert (mean.value, mean.count, mean.reason) == (pytest.approx(1.0), 1, "undefined for 1 of 2")
    assert math.isnan(metrics.mean_defined([found]).value)


def test_tau_of_outcomes_by_hand_and_its_identity_with_auroc() -> None:
    # successes .9, .5; failures .5, .1: pairs (.9, .5) +, (.9, .1) +, (.5, .5) tie, (.5, .1) +: 3 / 4
    scores, labels = np.array([0.9, 0.5, 0.5, 0.1]), np.array([1, 1, 0, 0])
    assert metrics.kendall_tau_outcome(scores, labels).value == pytest.approx(0.75)
    rng = np.random.default_rng(3)
    for _ in range(20):
        labels = rng.permutation([0] * 7 + [1] * 5)
        scores = rng.integers(0, 6, 12) / 5  # with many ties
        tau = metrics.kendall_tau_outcome(scores, labels).value
        assert tau == pytest.approx(2 * auroc(scores, labels).value - 1)


def test_tau_without_one_of_the_outcomes_is_undefined() -> None:
    found = metrics.kendall_tau_outcome(np.array([0.1, 0.2]), np.array([1, 1]))
    assert math.isnan(found.value)
    assert found.reason == "2 successes and 0 failures"


def test_ranking_tau_keeps_ties_in_the_denominator() -> None:
    # levels 1, 2, 3, 3 and scores .1, .1, .5, .9: pairs (1,2) tie, (1,3) (1,3) (2,3) (2,3) right, (3,3) tie: 4 / 6
    found = metrics.kendall_tau_ranking(np.array([0.1, 0.1, 0.5, 0.9]), np.array([1, 2, 3, 3]))
    assert found.value == pytest.approx(4 / 6)


def test_preference_counts_a_tie_as_wrong_and_the_gap_is_of_means() -> None:
    scores, labels = np.array([0.9, 0.5, 0.5, 0.1]), np.array([1, 1, 0, 0])
    assert metrics.preference_accuracy(scores, labels).value == pytest.approx(3 / 4)
    assert metrics.success_failure_gap(scores, labels).value == pytest.approx(0.7 - 0.3)
    assert math.isnan(metrics.success_failure_gap(scores, np.ones(4)).value)


def test_ece_by_hand() -> None:
    # sorted p: .1 .3 | .6 .8 in two bins of equal mass. Bin 1: confidence .2, observed 0, gap .2.
    # Bin 2: confidence .7, observed .5, gap .2. ECE = (2 * .2 + 2 * .2) / 4 = .2
    p, z = np.array([0.8, 0.1, 0.6, 0.3]), np.array([1, 0, 0, 0])
    bins = metrics.reliability_bins(p, z, 2)
    assert [(b.confidence, b.observed, b.count) for b in bins] == [
        (pytest.approx(0.2), 0.0, 2),
        (pytest.approx(0.7), 0.5, 2),
    ]
    assert metrics.ece(p, z, 2).value == pytest.approx(0.2)


def test_ece_bins_have_equal_mass_and_never_more_bins_than_episodes() -> None:
    p = np.linspace(0, 1, 32)
    assert {b.count for b in metrics.reliability_bins(p, p > 0.5, 15)} == {2, 3}
    assert len(metrics.reliability_bins(p[:4], p[:4] > 0.5, 15)) == 4
    assert math.isnan(metrics.ece(np.array([]), np.array([])).value)


def test_tri_state_labels_need_more_than_kappa() -> None:
    # deltas .2, .02, 0, -.2: median |delta| = .11, kappa = max(.01, .0275): .02 is stagnant
    labels = metrics.tri_state_labels(np.array([0.0, 0.2, 0.22, 0.22, 0.02]))
    assert labels.tolist() == [0, 1, 1, 2]


def test_tri_state_confusion_and_macro_f1() -> None:
    true, said = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    assert metrics.tri_state_confusion(said, true).tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
    # F1: class 0 = 2*1/(2+1) = 2/3; class 1 = 2*1/(1+3) = 1/2; class 2 = 0; macro = 7/18
    assert metrics.tri_state_f1(said, true).value == pytest.approx(7 / 18)
    assert math.isnan(metrics.tri_state_f1(np.array([], int), np.array([], int)).value)


def test_progress_mse() -> None:
    # (.1^2 + .3^2) / 2 = .05
    assert metrics.progress_mse(np.array([0.1, 0.5]), np.array([0.0, 0.8])).value == pytest.approx(0.05)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.voc(np.array([0.0, np.nan])),
        lambda: metrics.ece(np.array([0.5]), np.array([2])),
        lambda: metrics.progress_mse(np.zeros(2), np.zeros(3)),
        lambda: metrics.kendall_tau_ranking(np.zeros(2), np.zeros(3)),
    ],
)
def test_bad_input_is_named(call) -> None:
    with pytest.raises(DataError):
        call()


def test_scores_of_frames_and_judges_without_a_success_head() -> None:
    signals = [signal("a", [0.1, 0.7, 0.6, 0.2], [0.3, 0.9, 0.8, 0.4]), signal("b", [0.1, 0.2, 0.3, 0.5])]
    assert metrics.final_scores(signals).tolist() == pytest.approx([0.4, 0.5])
    assert metrics.final_scores(signals, "max").tolist() == pytest.approx([0.9, 0.5])
    assert metrics.final_scores(signals, "middle").tolist() == pytest.approx([0.8, 0.3])


def test_outcome_auroc_leaves_out_episodes_without_a_label_and_its_interval_holds_it() -> None:
    outcomes = [Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.ABORT, Outcome.SUCCESS, Outcome.FAILURE]
    finals = [0.9, 0.2, 1.0, 0.4, 0.5]
    episodes = [trajectory(str(n), outcome) for n, outcome in enumerate(outcomes)]
    signals = [signal(str(n), [0, 0, 0, 0.1], [0.1, 0.1, 0.1, final]) for n, final in enumerate(finals)]
    # successes .9, .4 against failures .2, .5: 3 of 4 pairs right
    found = metrics.outcome_auroc(signals, episodes, rng=np.random.default_rng(0))
    assert found.value == pytest.approx(0.75)
    assert found.count == 4
    assert found.low < 0.75 < found.high


def test_quality_is_json_with_reasons_for_what_is_missing() -> None:
    episodes = [trajectory("a", Outcome.SUCCESS), trajectory("b", Outcome.TIMEOUT)]
    signals = [signal("a", [0, 0.2, 0.4, 1.0], [0.2, 0.4, 0.6, 0.8]), signal("b", [0, 0, 0, 0.1], [0.2, 0.2, 0.2, 0.1])]
    out = json.loads(json.dumps(measure_quality(signals, episodes, seed=0), allow_nan=False))
    assert out["auroc"] == 1.0
    assert out["voc"] == pytest.approx(1.0)  # of the success alone
    assert out["brier"] == pytest.approx((0.2**2 + 0.1**2) / 2)
    assert out["vroc"] is None
    assert "reversed" in out["undefined"]["vroc"]
    assert sum(part["count"] for part in out["calibration"]) == out["num_episodes"] == 2
    backwards = [signal("a", [1.0, 0.6, 0.3, 0.1])]
    assert measure_quality(signals, episodes, seed=0, reversed_signals=backwards)["vroc"] == pytest.approx(1.0)


def test_quality_of_a_judge_without_probabilities() -> None:
    episodes = [trajectory("a", Outcome.SUCCESS), trajectory("b", Outcome.TIMEOUT)]
    out = measure_quality([signal("a", [0, 0, 0, 1.0]), signal("b", [0, 0, 0, 0.5])], episodes, seed=0)
    assert out["auroc"] == 1.0
    assert out["brier"] is None
    assert out["ece"] is None
    assert out["undefined"]["ece"] == "the judge gives no success probability"


def test_calibration_undoes_overconfidence() -> None:
    # The truth is a logit of z; the judge says 3 z + 1. The best repair is scale 1/3, shift -1/3.
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.5, 400)
    outcomes = (rng.random(400) < apply_calibration(z, fit_calibration([], np.zeros(0)))).astype(float)
    said = [np.full(3, 3 * value + 1) for value in z]
    found = fit_calibration(said, outcomes)
    assert found.scale == pytest.approx(1 / 3, abs=0.08)
    assert found.shift == pytest.approx(-1 / 3, abs=0.25)
    before = np.mean((1 / (1 + np.exp(-(3 * z + 1))) - outcomes) ** 2)
    assert np.mean((apply_calibration(3 * z + 1, found) - outcomes) ** 2) < before - 0.01


def test_calibration_is_left_alone_without_enough_of_both_outcomes() -> None:
    outcomes = np.array([1.0] * 20 + [0.0] * (MIN_PER_CLASS - 1))
    found = fit_calibration([np.zeros(2)] * len(outcomes), outcomes)
    assert (found.scale, found.shift) == (1.0, 0.0)
    assert "20 successes and 3 failures held out" in found.reason
