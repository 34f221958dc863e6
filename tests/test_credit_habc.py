"""HABC credit by hand: gate, advantages, window kinds, weights."""

import subprocess
import sys

import numpy as np
import pytest

from robo_rl.credit.habc import advantages, habc_gate, habc_weights, sigmoid, warmup_gate
from robo_rl.credit.kinds import WindowKind, efficiency_ok, outcome_labels
from robo_rl.errors import DataError
from robo_rl.types import Outcome

ALL_KINDS = np.arange(8, dtype=np.int8)


def countdown(steps, final=0.0):
    """V_e of T + 1 observations that is 0 at the last step T - 1; the final observation may hold anything."""
    return np.append(-np.arange(steps - 1, -1, -1.0), final)


def test_credit_imports_without_torch():
    modules = [
        "kinds",
        "segments",
        "habc",
        "normalise",
        "baselines",
        "smoothing",
        "arm",
        "shaping",
        "td",
        "critic_targets",
    ]
    code = "import sys\n" + "\n".join(f"import robo_rl.credit.{m}" for m in modules)
    code += "\nsys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'lerobot')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_gate_is_one_at_zero_advantage_and_bounded():
    p = np.linspace(0, 1, 11)
    assert (habc_gate(p, np.zeros(11), np.zeros(11)) == 1.0).all()
    extreme = habc_gate(p, np.full(11, -1e3), np.full(11, 1e3))
    assert ((extreme >= 0) & (extreme <= 2)).all()


def test_gate_by_hand():
    # p = .25, A_v = 2, A_e = -1: blend = .75 * 2 - .25 = 1.25; tanh(1.25) = .848283639957513
    assert habc_gate(np.array([0.25]), np.array([2.0]), np.array([-1.0]))[0] == pytest.approx(1.848283639957513)


def test_gate_reads_viability_in_doubt_and_efficiency_when_sure():
    # at p = 0 only A_v counts, at p = 1 only A_e
    assert habc_gate(np.array([0.0]), np.array([0.0]), np.array([5.0]))[0] == 1.0
    assert habc_gate(np.array([1.0]), np.array([5.0]), np.array([0.0]))[0] == 1.0


def test_sigmoid_of_large_logits_does_not_overflow():
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("hop", [1, 4, 8, 50])
@pytest.mark.parametrize("steps", [1, 2, 5, 8, 23])
def test_an_exact_countdown_has_no_efficiency_advantage(hop, steps):
    # -n' + V(t + n') - V(t) = -n' - (L - t - n') + (L - t) = 0 for every n', the last step included.
    # 99 at the final observation: it must never be read, since its target is not the paper's 0.
    credit = advantages(np.zeros(steps + 1), countdown(steps, final=99.0), Outcome.SUCCESS, hop=hop)
    assert (credit.adv_efficiency == 0).all()
    assert (habc_gate(credit.viability, credit.adv_viability, credit.adv_efficiency) == 1).all()


@pytest.mark.parametrize("hop", [1, 4, 8])
def test_the_wrong_end_breaks_the_countdown(hop):
    # a critic taught 0 at the final observation (row T) gives -(T - t): one step more than the paper's
    steps = 10
    v_e = -np.arange(steps, -1, -1.0)
    wrong = advantages(np.zeros(steps + 1), v_e, Outcome.SUCCESS, hop=hop).adv_efficiency
    right = advantages(np.zeros(steps + 1), v_e, Outcome.SUCCESS, hop=hop, success_row=steps).adv_efficiency
    # reaching L = 9 reads 0 where the critic has -1: +1 in the last `hop` + 1 steps, 0 before
    assert wrong.tolist() == [0.0] * (9 - hop) + [1.0] * (hop + 1)
    assert (right == 0).all()


def test_efficiency_advantage_by_hand_over_the_end():
    # V = [-5, -3, -4, -1, 7], T = 4, L = 3, hop 2
    # t=0: -2 + V2 - V0 = -2 - 4 + 5 = -1;   t=1: reaches L: -2 + 0 - (-3) = 1
    # t=2: n' = 1, reaches L: -1 + 0 + 4 = 3; t=3: n' = 0: 0 - (-1) = 1 (no cost at the success step)
    credit = advantages(np.zeros(5), np.array([-5.0, -3, -4, -1, 7]), Outcome.SUCCESS, hop=2)
    assert credit.adv_efficiency.tolist() == [-1, 1, 3, 1]
    assert credit.steps.tolist() == [2, 2, 1, 0]


