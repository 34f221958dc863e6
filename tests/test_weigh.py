"""Sample weights of small worlds where the right credit is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from robo_rl.credit.kinds import WindowKind
from robo_rl.critics import CriticConfig
from robo_rl.data import EpisodeSet, read_episodes, write_episodes
from robo_rl.errors import DataError
from robo_rl.loops.weigh import WeighConfig, critic_arrays, weigh
from robo_rl.types import Controller, Outcome, RewardSignal, Trajectory

HOP = 3
CRITIC = CriticConfig(hidden=(32,), steps=400, batch_size=128)
HABC = WeighConfig(hop=HOP, tau_e=float(HOP), critic=CRITIC)


def make_trajectory(name: str, position: Sequence[float], outcome: Outcome, controller=Controller.POLICY):
    """A point on a line: state is (position, lane); failures run in a lane of their own."""
    steps = len(position) - 1
    lane = np.full(steps + 1, 0.0 if outcome is Outcome.SUCCESS else 1.0)
    actors = controller if isinstance(controller, np.ndarray) else np.full(steps, controller)
    return Trajectory(
        episode_id=name,
        instruction="go",
        images={},
        state=np.stack([np.asarray(position, float), lane], 1).astype(np.float32),
        actions=np.diff(np.asarray(position, np.float32))[:, None],
        controller=actors.astype(np.int8),
        outcome=outcome,
        fps=10.0,
    )


def hesitating(start: int, pause_at: int, pause: int, goal: int = 12) -> list[float]:
    """One unit a step from `start` to `goal`, standing still for `pause` steps at `pause_at`."""
    return [float(x) for x in range(start, goal + 1) for _ in range(1 + (pause if x == pause_at else 0))]


def write(root: Path, trajectories: Sequence[Trajectory]) -> EpisodeSet:
    write_episodes(root / "data", trajectories)
    return read_episodes(root / "data")


def make_signals(episodes: EpisodeSet, success: float | None = None) -> list[RewardSignal]:
    """Progress is the position over the length of the line."""
    return [
        RewardSignal(
            episode_id=episode.episode_id,
            model_id="ruler@1",
            progress=episode.state[:, 0] / 12,
            success_prob=None if success is None else np.full(len(episode) + 1, success, np.float32),
        )
        for episode in episodes
    ]


def mixed(rng: np.random.Generator) -> list[Trajectory]:
    """24 successes, half of them pausing somewhere, 12 timeouts in the other lane, 6 demonstrations."""
    rollouts = [
        make_trajectory(f"success-{n}", hesitating(0, int(rng.integers(2, 10)), 6 if n % 2 else 0), Outcome.SUCCESS)
        for n in range(24)
    ]
    rollouts += [
        make_trajectory(f"timeout-{n}", [min(x, 6) + 0.0 for x in range(15)], Outcome.TIMEOUT) for n in range(12)
    ]
    demos = [
        make_trajectory(f"demo-{n}", hesitating(0, 3 + n, 6), Outcome.SUCCESS, Controller.SCRIPT) for n in range(6)
    ]
    return demos + rollouts


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSet:
    return write(tmp_path_factory.mktemp("weigh"), mixed(np.random.default_rng(0)))


@pytest.fixture(scope="module")
def features(episodes: EpisodeSet) -> np.ndarray:
    """What the critics see: the position, finely resolved, and the lane."""
    bumps = np.exp(-0.5 * (episodes.flat_state[:, :1] - np.arange(13)) ** 2)
    return np.concatenate([bumps, episodes.flat_state[:, 1:]], 1).astype(np.float32)


@pytest.fixture(scope="module")
def judged(episodes: EpisodeSet, features: np.ndarray):
    return weigh(episodes, make_signals(episodes), features, HABC, seed=0)[0]


def still_and_moving(episodes: EpisodeSet, which: str) -> tuple[np.ndarray, np.ndarray]:
    """Frames after which nothing moves for HOP steps, and frames after which every one of HOP steps moves."""
    still, moving = [], []
    for number, episode in enumerate(episodes):
        if not episode.episode_id.startswith(which):
            continue
        first, steps = int(episodes.first_frame[number]), np.diff(episode.state[:, 0])
        for t in range(len(steps) - HOP + 1):
            ahead = steps[t : t + HOP]
            if not ahead.any():
                still.append(first + t)
            elif ahead.all():
                moving.append(first + t)
    return np.array(still), np.array(moving)


# --- the gate ---------------------------------------------------------------------------------------


def test_failures_weigh_nothing_and_demonstrations_one(judged):
    assert (judged.weight[judged.kind == WindowKind.AUTONOMOUS_FAILURE] == 0).all()
    np.testing.assert_allclose(judged.weight[judged.kind == WindowKind.DEMO], 1.0, rtol=1e-6)
    # the rollouts that can be drawn have mean 1 by themselves, so the share of demonstrations stays as asked
    assert judged.weight[judged.kind == WindowKind.AUTONOMOUS_SUCCESS].mean() == pytest.approx(1.0, rel=1e-5)


def test_final_observations_are_never_learned_from(episodes, judged):
    assert (judged.weight[episodes.is_final] == 0).all()
    assert (judged.kind[episodes.is_final] == WindowKind.EXCLUDED).all()


def test_standing_still_in_a_success_is_gated_down(episodes, judged):
    still, moving = still_and_moving(episodes, "success")
    assert len(still) > 30
    assert len(moving) > 100
    # Standing still for HOP steps: V_e does not change, so A_e = (-HOP + 0) / HOP = -1 and, success being
    # certain, the gate is 1 + tanh(-1) = 0.24. Moving: V_e gains at least HOP, A_e >= 0, the gate is at least 1.
    assert judged.gate[still].mean() == pytest.approx(1 + np.tanh(-1), abs=0.12)
    assert judged.gate[moving].mean() > 0.95
    assert np.quantile(judged.gate[still], 0.9) < np.quantile(judged.gate[moving], 0.1)


def test_efficiency_counts_down_to_the_success(episodes, judged):
    # without pauses 12 - x steps are left; pauses of 6 in half of the episodes add less than 3 on average
    rows = judged.kind == WindowKind.AUTONOMOUS_SUCCESS
    left = 12 - episodes.flat_state[rows, 0]
    # V_e of the first half of the way lies between the fastest and the slowest way there is
    early = left > 6
    value = -judged.efficiency[rows][early]
    assert (value > left[early] - 1.5).all()
    assert (value < left[early] + 7.5).all()


def test_viability_tells_the_lanes_apart(judged):
    assert judged.viability[judged.kind == WindowKind.AUTONOMOUS_SUCCESS].min() > 0.8
    assert judged.viability[judged.kind == WindowKind.AUTONOMOUS_FAILURE].max() < 0.2
    assert judged.summary["critic_auroc"] > 0.99


def test_gated_demonstrations_are_weighed_like_rollouts(episodes, features):
    config = WeighConfig(hop=HOP, tau_e=float(HOP), critic=CRITIC, demo_weight="gate")
    result, _ = weigh(episodes, make_signals(episodes), features, config, seed=0)
    still, moving = still_and_moving(episodes, "demo")
    assert result.weight[still].mean() < 0.5 * result.weight[moving].mean()
    assert result.weight[result.kind == WindowKind.DEMO].mean() == pytest.approx(1.0, rel=1e-5)


def test_the_good_parts_of_failures_can_be_kept(episodes, features):
    config = WeighConfig(hop=HOP, tau_e=float(HOP), critic=CRITIC, failure_weight="positive")
    result, _ = weigh(episodes, make_signals(episodes), features, config, seed=0)
    failed = result.kind == WindowKind.AUTONOMOUS_FAILURE
    # max(g - 1, 0): nothing where the gate is at most 1, and at most as much as the gate elsewhere
    assert (result.weight[failed & (result.gate <= 1)] == 0).all()
    assert (result.weight[failed & (result.gate > 1)] > 0).all()


def test_same_seed_same_weights_and_critics_are_given_for_display(episodes, features, judged):
    again, critics = weigh(episodes, make_signals(episodes), features, HABC, seed=0)
    np.testing.assert_array_equal(again.weight, judged.weight)
    other, _ = weigh(episodes, make_signals(episodes), features, HABC, seed=1)
    assert not np.array_equal(other.weight, judged.weight)
    assert critics is not None
    z_v, v_e = critics.predict(features)
    assert z_v.shape == v_e.shape == (episodes.num_frames,)


def test_the_judges_success_head_can_replace_the_viability_critic(episodes, features):
    config = WeighConfig(hop=HOP, tau_e=float(HOP), critic=CRITIC, viability="td_success")
    result, _ = weigh(episodes, make_signals(episodes, success=0.7), features, config, seed=0)
    np.testing.assert_allclose(result.viability, 0.7, rtol=1e-5)
    # A_v = 0, so the gate is 1 + tanh(0.7 A_e): 1 + tanh(-0.7) where nothing moves
    still, _ = still_and_moving(episodes, "success")
    assert result.gate[still].mean() == pytest.approx(1 + np.tanh(-0.7), abs=0.12)


def test_a_judge_without_success_head_cannot_replace_it(episodes, features):
    config = WeighConfig(hop=HOP, critic=CRITIC, viability="td_success")
    with pytest.raises(DataError, match=r"'ruler@1' has no success head; use credit\.viability: critic"):
        weigh(episodes, make_signals(episodes), features, config, seed=0)


def test_demonstrations_teach_efficiency_only_where_they_are_gated(episodes, judged):
    # a person's V_e is not the policy's: the paper's critics see the policy's own successes alone
    demo = (judged.kind == WindowKind.DEMO) | (episodes.is_final & (episodes.episode_of_frame < 6))
    for gated in (False, True):
        arrays = critic_arrays(episodes, judged.kind, demos_teach_efficiency=gated)
        assert (arrays["ve_ok"][demo] == gated).all()
        assert not arrays["outcome_ok"][demo].any()
        assert arrays["terminal_success"].sum() == 30  # 24 rollouts and 6 demonstrations end in success


# --- masks ------------------------------------------------------------------------------------------


def test_pauses_aborts_and_what_came_before_an_intervention_weigh_nothing(tmp_path):
    rng = np.random.default_rng(1)
    actors = np.array([0] * 4 + [1] * 3 + [3] * 2 + [0] * 3)  # policy, person, paused, policy again
    special = [
        make_trajectory("rescued", [float(x) for x in range(13)], Outcome.SUCCESS, actors),
        make_trajectory("aborted", [0.0, 1.0, 2.0], Outcome.ABORT),
    ]
    episodes = write(tmp_path, [*special, *mixed(rng)])
    features = np.concatenate([episodes.flat_state, episodes.flat_state**2], 1)
    result, _ = weigh(episodes, make_signals(episodes), features, HABC, seed=0)
    weight = result.weight[:12]
    assert (weight[:4] == 0).all()  # what the policy did before the person stepped in
    assert (weight[4:7] > 0).all()
    assert len(set(weight[4:7].tolist())) == 1  # the person: weight one, before the common scale
    assert (weight[7:9] == 0).all()
    assert (weight[9:12] > 0).all()
    assert (result.weight[13:16] == 0).all()  # rows of the aborted episode, its final observation too


# --- the methods it is compared with ------------------------------------------------------------------


def baseline(episodes: EpisodeSet, kind: str, **settings):
    result, critics = weigh(episodes, make_signals(episodes), None, WeighConfig(type=kind, **settings), seed=0)
    assert critics is None
    assert np.isnan(result.gate).all()
    assert (result.weight[episodes.is_final] == 0).all()
    positive = result.weight[result.weight > 0]
    assert positive.mean() == pytest.approx(1.0, rel=1e-5)
    return result


def test_plain_bc_imitates_all_actions_alike(episodes):
    result = baseline(episodes, "bc")
    np.testing.assert_allclose(result.weight[~episodes.is_final], 1.0)


def test_filtered_bc_keeps_demonstrations_and_successes_whole(episodes):
    result = baseline(episodes, "filtered_bc")
    failed = result.kind == WindowKind.AUTONOMOUS_FAILURE
    assert (result.weight[failed] == 0).all()
    np.testing.assert_allclose(result.weight[~failed & ~episodes.is_final], 1.0)


def test_filtered_bc_needs_no_judge(episodes):
    result, _ = weigh(episodes, [], None, WeighConfig(type="filtered_bc"), seed=0)
    assert (result.weight > 0).any()


def test_awr_weighs_exponentially_in_the_gain(episodes):
    result = baseline(episodes, "awr", hop=HOP, awr_beta=0.1)
    still, moving = still_and_moving(episodes, "success")
    # gains: 0 where nothing moves, HOP / 12 = 0.25 where all moves: exp(0.25 / 0.1) = 12.2 times the weight
    assert result.weight[moving].mean() / result.weight[still].mean() == pytest.approx(np.exp(2.5), rel=1e-3)


def test_rabc_and_arm_prefer_gains(episodes):
    still, moving = still_and_moving(episodes, "success")
    soft = baseline(episodes, "ra_bc", hop=HOP)
    hard = baseline(episodes, "arm", hop=HOP)
    # a gain above kappa counts fully in both; no gain counts between 0 and 1 in RA-BC and not at all in AW-BC
    assert len(np.unique(soft.weight[moving].round(5))) == 1
    assert (soft.weight[still] < soft.weight[moving].max()).all()
    assert (soft.weight[still] > 0).all()
    assert (hard.weight[still] == 0).all()
    assert (hard.weight[moving] > 0).all()


# --- what cannot be weighed ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["habc", "awr", "ra_bc", "arm"])
def test_missing_signals_are_refused(episodes, features, kind):
    with pytest.raises(DataError, match="42 episodes but 41 were scored"):
        weigh(episodes, make_signals(episodes)[:-1], features, WeighConfig(type=kind, critic=CRITIC), seed=0)


@pytest.mark.parametrize("kind", ["habc", "awr"])
def test_signals_of_other_episodes_are_refused(episodes, features, kind):
    signals = make_signals(episodes)
    signals[0], signals[7] = signals[7], signals[0]
    with pytest.raises(DataError, match=r"score of 'success-1' .* that of episode 'demo-0'"):
        weigh(episodes, signals, features, WeighConfig(type=kind, critic=CRITIC), seed=0)


def test_a_score_that_is_not_a_number_cannot_be_built():
    with pytest.raises(DataError, match="progress is not finite at frame 2"):
        RewardSignal(episode_id="e", model_id="m", progress=np.array([0, 0.5, np.nan], np.float32))


def test_features_that_are_not_finite_or_missing_are_refused(episodes, features):
    broken = features.copy()
    broken[17, 2] = np.nan
    with pytest.raises(DataError, match="17"):
        weigh(episodes, make_signals(episodes), broken, HABC, seed=0)
    with pytest.raises(DataError, match="needs features of every frame"):
        weigh(episodes, make_signals(episodes), None, HABC, seed=0)
    with pytest.raises(DataError, match=str(len(features) - 1)):
        weigh(episodes, make_signals(episodes), features[:-1], HABC, seed=0)


def test_without_a_success_there_is_no_efficiency_to_learn(tmp_path):
    failures = [make_trajectory(f"timeout-{n}", [float(x) for x in range(8)], Outcome.TIMEOUT) for n in range(6)]
    episodes = write(tmp_path, failures)
    with pytest.raises(DataError, match="at least 3 successful episodes, got 0"):
        weigh(episodes, make_signals(episodes), episodes.flat_state, HABC, seed=0)
    with pytest.raises(DataError, match="no sample has positive weight"):
        weigh(episodes, [], None, WeighConfig(type="filtered_bc"), seed=0)


def test_without_a_failure_success_is_certain_and_efficiency_decides(tmp_path):
    rng = np.random.default_rng(2)
    won = [
        make_trajectory(f"success-{n}", hesitating(0, int(rng.integers(2, 10)), 6 if n % 2 else 0), Outcome.SUCCESS)
        for n in range(24)
    ]
    episodes = write(tmp_path, won)
    features = np.exp(-0.5 * (episodes.flat_state[:, :1] - np.arange(13)) ** 2).astype(np.float32)
    result, _ = weigh(episodes, make_signals(episodes), features, HABC, seed=0)
    assert result.viability.min() > 0.9
    still, moving = still_and_moving(episodes, "success")
    assert result.gate[still].mean() < 0.5
    assert result.gate[moving].mean() > 0.95
    assert np.isnan(result.summary["critic_auroc"])  # nothing to tell apart, and not a perfect score either
