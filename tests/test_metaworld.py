"""The Meta-World adapter: pure initial states, proprioception only, experts that succeed, fast and true frames."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest

from robo_rl.errors import ConfigError, SafetyError
from robo_rl.rollout import RecordConfig, collect
from robo_rl.types import Controller, Outcome, World

pytest.importorskip("metaworld", reason="the optional package metaworld is not installed")

from sims.meta_world import (
    DEFAULT_TASKS,
    INSTRUCTIONS,
    MetaWorldConfig,
    MetaWorldExpert,
    MetaWorldExpertConfig,
    MetaWorldWorld,
)
from sims.meta_world import world as world_module
from sims.meta_world.library import environments, experts
from sims.meta_world.render import drawing_model


def trace(world: MetaWorldWorld, seed: int, index: int, steps: int = 4) -> list[np.ndarray]:
    """Everything that decides the future, at the start and after a few fixed actions."""
    world.begin(seed, index)
    arrays = []
    for step in range(steps + 1):
        data, model = world._env.data, world._env.model
        arrays += [data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy(), data.mocap_pos.copy()]
        arrays += [model.body_pos.copy(), model.site_pos.copy(), world.privileged_state()]
        if step < steps:
            world.advance(np.array([0.5, 0.9, -1.0, 0.3], np.float32))
    return arrays


# Initial states


# With a single pass of the library's reset these states would differ (and so in ten other tasks).
@pytest.mark.parametrize("task", ["box-close-v3", "drawer-open-v3"])
def test_a_state_is_the_same_bit_for_bit_after_other_episodes(task: str) -> None:
    config = MetaWorldConfig(tasks=(task,))
    world_module._FREE.clear()  # a simulator that has played nothing
    fresh = config()
    alone = trace(fresh, 7, 3)
    used = config()  # another simulator, since `fresh` still holds the first
    for index in (1, 2):
        trace(used, 5, index, steps=9)
    assert used._env is not fresh._env
    for before, after in zip(alone, trace(used, 7, 3), strict=True):
        np.testing.assert_array_equal(before, after)
    # and another index or seed is another state
    for seed, index in ((7, 4), (8, 3)):
        used.begin(seed, index)
        assert not np.array_equal(used.privileged_state(), alone[6])
    fresh.close()
    used.close()


def test_worlds_of_a_process_share_simulators_and_never_play_the_same_one() -> None:
    config = MetaWorldConfig(tasks=("reach-v3",))
    first, second = config(), config()
    first.begin(0, 0)
    second.begin(0, 1)
    assert first._env is not second._env
    simulator = first._env
    first.close()
    third = config()
    third.begin(0, 2)
    assert third._env is simulator
    second.close()
    third.close()


def test_tasks_follow_the_index_and_are_said_in_words() -> None:
    world = MetaWorldConfig(tasks=("reach-v3", "drawer-open-v3"))()
    assert isinstance(world, World)
    for index, task in enumerate(["reach-v3", "drawer-open-v3", "reach-v3"]):
        world.begin(0, index)
        assert (world.task, world.instruction) == (task, INSTRUCTIONS[task])
    world.close()


def test_every_task_of_the_library_has_a_sentence() -> None:
    assert set(INSTRUCTIONS) == set(environments()) == set(experts())
    for task, sentence in INSTRUCTIONS.items():
        assert sentence[0].isupper(), task
        assert sentence.endswith("."), task
        assert "v3" not in sentence, task
    assert len(set(INSTRUCTIONS.values())) == 50


# What a policy sees


def test_proprioception_holds_nothing_of_the_object_or_the_goal() -> None:
    # The hand always starts alike; puck and goal do not. So states at the start are equal, the privileged ones not.
    world = MetaWorldConfig(tasks=("push-v3",))()
    world.begin(0, 0)
    state, privileged = world.state(), world.privileged_state()
    assert state.shape == (world.state_dim,)
    assert state.dtype == np.float32
    np.testing.assert_allclose(state, privileged[:4], atol=1e-6)
    world.begin(0, 1)
    np.testing.assert_array_equal(world.state(), state)
    assert not np.allclose(world.privileged_state(), privileged)
    world.close()


def test_frames_show_the_goal_and_are_the_same_each_time() -> None:
    world = MetaWorldConfig(tasks=("reach-v3",), size=64)()
    world.begin(0, 0)
    one, two = world.observe(), world.observe()
    assert set(one.images) == {"corner2", "gripperPOV"}
    for camera, frame in one.images.items():
        assert frame.shape == (64, 64, 3)
        assert frame.dtype == np.uint8
        assert frame.std() > 10
        np.testing.assert_array_equal(frame, two.images[camera])
    # The goal of "reach" is a green mark in the air: shown in the one place, gone with the site.
    red, green, blue = one.images["corner2"].astype(int).transpose(2, 0, 1)
    assert 2 <= (green > 100 + np.maximum(red, blue)).sum() <= 40
    # The table is nearer to the camera's foot than the far wall: the picture stands upright (wood is brown).
    brown = (red > blue + 15) & (red < 160) & (green > 50)
    assert brown[32:].sum() > 2 * brown[:32].sum()
    assert one.instruction == INSTRUCTIONS["reach-v3"]
    world.close()


def test_drawing_does_not_touch_the_physics() -> None:
    config = MetaWorldConfig(tasks=("drawer-open-v3",))
    seen, unseen = config(), config()
    action = np.array([0.2, 1.0, -0.5, -1.0], np.float32)
    for world in (seen, unseen):
        world.begin(0, 0)
    for _ in range(5):
        seen.observe()
        seen.advance(action)
        unseen.advance(action)
    np.testing.assert_array_equal(seen.privileged_state(), unseen.privileged_state())
    model = unseen._env.model
    before = copy.copy(model)
    thinned = drawing_model(model, 64)
    for name in ("mesh_face", "mesh_facenum", "mat_reflectance"):
        np.testing.assert_array_equal(getattr(model, name), getattr(before, name))
    # 67,000 triangles become at most a quarter, and each mesh still reaches as far, to a cell of 1 cm.
    assert thinned.mesh_facenum.sum() < model.mesh_facenum.sum() / 4
    for mesh in range(model.nmesh):
        corners = []
        for m in (model, thinned):
            faces = m.mesh_face[m.mesh_faceadr[mesh] : m.mesh_faceadr[mesh] + m.mesh_facenum[mesh]]
            vertices = m.mesh_vert[m.mesh_vertadr[mesh] + faces.ravel()]
            corners.append(np.stack([vertices.min(axis=0), vertices.max(axis=0)]))
        np.testing.assert_allclose(corners[0], corners[1], atol=0.02)
    seen.close()
    unseen.close()


# Endings


def test_success_must_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MetaWorldConfig(tasks=("reach-v3",), success_hold=2, action_repeat=1, horizon=5)()
    world.begin(0, 0)
    step = world._env.step
    flicker = iter([1.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(world._env, "step", lambda action: (*step(action)[:4], {"success": next(flicker)}))
    results = [world.advance(np.zeros(4, np.float32)) for _ in range(4)]
    assert [result.success for result in results] == [False, False, False, True]
    assert [result.terminated for result in results] == [False, False, False, True]
    monkeypatch.undo()
    world.close()


def test_the_horizon_truncates() -> None:
    world = MetaWorldConfig(tasks=("reach-v3",), horizon=3)()
    world.begin(0, 0)
    results = [world.advance(np.zeros(4, np.float32)) for _ in range(3)]
    assert [result.truncated for result in results] == [False, False, True]
    assert not any(result.terminated or result.success for result in results)
    world.close()


def test_an_action_is_repeated_for_a_control_step() -> None:
    # A full action moves the hand's target by 1 cm a simulator step, so by 4 cm in a control step of four.
    world = MetaWorldConfig(tasks=("reach-v3",), action_repeat=4)()
    assert world.control_hz == 20.0
    world.begin(0, 0)
    start = world._env.data.mocap_pos[0, 0]
    world.advance(np.array([1.0, 0.0, 0.0, 0.0], np.float32))
    assert world._env.data.mocap_pos[0, 0] - start == pytest.approx(0.04, abs=1e-6)
    world.close()


@pytest.mark.parametrize("action", [[np.nan, 0, 0, 0], [0, 0, 0], [np.inf, 0, 0, 0]])
def test_an_impossible_action_is_refused(action: list[float]) -> None:
    world = MetaWorldConfig(tasks=("reach-v3",))()
    world.begin(0, 0)
    with pytest.raises(SafetyError, match="4 finite numbers"):
        world.advance(np.array(action, np.float32))
    world.close()
    with pytest.raises(ConfigError, match="begin"):
        world.state()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ()}, "tasks is empty"),
        ({"tasks": ("reach-v9",)}, "unknown task 'reach-v9'; there are: assembly-v3"),
        ({"cameras": ("front",)}, "unknown camera 'front'"),
        ({"size": 0}, "size must be at least 1"),
        ({"horizon": 200, "action_repeat": 4}, "horizon of at most 125"),
    ],
)
def test_a_bad_config_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MetaWorldConfig(**settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    monkeypatch.setitem(sys.modules, "metaworld.policies", None)
    for build in (MetaWorldConfig(), MetaWorldExpertConfig()):
        with pytest.raises(ConfigError, match=r'pip install "robo-rl\[metaworld\]"'):
            build()


# The expert, through the rollout engine


def test_the_expert_succeeds_on_the_default_tasks() -> None:
    # 20 of 20 a task when measured (see the module's report); two of each here.
    rollout = collect(
        MetaWorldConfig(),
        MetaWorldExpertConfig(),
        seed=1,
        indices=range(10),
        group_size=5,
        record=RecordConfig(every_step=False, true_progress=True),
    )
    episodes = list(rollout)
    assert {episode.task for episode in episodes} == set(DEFAULT_TASKS)
    for episode in episodes:
        assert episode.outcome is Outcome.SUCCESS, episode.task
        assert 10 <= len(episode) <= 70
        assert (episode.controller == Controller.SCRIPT).all()
        assert episode.true_progress is not None
        assert episode.true_progress[0] == 0.0
        assert episode.true_progress[-1] == 1.0
        assert ((episode.true_progress >= 0) & (episode.true_progress <= 1)).all()


def test_an_expert_with_faults_stands_still_or_strays_and_says_so() -> None:
    def episode(expert: MetaWorldExpertConfig):
        return next(collect(MetaWorldConfig(tasks=("reach-v3",)), expert, seed=0, indices=[0], group_size=1))

    clean, hesitant = episode(MetaWorldExpertConfig()), episode(MetaWorldExpertConfig(hesitation=0.3))
    assert clean.note == ""
    still = int((np.abs(hesitant.actions[:, :3]).max(axis=1) == 0).sum())
    assert still >= 3
    assert hesitant.note == f"hesitated for {still} steps"
    assert len(hesitant) > len(clean)
    stray = episode(MetaWorldExpertConfig(detour=0.3))
    assert "strayed for" in stray.note
    assert len(stray) > len(clean)
    with pytest.raises(ConfigError, match="hesitation must be in"):
        MetaWorldExpertConfig(hesitation=1.5)


def test_the_expert_plays_meta_world_only() -> None:
    with pytest.raises(ConfigError, match="plays Meta-World only"):
        MetaWorldExpert().begin([object()], [np.random.default_rng(0)])


def test_frames_and_states_do_not_depend_on_the_workers() -> None:
    config = MetaWorldConfig(tasks=("button-press-topdown-v3",), horizon=6)
    settings = {"seed": 2, "indices": range(4), "group_size": 2, "record": RecordConfig()}
    alone = list(collect(config, MetaWorldExpertConfig(hesitation=0.1), **settings))
    apart = list(collect(config, MetaWorldExpertConfig(hesitation=0.1), **settings, workers=1))
    for a, b in zip(alone, apart, strict=True):
        np.testing.assert_array_equal(a.state, b.state)
        np.testing.assert_array_equal(a.actions, b.actions)
        for camera in config.cameras:
            np.testing.assert_array_equal(a.images[camera], b.images[camera])
