"""How fast the tabletop steps on one core, and how often its scripted expert succeeds.

    python benchmarks/bench_tabletop.py                     speeds
    python benchmarks/bench_tabletop.py --episodes 120      speeds, then the expert over 120 episodes of each task
    python benchmarks/bench_tabletop.py --episodes 24 --mistakes    also each injected mistake

Every episode is driven by the expert, whose time is inside the figures. CPU seconds are of this process, so they mean
the same on a busy machine; wall seconds do not.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from time import perf_counter, process_time
from typing import Any

import numpy as np

from sims.tabletop import ExpertConfig, ImperfectionConfig, ScriptedExpert, TabletopConfig, TabletopWorld
from sims.tabletop.config import FAMILIES
from sims.tabletop.failures import FAILURES, IMPERFECTIONS

LAYOUTS: dict[str, dict[str, Any]] = {
    "states only, nothing drawn": {"cameras": ()},
    "front 64 px": {"cameras": ("front",)},
    "front and wrist 64 px": {},
    "front 128 px": {"cameras": ("front",), "size": 128},
    "front 256 px": {"cameras": ("front",), "size": 256},
    "demo scene (2 cubes), two cameras 64 px": {"tasks": ("bowl", "pad"), "num_cubes": 2, "num_pads": 1},
}


def play(world: TabletopWorld, expert: ScriptedExpert, index: int, *, look: bool) -> tuple[bool, int]:
    """One episode: (success, steps). With `look` every step is observed."""
    world.begin(0, index)
    expert.begin([world], [np.random.default_rng([0, index])])
    steps, ended = 0, False
    while not ended:
        result = world.advance(expert.act([0], [])[0, 0])
        steps += 1
        if look:
            world.observe()
        ended = result.terminated or result.truncated
    return result.success, steps


def measure_speed(name: str, options: dict[str, Any], episodes: int) -> None:
    world, expert = TabletopWorld(TabletopConfig(**options)), ScriptedExpert()
    world.observe()  # opens the OpenGL context
    cpu, wall = process_time(), perf_counter()
    steps = sum(play(world, expert, index, look=True)[1] for index in range(episodes))
    cpu, wall = process_time() - cpu, perf_counter() - wall
    print(f"{name:42s} {steps / cpu:7.0f} {steps / wall:7.0f}")


def measure_success(name: str, expert: ScriptedExpert, episodes: int) -> None:
    rates, lengths = [], []
    for family in FAMILIES:
        world = TabletopWorld(TabletopConfig(tasks=(family,)))
        results = [play(world, expert, index, look=False) for index in range(episodes)]
        rates.append(f"{sum(success for success, _ in results):3d}/{episodes}")
        lengths.append(f"{np.mean([steps for _, steps in results]):.0f}")
    print(f"{name:14s} " + "  ".join(f"{rate:>9s} {length:>3s}" for rate, length in zip(rates, lengths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--speed-episodes", type=int, default=24)
    parser.add_argument("--episodes", type=int, default=0, help="episodes of each task for the expert's success rate")
    parser.add_argument("--mistakes", action="store_true", help="also with each imperfection and failure injected")
    args = parser.parse_args()
    print(f"{'environment steps per second, one core':42s} {'CPU':>7s} {'wall':>7s}")
    for name, options in LAYOUTS.items():
        measure_speed(name, options, args.speed_episodes)
    if args.episodes < 1:
        return
    print("\nsuccesses and mean steps " + "  ".join(f"{family:>10s}" for family in FAMILIES))
    measure_success("clean", ScriptedExpert(), args.episodes)
    for mistake in (*IMPERFECTIONS, *FAILURES) if args.mistakes else ():
        config = ExpertConfig(imperfections=ImperfectionConfig(**{mistake: 1.0}))
        measure_success(mistake, ScriptedExpert(config), args.episodes)


if __name__ == "__main__":
    main()
