"""Judged credit is what improves the loop: with its weights success rises, with uniform or shuffled ones it does not.

The world is a line with a red and a blue end. A careless behaviour policy goes the right way little more than half of
the time; all of its episodes are learned from. Under a tight limit of steps only who goes straight arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from robo_rl.algorithms.weighted_bc import WeightedBC
from robo_rl.batches import Anchors, ChunkBatches
from robo_rl.credit.kinds import WindowKind
from robo_rl.critics import CriticConfig
from robo_rl.data import EpisodeSet, read_episodes, write_episodes
from robo_rl.errors import SafetyError
from robo_rl.evaluation import EvaluationResult, compare
from robo_rl.loops.weigh import WeighConfig, Weighing, weigh
from robo_rl.policies.acting import PolicyActor
from robo_rl.policies.compact_vla import CompactVLAConfig, CompactVLAPolicy, make_compact_vla_pre_post_processors
from robo_rl.policies.compact_vla.configuration_compact_vla import features_for
from robo_rl.policies.storage import LoadedPolicy, measure
from robo_rl.rollout import RecordConfig, collect, evaluate
from robo_rl.trainer import Trainer, TrainerConfig
from robo_rl.types import Controller, Observation, RewardSignal, StepResult, World

COLOURS = {"red": (230, 30, 30), "blue": (30, 30, 230)}
STEP = 0.1  # a full action moves this far; the ends are at -1 and 1
RIGHT, STILL = 0.55, 0.25  # shares of the behaviour policy's steps; the rest goes the wrong way
EPISODES, STATES = 80, 60
LONG, TIGHT = 80, 16  # steps allowed to the behaviour policy, and in the evaluation


class LineWorld:
    """A point between a red and a blue end; the instruction names the one to go to. At the other one it has failed."""

    cameras: Sequence[str] = ("front",)
    control_hz = 10.0
    action_dim = 1
    state_dim = 1
    task = "line"

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.instruction = ""
        self.position, self.goal, self.steps = 0.0, 1.0, 0
        self._ends = ("red", "blue")

    def begin(self, seed: int, index: int) -> None:
        rng = np.random.default_rng([seed, index])
        self._ends = ("red", "blue") if rng.random() < 0.5 else ("blue", "red")
        side = int(rng.integers(2))
        self.goal, self.instruction = 2.0 * side - 1.0, f"go to the {self._ends[side]} end"
        self.position, self.steps = float(rng.uniform(-0.3, 0.3)), 0

    def advance(self, action: np.ndarray) -> StepResult:
        if not np.isfinite(action).all():
            raise SafetyError("action is not finite")
        self.position += STEP * float(action[0])
        self.steps += 1
        success, lost = self.position * self.goal >= 1.0, self.position * self.goal <= -1.0
        return StepResult(
            success=success, terminated=success or lost, truncated=self.steps >= self.horizon, reward=float(success)
        )

    def observe(self) -> Observation:
        image = np.zeros((16, 16, 3), np.uint8)
        image[:, :4], image[:, -4:] = COLOURS[self._ends[0]], COLOURS[self._ends[1]]
        column = int(np.clip(round(7.5 + 7.5 * self.position), 1, 14))
        image[6:10, column - 1 : column + 2] = 255
        return Observation(images={"front": image}, state=self.state(), instruction=self.instruction)

    def state(self) -> np.ndarray:
        return np.array([self.position], np.float32)

    def true_progress(self) -> float:
        return float(np.clip(0.5 + 0.5 * self.position * self.goal, 0.0, 1.0))

    def close(self) -> None:
        pass


class Careless:
    """Goes the right way, dawdles or goes the wrong way, whatever it did before."""

    policy_id = "careless"
    controller = Controller.POLICY
    needs_images = False

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        self._worlds, self._rngs = worlds, rngs

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        moves = [self._rngs[slot].choice([1.0, 0.0, -1.0], p=[RIGHT, STILL, 1 - RIGHT - STILL]) for slot in slots]
        goals = [self._worlds[slot].goal for slot in slots]  # type: ignore[attr-defined]
        return (np.array(moves) * np.array(goals)).astype(np.float32)[:, None, None]

    def note(self, slot: int) -> str:
        return ""


@dataclass(frozen=True)
class Experience:
    """Episodes, which steps went the right way, and their credit."""

    episodes: EpisodeSet
    towards: np.ndarray  # float (N,): +1 the right way, 0 still, -1 the wrong way; 0 on final rows
    credit: Weighing


@pytest.fixture(scope="module")
def experience(tmp_path_factory: pytest.TempPathFactory) -> Experience:
    root = tmp_path_factory.mktemp("line") / "data"
    record = RecordConfig(true_progress=True)
    write_episodes(
        root,
        collect(lambda: LineWorld(LONG), Careless, seed=1, indices=range(EPISODES), group_size=20, record=record),
    )
    episodes = read_episodes(root)
    distance = np.concatenate([np.asarray(episode.true_progress) for episode in episodes])
    goal = np.concatenate(
        [np.full(len(e) + 1, np.sign(e.true_progress[-1] - 0.5) * np.sign(e.state[-1, 0])) for e in episodes]
    )
    towards = np.where(episodes.is_final, 0.0, episodes.flat_actions[:, 0] * goal)
    # what the critics see: how far along the way to the named end the point is, finely resolved
    features = np.exp(-0.5 * ((distance[:, None] - np.linspace(0, 1, 9)) / 0.12) ** 2).astype(np.float32)
    signals = [
        RewardSignal(episode_id=e.episode_id, model_id="ruler@1", progress=np.asarray(e.true_progress, np.float32))
        for e in episodes
    ]
    config = WeighConfig(hop=1, tau_e=1.0, critic=CriticConfig(hidden=(32,), steps=500, batch_size=128), folds=2)
    credit, _ = weigh(episodes, signals, features, config, seed=0)
    return Experience(episodes, towards, credit)


def make_policy(episodes: EpisodeSet) -> LoadedPolicy:
    torch.manual_seed(0)
    features = features_for({"front": (16, 16)}, state_dim=1, action_dim=1)
    sizes = {"channels": 8, "queries": 4, "context_dim": 32, "head_width": 48, "head_blocks": 1, "text_dim": 16}
    config = CompactVLAConfig(
        device="cpu", push_to_hub=False, chunk_size=1, n_action_steps=1, flow_draws=4, **sizes, **features
    )
    rows = ~episodes.is_final
    normaliser = measure(episodes.flat_state[rows], episodes.flat_actions[rows])
    before, after = make_compact_vla_pre_post_processors(config, normaliser.as_stats())
    return LoadedPolicy(
        policy=CompactVLAPolicy(config), normaliser=normaliser, preprocessor=before, postprocessor=after
    )


def train(folder: Path, episodes: EpisodeSet, weight: np.ndarray) -> LoadedPolicy:
    """The same start, the same batches sizes and the same number of steps; only the weights differ."""
    loaded = make_policy(episodes)
    frames = np.flatnonzero(weight > 0)
    anchors = Anchors(frames=frames, weights=(weight[frames] / weight[frames].mean()).astype(np.float32))
    batches = ChunkBatches(episodes, [(1.0, anchors)], loaded.normaliser, chunk=1, batch_size=64, seed=0, shift=1)
    config = TrainerConfig(steps=240, batch_size=64, learning_rate=3e-3, precision="fp32", warmup_steps=20, ema=0.98)
    Trainer(config, folder, seed=0).fit(loaded.policy, WeightedBC(loaded.policy), batches)
    return loaded


def success(loaded: LoadedPolicy) -> EvaluationResult:
    results = evaluate(
        lambda: LineWorld(TIGHT),
        lambda: PolicyActor(loaded, policy_id="line"),
        seed=2,
        indices=range(STATES),
        group_size=STATES,
    )
    return EvaluationResult.from_episodes(results, seed=2, world="line")


@pytest.fixture(scope="module")
def arms(experience: Experience, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvaluationResult]:
    """Success of the three policies on the same states."""
    judged = experience.credit.weight
    usable = np.flatnonzero(~experience.episodes.is_final)
    uniform, shuffled = np.zeros_like(judged), np.zeros_like(judged)
    uniform[usable] = 1.0
    shuffled[usable] = np.random.default_rng(0).permutation(judged[usable])
    folder = tmp_path_factory.mktemp("arms")
    return {
        name: success(train(folder / name, experience.episodes, weight))
        for name, weight in (("judged", judged), ("uniform", uniform), ("shuffled", shuffled))
    }


def test_credit_tells_good_steps_from_bad_ones_of_the_same_episodes(experience):
    won = experience.credit.kind == WindowKind.AUTONOMOUS_SUCCESS
    assert won.sum() > 1000
    gate = experience.credit.gate
    # The drift is 0.55 - 0.20 = 0.35 units a step, so a unit is worth 1 / 0.35 = 2.9 steps: A_e is about 1.9 for a
    # step the right way, -1 for none and -3.9 for one the wrong way; 1 + tanh of these is 1.95, 0.24 and 0.00.
    means = [gate[won & (np.round(experience.towards) == step)].mean() for step in (1, 0, -1)]
    assert means[0] == pytest.approx(1.95, abs=0.15)
    assert means[1] == pytest.approx(0.24, abs=0.15)
    assert means[2] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("other", ["uniform", "shuffled"])
def test_with_judged_weights_the_loop_improves_and_without_them_it_does_not(arms, other):
    done = compare(arms["judged"], arms[other])
    assert done.num_pairs == STATES
    assert done.difference.value > 0.25, (done.rate_a.value, done.rate_b.value)
    assert done.test.p_value < 0.05
    assert done.test.only_a > done.test.only_b
