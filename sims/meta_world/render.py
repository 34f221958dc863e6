"""Drawing Meta-World fast without a graphics card.

The library's renderer gives about 6 frames a second in software (4096-pixel shadow maps, multisampling,
67,000 mesh triangles, a mirror for a floor). What is changed, measured at 64 x 64 on one core:
no shadows, no multisampling, no mirror: 6 ms; meshes thinned to what a pixel can show: 1.7 ms, because software GL
pays for every triangle. The physics model is not touched.
"""

from __future__ import annotations

import atexit
import copy
import importlib
from typing import Any

import mujoco
import numpy as np

from robo_rl.errors import ConfigError
from sims.gl import ensure_gl

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
# From its own place corner2 shows the room more than the task. lerobot moves it here, as the Meta-World paper's
# figures do; a narrower view leaves a 4 cm puck some 3 pixels wide at 64 x 64.
NEAR_CORNER2 = ((0.75, 0.075, 0.7), 50.0)
GOAL_COLOUR = (0.1, 0.9, 0.1, 1.0)
GOAL_RADIUS = 0.02


def mark_goal(env: Any) -> None:
    """Make the task's goal sites visible: green, opaque, at least 2 cm. A site is drawn and nothing else.

    Where the goal is a place in the air (reach, push, pick-place) an image shows it by this mark only; the library
    draws it in another colour for each task, in reach that of the puck.
    """
    for name, _ in env._target_site_config:
        site = env.model.site(name).id
        env.model.site_rgba[site] = GOAL_COLOUR
        env.model.site_size[site] = np.maximum(env.model.site_size[site], GOAL_RADIUS)


class Painter:
    """Draws one task's model at one size; all worlds of the process that play the task share it."""

    def __init__(self, model: Any, size: int) -> None:
        self._size = size
        drawn = drawing_model(model, size)
        self._context = mujoco.MjrContext(drawn, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(drawn, maxgeom=200)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._rectangle = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), dtype=np.uint8)

    def draw(self, model: Any, data: Any, camera: str) -> np.ndarray:
        """uint8 (size, size, 3), row 0 at the top. Cameras mounted upside down are turned by 180 degrees."""
        number = self._camera.fixedcamid = model.camera(camera).id
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        if camera == "corner2":
            place, angle = NEAR_CORNER2
            model.cam_fovy[number] = angle
            data.cam_xpos[number] = place  # a fixed camera of the world body: its frame is the world's
        mujoco.mjv_updateScene(
            model, data, self._options, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rectangle, self._context)
        # Its upward direction where the model was compiled, so that an image cannot turn over within an episode.
        upright = model.cam_mat0[number].reshape(3, 3)[2, 1] > -0.1
        # The library's rows come from the bottom up; turning by 180 degrees as well leaves a mirror of columns.
        return np.ascontiguousarray(self._pixels[::-1] if upright else self._pixels[:, ::-1])

    def close(self) -> None:
        self._context.free()


def drawing_model(model: Any, size: int) -> Any:
    """A copy of the model to make the GL objects from: cheap settings, thinned meshes, the same numbering."""
    drawn = copy.copy(model)
    drawn.vis.quality.shadowsize = 0
    drawn.vis.quality.offsamples = 0
    drawn.vis.quality.numslices, drawn.vis.quality.numstacks, drawn.vis.quality.numquads = 12, 6, 1
    drawn.vis.global_.offwidth = drawn.vis.global_.offheight = size
    drawn.mat_reflectance[:] = 0.0
    for mesh in range(drawn.nmesh):
        thin_mesh(drawn, mesh, cell=0.64 / size)  # 1 cm at 64 pixels
    return drawn


def thin_mesh(model: Any, mesh: int, cell: float) -> None:
    """Merge the mesh's vertices within cells of `cell` metres and drop the triangles that collapse.

    Vertex clustering (Rossignac and Borrel 1993): each cell keeps its first vertex. Triangles left are written to the
    front of the mesh's own rows, so that nothing else in the model moves.
    """
    first_vertex, vertices = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    cells = np.round(model.mesh_vert[first_vertex : first_vertex + vertices] / cell).astype(int)
    _, keeper, member = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    faces = keeper[member.ravel()][model.mesh_face[first : first + count]]
    a, b, c = faces.T
    whole = np.flatnonzero((a != b) & (b != c) & (a != c))
    _, unique = np.unique(np.sort(faces[whole], axis=1), axis=0, return_index=True)
    rows = whole[np.sort(unique)]
    if len(rows) < 12:  # too small to thin: it would vanish
        return
    for name in ("mesh_facenormal", "mesh_facetexcoord"):
        array = getattr(model, name)
        array[first : first + len(rows)] = array[first : first + count][rows]
    model.mesh_face[first : first + len(rows)] = faces[rows]
    model.mesh_facenum[mesh] = len(rows)


# One GL context a process, made when something is first drawn; (task, size) -> its painter.
_CONTEXT: list[Any] = []
_PAINTERS: dict[tuple[str, int], Painter] = {}


def painter(task: str, size: int, model: Any) -> Painter:
    """The process's painter of a task; `model` is used when it is made."""
    if not _CONTEXT:
        _CONTEXT.append(_gl_context(size))
        atexit.register(_forget)
    _CONTEXT[0].make_current()
    key = (task, size)
    if key not in _PAINTERS:
        _PAINTERS[key] = Painter(model, size)
    return _PAINTERS[key]


def _gl_context(size: int) -> Any:
    """A GL context of the back-end that draws on this machine. Raises ConfigError where none does.

    `mujoco.GLContext` is fixed when mujoco is imported, perhaps by the library before us; its modules are not.
    """
    backend = ensure_gl().lower()
    try:
        context = importlib.import_module(f"mujoco.{backend}").GLContext if backend else mujoco.GLContext
        return context(size, size)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"metaworld: no image can be drawn with MUJOCO_GL={backend} ({error})") from error


def _forget() -> None:
    """Free GL objects before the context, and the context before the interpreter takes GL apart."""
    for brush in _PAINTERS.values():
        brush.close()
    _PAINTERS.clear()
    while _CONTEXT:
        _CONTEXT.pop().free()