def test_viability_advantage_at_each_kind_of_end():
    z = np.array([0.0, 1.0, 3.0, 6.0])  # T = 3
    # success and failure end at the last step: its A_v is 0; a timeout reads the final observation
    assert advantages(z, np.zeros(4), Outcome.SUCCESS).adv_viability.tolist() == [1, 2, 0]
    assert advantages(z, np.zeros(4), Outcome.FAILURE).adv_viability.tolist() == [1, 2, 0]
    assert advantages(z, np.zeros(4), Outcome.TIMEOUT).adv_viability.tolist() == [1, 2, 3]
    # hop 2 at a timeout: 3 - 0, 6 - 1, and one step only, 6 - 3
    assert advantages(z, np.zeros(4), Outcome.TIMEOUT, hop=2).adv_viability.tolist() == [3, 5, 3]


def test_a_failure_does_not_read_zero_steps_to_success_at_its_end():
    # V = -9 everywhere, T = 3: A_e = -1 + 0 for the first two, 0 for the last; never 0 - (-9)
    credit = advantages(np.zeros(4), np.full(4, -9.0), Outcome.FAILURE)
    assert credit.adv_efficiency.tolist() == [-1, -1, 0]
    # a timeout has a next state at its last step too
    assert advantages(np.zeros(4), np.full(4, -9.0), Outcome.TIMEOUT).adv_efficiency.tolist() == [-1, -1, -1]


def test_nothing_looks_across_a_change_of_controller():
    z = np.array([0.0, 1.0, 10.0, 12.0, 20.0])  # T = 4: policy, policy, person, person
    credit = advantages(z, np.zeros(5), Outcome.TIMEOUT, hop=3, segment_ids=np.array([0, 0, 1, 1]))
    # t=0 may reach 1, t=1 nothing; t=2 and t=3 reach the final observation 4
    assert credit.adv_viability.tolist() == [1, 0, 10, 8]
    assert credit.steps.tolist() == [1, 0, 2, 1]
    # without the cut the person's rescue would be credited to the policy: the law matters
    assert advantages(z, np.zeros(5), Outcome.TIMEOUT, hop=3).adv_viability[1] == 19


def test_an_id_that_returns_is_a_new_segment():
    ids = np.array([0, 1, 0])
    credit = advantages(np.array([0.0, 5, 7, 9]), np.zeros(4), Outcome.TIMEOUT, hop=2, segment_ids=ids)
    assert credit.steps.tolist() == [0, 0, 1]


def test_scales_divide_and_the_clip_is_on_the_logit_only():
    z = np.array([-20.0, 0.0, 20.0])
    credit = advantages(z, np.array([-4.0, 0, 0]), Outcome.TIMEOUT, scales=(2.0, 4.0), clip_logit=8.0)
    assert credit.adv_viability.tolist() == [4, 4]  # (0 + 8) / 2, (8 - 0) / 2
    assert credit.adv_efficiency.tolist() == [0.75, -0.25]  # (-1 + 0 + 4) / 4, (-1) / 4
    assert credit.viability[0] < 1e-8  # p_v is not clipped


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v_e": np.zeros(3)}, r"\(T\+1,\)"),
        ({"z_v": np.array([0.0, np.nan, 0.0, 0.0])}, "frame 1"),
        ({"hop": 0}, "hop"),
        ({"scales": (0.0, 1.0)}, "scales"),
        ({"segment_ids": np.zeros(4)}, r"\(3,\)"),
        ({"success_row": 1}, "success_row"),
    ],
)
def test_advantages_name_what_is_wrong(change, words):
    arguments = {"z_v": np.zeros(4), "v_e": np.zeros(4), "outcome": Outcome.SUCCESS} | change
    with pytest.raises(DataError, match=words):
        advantages(**arguments)


def test_outcome_labels_follow_the_table():
    # METHODS 1.4: no label before an intervention, never inside one, none for demonstrations
    nan = np.nan
    np.testing.assert_array_equal(outcome_labels(ALL_KINDS), [nan, 1, 0, nan, nan, 1, 0, nan])


def test_efficiency_labels_follow_the_table():
    success = np.ones(8, dtype=bool)
    assert efficiency_ok(ALL_KINDS, success).tolist() == [False, True, False, False, True, True, False, False]
    assert not efficiency_ok(np.array([WindowKind.INTERVENTION]), np.array([False]))[0]


def test_weights_follow_the_table_before_normalisation():
    # gates with mean 1 over what counts: (1 of the intervention + .5 + 1.5) / 3 = 1, so nothing is rescaled
    gate = np.array([9.0, 0.5, 9, 9, 9, 1.5, 9, 9])  # 9: outside [0, 2], so reading it would be an error
    weight = habc_weights(ALL_KINDS, gate)
    assert weight.tolist() == [1, 0.5, 0, 0, 1, 1.5, 0, 0]
    assert weight.dtype == np.float32


