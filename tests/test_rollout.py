"""The rollout engine on a small numpy world whose every number can be worked out by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from robo_rl.errors import ConfigError, DataError, RoboRLError, SafetyError
from robo_rl.rollout import Disturbance, RecordConfig, collect, episode_rng, evaluate, replay
from robo_rl.rollout.frames import FrameSpec, create_shared
from robo_rl.rollout.settings import DisturbanceNoise
from robo_rl.types import Actor, Controller, Observation, Outcome, StepResult, Trajectory, World

HORIZON = 12


@dataclass(frozen=True)
class Slider:
    """A point on a line from -1 to 1 that must reach 0.5 and falls off at -1.

    Faults by index: `raises` in its third step (and is of no use afterwards), `blind` after its third step,
    `breaks` when it begins, `dies` takes its process along.
    """

    size: int = 4
    raises: tuple[int, ...] = ()
    blind: tuple[int, ...] = ()
    breaks: tuple[int, ...] = ()
    dies: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    log: str = ""  # a file that gets a line at every drawing

    def __call__(self) -> SliderWorld:
        return SliderWorld(self)


class SliderWorld:
    cameras = ("front", "wrist")
    control_hz = 10.0
    horizon = HORIZON
    action_dim = 2
    state_dim = 2

    def __init__(self, config: Slider) -> None:
        self.config = config
        self.task, self.instruction = "", ""
        self.broken = False

    def begin(self, seed: int, index: int) -> None:
        if index in self.config.breaks or self.broken:
            raise RuntimeError("no such state")
        self.index, self.steps = index, 0
        self.position = np.random.default_rng([seed, index]).uniform(-0.8, 0.2, size=2)
        self.task = ("left", "right")[index % 2]
        self.instruction = f"move {self.task}"

    def advance(self, action: np.ndarray) -> StepResult:
        if self.index in self.config.slow:
            time.sleep(0.02)
        self.steps += 1
        if self.steps == 3 and self.index in self.config.raises:
            self.broken = True
            raise RuntimeError("the simulation diverged")
        if self.steps == 3 and self.index in self.config.dies:
            os._exit(3)
        self.position = self.position + 0.1 * action.astype(float)
        success, fell = bool(self.position[0] >= 0.5), bool(self.position[0] <= -1.0)
        return StepResult(
            success=success, terminated=success or fell, truncated=self.steps >= HORIZON, reward=float(self.position[0])
        )

    def observe(self) -> Observation:
        if self.config.log:
            with open(self.config.log, "a") as log:
                log.write(f"{self.index} {self.steps}\n")
        size = self.config.size
        # Camera "front" shows the step number, so that a frame tells which moment it is from.
        images = {
            "front": np.full((size, size, 3), self.steps, dtype=np.uint8),
            "wrist": np.full((size, size, 3), 100 + self.index, dtype=np.uint8),
        }
        return Observation(images=images, state=self.state(), instruction=self.instruction)

    def state(self) -> np.ndarray:
        if self.steps == 3 and self.index in self.config.blind:
            raise OSError("the camera is gone")
        return self.position.astype(np.float32)

    def true_progress(self) -> float:
        return self.steps / HORIZON

    def close(self) -> None: ...


@dataclass(frozen=True)
class Driver:
    """Makes a `DriverActor`; `velocity` + noise, a little of it from the other episodes of the batch."""

    velocity: float = 1.0
    chunk: int = 3
    needs_images: bool = False
    noise: float = 0.3
    fails_at: int = -1
    nan: bool = False

    def __call__(self) -> DriverActor:
        return DriverActor(self)


class DriverActor:
    policy_id = "driver"
    controller = Controller.POLICY

    def __init__(self, config: Driver) -> None:
        self.config, self.needs_images = config, config.needs_images
        self.calls = 0

    def begin(self, worlds: list[World], rngs: list[np.random.Generator]) -> None:
        self.rngs, self.batches, self.dim = rngs, [[] for _ in rngs], worlds[0].action_dim

    def act(self, slots: list[int], observations: list[Observation]) -> np.ndarray:
        if self.calls == self.config.fails_at:
            raise ValueError("no parameters")
        self.calls += 1
        # The mean over the batch makes an action depend on who else is in it, as a batched network's last
        # digits do: a batch put together differently shows in the results.
        together = np.mean([observation.state[0] for observation in observations])
        actions = np.empty((len(slots), self.config.chunk, self.dim), dtype=np.float32)
        for row, slot in enumerate(slots):
            self.batches[slot].append(len(slots))
            actions[row] = self.config.velocity + 1e-3 * together
            actions[row] += self.config.noise * self.rngs[slot].standard_normal((self.config.chunk, self.dim))
            if self.needs_images:
                assert set(observations[row].images) == {"front", "wrist"}
        if self.config.nan:
            actions[-1] = np.nan
        return actions

    def note(self, slot: int) -> str:
        return "batches " + ",".join(str(size) for size in self.batches[slot])


@dataclass
class Drawings:
    """What the worlds drew, as (index, step)."""

    path: Path
    world: Slider = field(init=False)

    def __post_init__(self) -> None:
        self.world = Slider(log=str(self.path))

    def read(self) -> list[tuple[int, int]]:
        if not self.path.exists():
            return []
        return [(int(a), int(b)) for a, b in (line.split() for line in self.path.read_text().splitlines())]


@pytest.fixture
def drawings(tmp_path: Path) -> Drawings:
    return Drawings(tmp_path / "drawn.txt")


def run(world: Slider | None = None, actor: Driver | None = None, **settings) -> list[Trajectory]:
    settings = {"seed": 3, "indices": range(7), "group_size": 3} | settings
    return list(collect(world or Slider(), actor or Driver(), **settings))


def assert_same(left: list[Trajectory], right: list[Trajectory]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert (a.episode_id, a.outcome, a.note, a.index) == (b.episode_id, b.outcome, b.note, b.index)
        for name in ("state", "actions", "reward", "true_progress"):
            one, two = getattr(a, name), getattr(b, name)
            assert (one is None) == (two is None)
            if one is not None:
                np.testing.assert_array_equal(one, two)
        assert a.images.keys() == b.images.keys()
        for camera in a.images:
            np.testing.assert_array_equal(a.images[camera], b.images[camera])


# Determinism and order


def test_the_test_doubles_keep_the_contracts() -> None:
    assert isinstance(Slider()(), World)
    actor: Actor = Driver()()
    assert actor.policy_id == "driver"


def test_results_do_not_depend_on_the_number_of_workers_or_on_timing() -> None:
    # Group 0 is slow, so with two workers groups 1 and 2 end before it; order and numbers stay.
    record = RecordConfig(true_progress=True)
    slow = Slider(slow=(0, 1, 2))
    alone = run(record=record)
    assert_same(alone, run(world=slow, record=record, workers=2))
    assert_same(alone, run(record=record, workers=1))
    assert [t.index for t in alone] == list(range(7))


def test_an_episode_depends_on_its_group_only() -> None:
    # Indices 3, 4, 5 are a group of their own in both runs; 0, 1, 2 and 6 do not matter to them.
    assert_same(run()[3:6], run(indices=[3, 4, 5]))
    # A different group size puts other episodes into the batch, which this actor shows.
    assert not np.array_equal(run(group_size=2)[3].actions, run()[3].actions)


def test_the_batch_holds_the_running_episodes_of_the_group_only() -> None:
    episodes = run(actor=Driver(noise=0.0), indices=range(6), group_size=3)
    for group in (episodes[:3], episodes[3:]):
        # Chunks of 3: an episode of T steps is asked ceil(T / 3) times, always with those still running.
        asked = [-(-len(t) // 3) for t in group]
        for trajectory, times in zip(group, asked, strict=True):
            sizes = [sum(a > call for a in asked) for call in range(times)]
            assert trajectory.note == "batches " + ",".join(map(str, sizes))


def test_the_actor_generator_is_a_function_of_seed_and_index() -> None:
    # Alone in its group and with no velocity, the first action is 0.3 x the first draw (plus 1e-3 x state).
    (episode,) = run(actor=Driver(velocity=0.0), indices=[5], group_size=1)
    expected = 0.3 * np.random.default_rng([3, 5, 0]).standard_normal((3, 2)) + 1e-3 * episode.state[0, 0]
    np.testing.assert_allclose(episode.actions[:3], np.clip(expected, -1, 1), atol=1e-6)
    draws = [episode_rng(*key).random() for key in ((3, 5, 0), (3, 5, 1), (3, 6, 0), (4, 5, 0))]
    assert len(set(draws)) == 4  # seed, index and stream all matter


# What a trajectory holds


def test_a_trajectory_has_one_more_observation_than_actions_and_each_frame_is_of_its_moment() -> None:
    for episode in run(record=RecordConfig(true_progress=True)):
        steps = len(episode)
        assert episode.state.shape == (steps + 1, 2)
        np.testing.assert_array_equal(episode.images["front"][:, 0, 0, 0], np.arange(steps + 1))
        assert set(episode.images["wrist"].ravel()) == {100 + episode.index}
        np.testing.assert_allclose(episode.true_progress, np.arange(steps + 1) / HORIZON, rtol=1e-6)
        # position[t + 1] = position[t] + 0.1 action[t], and the reward is the new position
        np.testing.assert_allclose(np.diff(episode.state, axis=0), 0.1 * episode.actions, atol=1e-6)
        np.testing.assert_allclose(episode.reward, episode.state[1:, 0], atol=1e-6)
        assert episode.episode_id == f"driver-3-{episode.index:05d}"
        assert episode.task == ("left", "right")[episode.index % 2]
        assert episode.instruction == f"move {episode.task}"
        assert (episode.controller == Controller.POLICY).all()
        assert episode.fps == 10.0


def test_frames_of_one_camera_and_a_prefix() -> None:
    record = RecordConfig(cameras=("wrist",), episode_prefix="round-2")
    episode = run(record=record, indices=[4])[0]
    assert set(episode.images) == {"wrist"}
    assert episode.episode_id == "round-2-3-00004"
    with pytest.raises(ConfigError, match=r"no camera \['side'\]; it draws: front, wrist"):
        run(record=RecordConfig(cameras=("side",)))


@pytest.mark.parametrize(
    ("velocity", "outcome"), [(1.0, Outcome.SUCCESS), (-1.0, Outcome.FAILURE), (0.0, Outcome.TIMEOUT)]
)
def test_outcomes(velocity: float, outcome: Outcome) -> None:
    # From [-0.8, 0.2] the goal 0.5 is 3 to 13 steps of 0.1 away and the edge -1 is 2 to 12: indices near enough.
    for episode in run(actor=Driver(velocity=velocity, noise=0.0), indices=[3, 5]):
        assert episode.outcome is outcome
        distance = {1.0: 0.5 - episode.state[0, 0], -1.0: episode.state[0, 0] + 1.0}.get(velocity)
        expected = HORIZON if distance is None else int(np.ceil(distance / 0.1))
        assert abs(len(episode) - expected) <= (0 if distance is None else 1)


def test_evaluate_agrees_with_collect() -> None:
    results = evaluate(Slider(), Driver(), seed=3, indices=range(7), group_size=3)
    for result, episode in zip(results, run(), strict=True):
        assert (result.index, result.task, result.steps) == (episode.index, episode.task, len(episode))
        assert result.success == episode.success
        assert result.extra["outcome"] == episode.outcome.value
        assert result.extra["reward"] == pytest.approx(float(episode.reward.sum()))
        assert result.seconds > 0


# Drawing


def test_nothing_is_drawn_when_nobody_looks(drawings: Drawings) -> None:
    run(world=drawings.world)
    run(world=drawings.world, record=RecordConfig(every_step=False, true_progress=True))
    assert drawings.read() == []


def test_an_actor_that_sees_draws_at_its_decisions_only(drawings: Drawings) -> None:
    episodes = run(world=drawings.world, actor=Driver(needs_images=True))
    # Chunks of 3 steps: decisions at steps 0, 3, 6, ... < T; the final observation is not drawn.
    expected = {(t.index, step) for t in episodes for step in range(0, len(t), 3)}
    drawn = drawings.read()
    assert set(drawn) == expected
    assert len(drawn) == len(expected)


@pytest.mark.parametrize("needs_images", [False, True])
def test_recording_draws_every_observation_once(drawings: Drawings, needs_images: bool) -> None:
    episodes = run(world=drawings.world, actor=Driver(needs_images=needs_images), record=RecordConfig())
    expected = {(t.index, step) for t in episodes for step in range(len(t) + 1)}
    drawn = drawings.read()
    assert set(drawn) == expected
    assert len(drawn) == len(expected)


# Disturbance


def test_a_disturbance_changes_states_and_not_labels() -> None:
    actor = Driver(velocity=0.2, noise=0.0, chunk=HORIZON)  # one decision: commands cannot react
    clean = run(actor=actor, indices=[0], group_size=1)[0]
    disturbed = run(actor=actor, indices=[0], group_size=1, disturbance=Disturbance(scale=0.3))[0]
    both = min(len(clean), len(disturbed))
    np.testing.assert_array_equal(clean.actions[:both], disturbed.actions[:both])
    assert not np.allclose(clean.state[1:both], disturbed.state[1:both])
    # record_executed keeps what moved the point: position[t + 1] - position[t] = 0.1 executed[t]
    executed = Disturbance(scale=0.3, record_executed=True)
    kept = run(actor=actor, indices=[0], group_size=1, disturbance=executed)[0]
    np.testing.assert_array_equal(kept.state, disturbed.state)
    np.testing.assert_allclose(np.diff(kept.state, axis=0), 0.1 * kept.actions, atol=1e-6)


def test_the_noise_is_first_order_autoregressive() -> None:
    # Small scale, so that nothing is clipped: standard deviation 0.05, lag-one correlation 0.8.
    noise = DisturbanceNoise(Disturbance(scale=(0.05, 0.0), correlation=0.8), seed=0, index=0, action_dim=2)
    draws = np.stack([noise.apply(np.zeros(2, np.float32)) for _ in range(4000)])
    assert draws[:, 0].std() == pytest.approx(0.05, rel=0.1)
    assert np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1] == pytest.approx(0.8, abs=0.05)
    assert (draws[:, 1] == 0).all()
    large = DisturbanceNoise(Disturbance(scale=5.0), seed=0, index=0, action_dim=2)
    assert max(np.abs(large.apply(np.zeros(2, np.float32))).max() for _ in range(20)) == 1.0


@pytest.mark.parametrize("bad", [{"scale": -0.1}, {"scale": np.nan}, {"scale": 0.1, "correlation": 1.0}])
def test_a_bad_disturbance_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="disturbance"):
        Disturbance(**bad)


# Faults


@pytest.mark.parametrize("workers", [0, 2])
def test_a_world_that_raises_aborts_its_episode_only(workers: int) -> None:
    record = RecordConfig(true_progress=True)
    alone = run(record=record, actor=Driver(noise=0.0), indices=range(7))
    episodes = run(world=Slider(raises=(1,)), actor=Driver(noise=0.0), record=record, workers=workers)
    aborted = episodes[1]
    assert aborted.outcome is Outcome.ABORT
    assert aborted.note.startswith("aborted in advance after 2 steps: RuntimeError: the simulation diverged")
    # Two whole steps, three observations: the step that raised is not there.
    assert len(aborted) == 2
    assert len(aborted.images["front"]) == 3
    # The next groups, which use the rebuilt world, are as they were.
    assert_same(episodes[3:], alone[3:])
    assert [t.index for t in episodes] == list(range(7))


@pytest.mark.parametrize("record", [None, RecordConfig(true_progress=True)])
def test_a_step_that_cannot_be_observed_is_left_out(record: RecordConfig | None) -> None:
    # The third action was executed, but what it led to was never seen: two steps, three observations.
    episode = run(world=Slider(blind=(1,)), actor=Driver(noise=0.0), record=record)[1]
    assert episode.note.startswith("aborted in observe after 3 steps: OSError: the camera is gone")
    assert (len(episode), len(episode.state), len(episode.reward)) == (2, 3, 2)
    assert record is None or len(episode.true_progress) == 3


def test_a_world_that_cannot_begin_is_left_out_and_counted() -> None:
    rollout = collect(Slider(breaks=(4,)), Driver(), seed=3, indices=range(7), group_size=3)
    assert [t.index for t in rollout] == [0, 1, 2, 3, 5, 6]
    assert (rollout.stats.episodes, rollout.stats.aborted) == (7, 1)
    result = evaluate(Slider(breaks=(4,)), Driver(), seed=3, indices=range(7), group_size=3)[4]
    assert (result.success, result.steps, result.extra["outcome"]) == (False, 0, "abort")
    assert "no such state" in result.extra["note"]


def test_too_many_aborts_are_an_error() -> None:
    # 2 of 7 are more than max(1, 0.1 x 7), and not more than 0.5 x 7.
    world = Slider(raises=(1, 4))
    with pytest.raises(RoboRLError, match=r"2 of 6 episodes aborted .* first: index 1 aborted in advance"):
        run(world=world)
    with pytest.raises(RoboRLError, match=r"2 of \d episodes aborted"):
        run(world=world, workers=2, record=RecordConfig())
    assert len(run(world=world, max_abort_share=0.5)) == 7


def test_the_death_of_a_worker_is_an_error_that_names_the_episodes() -> None:
    started = time.monotonic()
    with pytest.raises(
        RoboRLError, match=r"worker \d died \(exit code 3\) while it ran the episodes with seed 3 and index 3, 4, 5"
    ):
        run(world=Slider(dies=(4,)), workers=2, record=RecordConfig())
    assert time.monotonic() - started < 20


def test_an_actor_that_fails_is_an_error_in_every_mode() -> None:
    for workers in (0, 1):
        with pytest.raises(RoboRLError, match=r"driver failed \(seed 3, indices .*\): ValueError: no parameters"):
            run(actor=Driver(fails_at=2), workers=workers)
    with pytest.raises(SafetyError, match=r"driver: an action is not finite \(seed 3, index 2, step 0\)"):
        run(actor=Driver(nan=True))


def test_what_cannot_be_sent_to_a_worker_is_named() -> None:
    with pytest.raises(ConfigError, match="make_actor cannot be sent to a worker process"):
        list(collect(Slider(), lambda: Driver()(), seed=0, indices=[0], workers=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"indices": []}, "indices is empty"),
        ({"indices": [1, 1]}, "must be different"),
        ({"group_size": 0}, "group_size"),
        ({"workers": -1}, "workers"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**settings)


# Streaming


def test_leaving_early_ends_the_workers_and_the_shared_memory() -> None:
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    rollout = collect(Slider(), Driver(), seed=3, indices=range(40), group_size=2, workers=2, record=RecordConfig())
    first = next(rollout)
    frames = first.images["front"].copy()
    rollout.close()
    # The frames are a copy: they outlive the arena they were drawn into.
    np.testing.assert_array_equal(first.images["front"], frames)
    after = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    assert not {path.name for path in after - before if path.name.startswith("psm_")}


def test_a_slow_reader_does_not_fill_the_memory() -> None:
    rollout = collect(Slider(), Driver(), seed=3, indices=range(60), group_size=2, workers=2, record=RecordConfig())
    for _ in range(8):
        next(rollout)
        time.sleep(0.05)  # time enough for the workers to finish what they were given
    rollout.close()
    # Reading group 3 (counted from 0) of two, with 2 x 2 groups handed out ahead: groups 0 to 6 at most.
    assert rollout.stats.episodes <= 2 * (3 + 4)


def test_interrupting_ends_everything_at_once() -> None:
    # As Ctrl-C does, SIGINT goes to the whole process group. The worlds would run for 24 seconds.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_rollout import Driver, Slider, collect\n"
        "if __name__ == '__main__':\n"
        "    slow = Slider(slow=tuple(range(100)))\n"
        "    for t in collect(slow, Driver(velocity=0.0), seed=0, indices=range(100), group_size=2, workers=2):\n"
        "        print(t.index, flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert complaints.count("Traceback") == 1  # the parent's own; the workers say nothing
    assert complaints.rstrip().endswith("KeyboardInterrupt")
    psutil.wait_procs(children, timeout=2)
    assert [c.pid for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE] == []


def test_progress_and_stats() -> None:
    seen: list[tuple[int, int]] = []
    settings = {"seed": 3, "indices": range(7), "group_size": 3}
    rollout = collect(Slider(), Driver(), **settings, progress=lambda done, total: seen.append((done, total)))
    steps = sum(len(trajectory) for trajectory in rollout)
    assert seen == [(3, 7), (6, 7), (7, 7)]
    stats = rollout.stats
    assert (stats.episodes, stats.steps, stats.aborted) == (7, steps, 0)
    assert 0 < stats.inference_share + stats.physics_share + stats.rendering_share <= 1
    assert stats.steps_per_second == pytest.approx(steps / stats.seconds)


def test_shared_memory_is_reserved_before_it_is_used() -> None:
    spec = FrameSpec(2, 3, (("front", (4, 4, 3)), ("wrist", (2, 2, 3))))
    assert spec.nbytes == 2 * 3 * (48 + 12)
    memory = create_shared(spec.nbytes)
    try:
        views = spec.views(memory.buf)
        views["wrist"][:] = 7
        assert views["front"].sum() == 0  # the cameras do not overlap
        del views
    finally:
        memory.close()
        memory.unlink()
    free = os.statvfs("/dev/shm")
    with pytest.raises(ConfigError, match=r"no room for .* MiB of frames"):
        create_shared(free.f_bavail * free.f_frsize + 2**30)


# Replay


def test_replay_gives_the_same_episode_with_larger_frames() -> None:
    recorded = run(record=RecordConfig(true_progress=True), indices=[0, 1, 2])[1]
    seen = replay(Slider(size=16), recorded)
    assert seen.images["front"].shape == (len(recorded) + 1, 16, 16, 3)
    np.testing.assert_array_equal(seen.images["front"][:, 0, 0, 0], np.arange(len(recorded) + 1))
    assert_same([replace(seen, images={})], [replace(recorded, images={})])


def test_replay_draws_the_disturbance_again() -> None:
    disturbance = Disturbance(scale=0.3)
    recorded = run(disturbance=disturbance)[2]
    np.testing.assert_array_equal(replay(Slider(), recorded, disturbance=disturbance).state, recorded.state)
    with pytest.raises(DataError, match=r"driver-3-00002.* leaves the recording at frame 1"):
        replay(Slider(), recorded)


def test_replay_refuses_what_did_not_happen() -> None:
    recorded = run()[0]
    with pytest.raises(DataError, match="leaves the recording at frame 0"):
        replay(Slider(), replace(recorded, seed=4))
    with pytest.raises(DataError, match="recorded for 'move left', the world says 'move right'"):
        replay(Slider(), replace(recorded, index=1))
    longer = replace(
        recorded,
        actions=np.concatenate([recorded.actions] * 2),
        state=np.concatenate([recorded.state, recorded.state[1:]]),
        controller=np.concatenate([recorded.controller] * 2),
        reward=None,
    )
    with pytest.raises(DataError, match=f"the replay ended after {len(recorded)} steps"):
        replay(Slider(), longer)
    other = Outcome.FAILURE if recorded.outcome is not Outcome.FAILURE else Outcome.SUCCESS
    with pytest.raises(DataError, match=f"recorded outcome {other.value}, replayed {recorded.outcome.value}"):
        replay(Slider(), replace(recorded, outcome=other))


def test_consecutive_groups_are_consecutive_indices() -> None:
    # Ten episodes in groups of four: 4 + 4 + 2, seen in the number of batches asked at the first decision.
    first = [int(t.note.removeprefix("batches ").split(",")[0]) for t in run(indices=range(10, 20), group_size=4)]
    assert first == [4] * 8 + [2] * 2
    assert all(b - a == 1 for a, b in pairwise(t.index for t in run(indices=range(10, 20), group_size=4)))


# The same on the real tabletop


def test_the_tabletop_is_the_same_for_any_number_of_workers_and_replays_larger() -> None:
    from sims.tabletop import TabletopConfig

    world, actor = TabletopConfig(size=16, horizon=6), Driver(velocity=0.0, needs_images=True, noise=0.6)
    settings = {"indices": range(4), "group_size": 2, "record": RecordConfig(true_progress=True)}
    settings["disturbance"] = Disturbance(scale=(0.2, 0.2, 0.2, 0.0))
    alone = run(world, actor, **settings)
    assert_same(alone, run(world, actor, **settings, workers=2))
    assert_same(alone, run(world, actor, **settings, workers=1))
    larger = replay(replace(world, size=48), alone[1], disturbance=settings["disturbance"])
    assert larger.images["wrist"].shape == (len(alone[1]) + 1, 48, 48, 3)
    np.testing.assert_array_equal(larger.state, alone[1].state)
    with pytest.raises(DataError, match="leaves the recording"):
        replay(world, alone[1])
