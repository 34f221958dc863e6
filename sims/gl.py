"""Choose an OpenGL back-end for MuJoCo before MuJoCo is imported.

MuJoCo reads MUJOCO_GL when it is imported, and a back-end that cannot draw fails later with a message that does not
say what is missing. So each candidate draws one small picture in a process of its own; the first that succeeds is
written to the environment, where worker processes find it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from robo_rl.errors import ConfigError

BACKENDS = ("egl", "osmesa", "glfw")
VERDICT = "ROBO_RL_GL_PROBE"  # "none" after a probe in which nothing drew, so that it is not repeated
PROBE_SECONDS = 60.0  # a cold start on a busy machine; about half a second on an idle one

_DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><camera name='c' pos='0 0 2'/>"
    "<geom type='box' size='1 1 .1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 8, 8) as renderer:
    renderer.update_scene(data, "c")
    raise SystemExit(0 if renderer.render().any() else "the picture is black")
"""


def ensure_gl(probe: Callable[[str], bool] | None = None) -> str:
    """Set MUJOCO_GL to a back-end that draws, unless it is set or there is a display; returns its value.

    Call it before `import mujoco`. LP_NUM_THREADS=0 (Mesa draws in the calling thread: small frames are faster, and
    one process uses one core) is set where unset. `probe(name)` says whether a back-end draws; the default asks a
    subprocess. Raises ConfigError when none does. "" means that the choice is left to MuJoCo.
    """
    os.environ.setdefault("LP_NUM_THREADS", "0")
    chosen = os.environ.get("MUJOCO_GL", "")
    if chosen or has_display():
        return chosen
    if os.environ.get(VERDICT) != "none":
        for name in BACKENDS:
            if (probe or draws)(name):
                os.environ["MUJOCO_GL"] = name
                return name
        os.environ[VERDICT] = "none"
    raise ConfigError(
        "no OpenGL back-end can draw (tried egl, osmesa, glfw); on Debian or Ubuntu install one with "
        "'apt-get install libegl1 libgl1-mesa-dri' or 'apt-get install libosmesa6'"
    )


def load_mujoco() -> None:
    """Choose a back-end, then import mujoco. Without a back-end all but drawing works, so that is no error yet.

    Raises ConfigError when MUJOCO_GL names a back-end whose library is missing: mujoco cannot even be imported then.
    """
    with suppress(ConfigError):
        ensure_gl()
    try:
        import mujoco  # noqa: F401
    except (AttributeError, ImportError, RuntimeError) as error:
        raise ConfigError(
            f"mujoco cannot be imported with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')!r} ({error}); "
            "unset it and a back-end that draws is chosen"
        ) from error


def has_display() -> bool:
    """Whether MuJoCo's own choice, a window system, is available."""
    if not sys.platform.startswith("linux"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def draws(name: str) -> bool:
    """Whether a back-end draws a picture, tried in a subprocess (a missing library can kill the process)."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DRAW],
            env=os.environ | {"MUJOCO_GL": name},
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
