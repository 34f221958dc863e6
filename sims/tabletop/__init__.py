"""A light tabletop in MuJoCo: seven-joint arm, cubes, pads and a bowl; language-conditioned tasks."""

from contextlib import suppress

from robo_rl.errors import ConfigError
from sims.gl import ensure_gl

with suppress(ConfigError):  # without a back-end everything but drawing works; drawing raises it again
    ensure_gl()

# MuJoCo reads MUJOCO_GL when it is imported, so these come after the choice.
from sims.tabletop.config import TabletopConfig
from sims.tabletop.expert import ExpertConfig, ScriptedExpert
from sims.tabletop.failures import ImperfectionConfig
from sims.tabletop.world import TabletopWorld

__all__ = ["ExpertConfig", "ImperfectionConfig", "ScriptedExpert", "TabletopConfig", "TabletopWorld"]
