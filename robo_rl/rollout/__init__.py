"""Stepping worlds with an actor: collect trajectories, evaluate, replay."""

from robo_rl.rollout.collect import Rollout, collect, evaluate
from robo_rl.rollout.replay import replay
from robo_rl.rollout.settings import Disturbance, RecordConfig, RolloutStats, episode_rng

__all__ = ["Disturbance", "RecordConfig", "Rollout", "RolloutStats", "collect", "episode_rng", "evaluate", "replay"]
