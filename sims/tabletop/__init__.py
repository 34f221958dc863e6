"""A light tabletop in MuJoCo: seven-joint arm, cubes, pads and a bowl; language-conditioned tasks."""

# ruff: noqa: E402  the OpenGL back-end is chosen before mujoco can be imported

from sims.gl import load_mujoco

load_mujoco()

from sims.tabletop.config import TabletopConfig
from sims.tabletop.expert import ExpertConfig, ScriptedExpert
from sims.tabletop.failures import ImperfectionConfig
from sims.tabletop.world import TabletopWorld

__all__ = ["ExpertConfig", "ImperfectionConfig", "ScriptedExpert", "TabletopConfig", "TabletopWorld"]
