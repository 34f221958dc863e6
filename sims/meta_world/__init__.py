"""Meta-World v3: fifty tasks of a Sawyer arm, from images and language."""

from sims.meta_world.expert import MetaWorldExpert, MetaWorldExpertConfig
from sims.meta_world.tasks import INSTRUCTIONS
from sims.meta_world.world import DEFAULT_TASKS, MetaWorldConfig, MetaWorldWorld

__all__ = [
    "DEFAULT_TASKS",
    "INSTRUCTIONS",
    "MetaWorldConfig",
    "MetaWorldExpert",
    "MetaWorldExpertConfig",
    "MetaWorldWorld",
]
