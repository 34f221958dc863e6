"""LeRobotDataset v3 <-> trajectories, reward tables, and what each frame may be used for."""

from robo_rl.data.damage import BadEpisode
from robo_rl.data.dataset import EpisodeSet, concat, read_episodes, require
from robo_rl.data.reward_table import read_reward_table, write_reward_table
from robo_rl.data.windows import Windows, find_windows
from robo_rl.data.writer import write_episodes

__all__ = [
    "BadEpisode",
    "EpisodeSet",
    "Windows",
    "concat",
    "find_windows",
    "read_episodes",
    "read_reward_table",
    "require",
    "write_episodes",
    "write_reward_table",
]
