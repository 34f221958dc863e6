"""Throughput of the rollout engine beside vectorised environments people use, on the same world and actions.

    python benchmarks/bench_rollout.py [--world tabletop|metaworld] [--episodes 32] [--workers 2]

Every row plays the same episodes with the same kind of random actions. A vectorised environment gives an observation,
with its pictures, after every step; the engine draws when the actor decides (every 4 steps here), or at every step
while recording. Start-up of the processes is left out of the rates and given beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from robo_rl.rollout import RecordConfig, collect
from robo_rl.types import Controller, Observation, World

CHUNK = 4
SEED = 0


@dataclass(frozen=True)
class RandomActor:
    """Uniform chunks; `needs_images` makes it look like a policy that sees."""

    needs_images: bool = True
    policy_id: str = "random"
    controller: Controller = Controller.SCRIPT

    def __call__(self) -> RandomActor:
        return self

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        object.__setattr__(self, "rngs", rngs)

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        rngs: Sequence[np.random.Generator] = self.rngs  # type: ignore[attr-defined]
        return np.stack([rngs[slot].uniform(-1, 1, (CHUNK, 4)) for slot in slots]).astype(np.float32)

    def note(self, slot: int) -> str:
        return ""


class WorldEnv(gymnasium.Env):
    """Any `World` as a gymnasium environment: images and state after every step; every `stride`-th episode."""

    def __init__(self, make_world: Callable[[], World], first: int, stride: int) -> None:
        self.world = make_world()
        self.index, self.stride = first, stride
        self.world.begin(SEED, first)
        example = self.world.observe()
        boxes: dict[str, gymnasium.Space] = {
            name: gymnasium.spaces.Box(0, 255, image.shape, np.uint8) for name, image in example.images.items()
        }
        boxes["state"] = gymnasium.spaces.Box(-np.inf, np.inf, example.state.shape, np.float32)
        self.observation_space = gymnasium.spaces.Dict(boxes)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self.world.action_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.world.begin(SEED, self.index)
        self.index += self.stride
        return self._look(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.world.advance(action)
        return self._look(), result.reward, result.terminated, result.truncated, {}

    def _look(self) -> dict[str, np.ndarray]:
        observation = self.world.observe()
        return {**observation.images, "state": observation.state}


def bench_engine(
    make_world: Any, episodes: int, workers: int, record: RecordConfig | None, sees: bool
) -> dict[str, Any]:
    make_actor: Callable[[], Any] = RandomActor(needs_images=sees)
    rollout = collect(
        make_world,
        make_actor,
        seed=SEED,
        indices=range(episodes),
        workers=workers,
        group_size=4,
        record=record,
    )
    for _ in rollout:
        pass
    stats = rollout.stats
    return {
        "rate": stats.steps / (stats.seconds - stats.startup_seconds),
        "startup": stats.startup_seconds,
        "seconds": stats.seconds,
        "detail": f"physics {stats.physics_share:.0%}, drawing {stats.rendering_share:.0%}",
    }


def bench_sb3(make_world: Any, episodes: int, workers: int) -> dict[str, Any]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    started = perf_counter()
    makers: list[Callable[[], Any]] = [partial(WorldEnv, make_world, n, workers) for n in range(workers)]
    envs = SubprocVecEnv(makers, start_method="spawn")
    return _play(lambda: envs.reset(), lambda actions: envs.step(actions)[2], envs.close, started, episodes, workers)


def bench_gymnasium(make_world: Any, episodes: int, workers: int) -> dict[str, Any]:
    started = perf_counter()
    makers = [partial(WorldEnv, make_world, number, workers) for number in range(workers)]
    envs = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True, context="spawn")

    def step(actions: np.ndarray) -> np.ndarray:
        _, _, terminated, truncated, _ = envs.step(actions)
        return terminated | truncated

    return _play(lambda: envs.reset(), step, envs.close, started, episodes, workers)


def _play(reset: Any, step: Any, close: Any, started: float, episodes: int, workers: int) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    reset()
    startup = perf_counter() - started
    begun, done, steps = perf_counter(), 0, 0
    while done < episodes:
        ends = step(rng.uniform(-1, 1, (workers, 4)).astype(np.float32))
        steps += workers
        done += int(np.sum(ends))
    rate, seconds = steps / (perf_counter() - begun), perf_counter() - started
    close()
    return {"rate": rate, "startup": startup, "seconds": seconds, "detail": "drawn at every step"}


def world_maker(name: str) -> Any:
    if name == "tabletop":
        from sims.tabletop import TabletopConfig

        return TabletopConfig()
    from sims.meta_world import MetaWorldConfig

    return MetaWorldConfig(tasks=("reach-v3", "drawer-open-v3"), horizon=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=("tabletop", "metaworld"), default="tabletop")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    make_world, episodes, workers = world_maker(options.world), options.episodes, options.workers
    rows: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("engine, blind actor, no frames", lambda: bench_engine(make_world, episodes, workers, None, False)),
        ("engine, evaluation (sees at decisions)", lambda: bench_engine(make_world, episodes, workers, None, True)),
        ("engine, recording every step", lambda: bench_engine(make_world, episodes, workers, RecordConfig(), True)),
        ("stable-baselines3 SubprocVecEnv", lambda: bench_sb3(make_world, episodes, workers)),
        ("gymnasium AsyncVectorEnv", lambda: bench_gymnasium(make_world, episodes, workers)),
    ]
    print(f"{options.world}: {episodes} episodes, {workers} workers")
    for name, bench in rows:
        row = bench()
        times = f"start {row['startup']:5.1f} s   all {row['seconds']:5.1f} s"
        print(f"{name:40s} {row['rate']:8.0f} steps/s   {times}   {row['detail']}", flush=True)


if __name__ == "__main__":
    main()