def test_interventions_are_reweighted_only_when_asked():
    kind = np.array([WindowKind.INTERVENTION, WindowKind.AUTONOMOUS_SUCCESS], dtype=np.int8)
    gate = np.array([0.5, 1.5])
    # 1 and 1.5 with mean 1.25 -> .8, 1.2; with IR .5 and 1.5 with mean 1
    np.testing.assert_allclose(habc_weights(kind, gate), [0.8, 1.2], rtol=1e-6)
    np.testing.assert_allclose(habc_weights(kind, gate, reweight_interventions=True), [0.5, 1.5], rtol=1e-6)


def test_only_what_is_not_a_demonstration_is_normalised_by_default():
    kind = np.array([0, 0, 1, 1], dtype=np.int8)
    gate = np.array([1.0, 1.0, 0.2, 0.6])
    # online mean .4 -> .5, 1.5; demonstrations stay 1
    np.testing.assert_allclose(habc_weights(kind, gate), [1, 1, 0.5, 1.5], rtol=1e-6)
    # all together: mean (1 + 1 + .2 + .6) / 4 = .7
    np.testing.assert_allclose(habc_weights(kind, gate, normalise="valid"), np.array([1, 1, 0.2, 0.6]) / 0.7, rtol=1e-6)


def test_counting_failures_inflates_successes_by_the_success_rate():
    # half of the frames failed: successes doubled if failures count
    kind = np.array([1, 1, 2, 2], dtype=np.int8)
    gate = np.array([0.8, 1.2, 1.0, 1.0])
    np.testing.assert_allclose(habc_weights(kind, gate), [0.8, 1.2, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(habc_weights(kind, gate, count_failures=True), [1.6, 2.4, 0, 0], rtol=1e-6)


def test_good_parts_of_failed_episodes():
    kind = np.array([1, 2, 6, 2], dtype=np.int8)
    gate = np.array([1.0, 1.5, 0.5, 2.0])
    # positive: 1, .5, 0, 1; the 0 does not count: mean 2.5 / 3
    np.testing.assert_allclose(
        habc_weights(kind, gate, failure_weight="positive"), np.array([1, 0.5, 0, 1]) * 3 / 2.5, rtol=1e-6
    )
    # gate: all four count, mean 1.25
    np.testing.assert_allclose(habc_weights(kind, gate, failure_weight="gate"), gate / 1.25, rtol=1e-6)


def test_imperfect_demonstrations_are_weighed_among_themselves():
    kind = np.array([0, 0, 1, 1], dtype=np.int8)
    gate = np.array([0.5, 1.5, 0.4, 0.4])
    np.testing.assert_allclose(habc_weights(kind, gate, demo_weight="gate"), [0.5, 1.5, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("normalise", ["non_demo", "valid"])
@pytest.mark.parametrize("failure_weight", ["zero", "gate", "positive"])
def test_weights_have_mean_one_over_what_counts(normalise, failure_weight):
    rng = np.random.default_rng(3)
    kind, gate = rng.integers(0, 8, 5000).astype(np.int8), rng.uniform(0, 2, 5000)
    weight = habc_weights(kind, gate, normalise=normalise, failure_weight=failure_weight)
    counts = weight > 0 if normalise == "valid" else (weight > 0) & (kind != WindowKind.DEMO)
    assert weight[counts].mean() == pytest.approx(1.0, abs=1e-5)
    assert (weight[np.isin(kind, [WindowKind.PRE_INTERVENTION, WindowKind.EXCLUDED])] == 0).all()
    if failure_weight == "zero":
        assert (weight[np.isin(kind, [2, 6])] == 0).all()


def test_weights_name_what_is_wrong():
    with pytest.raises(DataError, match=r"no sample has positive weight: 2 autonomous_failure, 1 excluded"):
        habc_weights(np.array([2, 2, 7], dtype=np.int8), np.ones(3))
    with pytest.raises(DataError, match="sample 1"):
        habc_weights(np.array([1, 1], dtype=np.int8), np.array([1.0, np.nan]))
    with pytest.raises(DataError, match="demo_weight must be one of"):
        habc_weights(np.array([1], dtype=np.int8), np.ones(1), demo_weight="two")


def test_warm_up_ignores_the_gate():
    gate = np.array([0.3, 1.7])
    assert warmup_gate(gate, 499).tolist() == [1, 1]
    assert warmup_gate(gate, 500).tolist() == gate.tolist()
