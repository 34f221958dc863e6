"""The MuJoCo model: a 7-joint Panda of capsules with parallel fingers, a table, cubes, pads and a bowl.

Everything is a primitive; there are no mesh files. Lengths and inertias of the links are the Franka Panda's. Bowl and
pads are mocap bodies: their places live in MjData, so one model serves every world of a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin

import mujoco
import numpy as np

CUBE_HALF = 0.0225  # m
PAD_HALF = 0.045
BOWL_RADIUS = 0.066  # of the rim, outside
TABLE_X, TABLE_Y = (-0.28, 0.22), 0.30  # the top is at z = 0
STRIP_Y = (0.215, 0.285)  # the marked zones of the push tasks, on both sides
TIMESTEP = 0.005  # s
FINGER_RANGE = 0.04  # travel of one finger, m

COLOURS = {
    "red": (0.88, 0.08, 0.08),
    "green": (0.05, 0.62, 0.15),
    "blue": (0.08, 0.25, 0.92),
    "orange": (1.0, 0.5, 0.0),
    "yellow": (0.98, 0.88, 0.15),
    "purple": (0.62, 0.2, 0.72),
}
HOME = np.array([0.0, 0.15, 0.0, -2.25, 0.0, 2.40, 0.7854])  # joint angles the null space pulls to, rad

# kp, kv, torque limit of the position servos
SERVOS = [(4500, 220, 87)] * 2 + [(3500, 180, 87)] * 2 + [(2000, 100, 12)] * 3


@dataclass(frozen=True, slots=True)
class _Link:
    """One moving link: its frame in the parent's, joint range, inertia, and the capsule that shows it."""

    pos: str
    quat: str
    joint_range: str
    mass: float
    com: str
    inertia: str
    capsule: str
    radius: float
    dark: bool = False


_LINKS = (
    _Link("0 0 .333", "1 0 0 0", "-2.8973 2.8973", 4.970684, ".003875 .002081 -.04762",
          ".70337 .70661 .009117 -.000139 .006772 .019169", "0 0 -.19 0 0 0", 0.06),
    _Link("0 0 0", "1 -1 0 0", "-1.7628 1.7628", 0.646926, "-.003141 -.02872 .003495",
          ".007962 .02811 .025995 -.003925 .010254 .000704", "0 0 -.05 0 0 .05", 0.06, dark=True),
    _Link("0 -.316 0", "1 1 0 0", "-2.8973 2.8973", 3.228604, ".027518 .039252 -.066502",
          ".037242 .036155 .01083 -.004761 -.011396 -.012805", "0 0 -.2 0 0 -.06", 0.055),
    _Link(".0825 0 0", "1 1 0 0", "-3.0718 -.0698", 3.587895, "-.05317 .104419 .027454",
          ".025853 .019552 .028323 .007796 -.001332 .008641", "0 0 -.05 0 0 .05", 0.055, dark=True),
    _Link("-.0825 .384 0", "1 -1 0 0", "-2.8973 2.8973", 1.225946, "-.011953 .041065 -.038437",
          ".035549 .029474 .008627 -.002117 -.004037 .000229", "0 0 -.26 0 .05 -.06", 0.045),
    _Link("0 0 0", "1 1 0 0", "-.0175 3.7525", 1.666555, ".060149 -.014117 -.010517",
          ".001964 .004354 .005433 .000109 -.001158 .000341", "0 0 -.06 0 0 .01", 0.05, dark=True),
    _Link(".088 0 0", "1 1 0 0", "-2.8973 2.8973", 0.735522, ".010517 -.004252 .061597",
          ".012516 .010027 .004815 -.000428 -.001196 -.000741", "0 0 0 0 0 .07", 0.045),
)  # fmt: skip


def _finger(side: str, quat: str) -> str:
    return f"""
    <body name="{side}_finger" pos="0 0 .0584" quat="{quat}" gravcomp="1">
      <inertial mass=".05" pos="0 0 .03" diaginertia="1e-5 1e-5 1e-5"/>
      <joint name="{side}_finger" type="slide" axis="0 1 0" range="0 {FINGER_RANGE}" armature=".1" damping="5"/>
      <geom class="robot" type="box" pos="0 .009 .030" size=".011 .009 .026" rgba=".12 .12 .14 1"
        friction="1.5 .05 .001"/>
    </body>"""


def _hand() -> str:
    return f"""
    <body name="hand" pos="0 0 .107" quat=".9238795 0 0 -.3826834" gravcomp="1">
      <inertial mass=".73" pos="0 0 .03" diaginertia=".001 .0025 .0017"/>
      <geom class="robot" type="box" pos="0 0 .03" size=".02 .09 .03" rgba=".93 .93 .95 1"/>
      <site name="grip" pos="0 0 .1034" size=".004" rgba="0 0 0 0"/>
      <camera name="wrist" pos=".085 0 .025" xyaxes="0 1 0 .94 0 .34" fovy="82"/>
      {_finger("left", "1 0 0 0")}{_finger("right", "0 0 0 1")}
    </body>"""


def _arm(inner: str) -> str:
    """The chain of links, the innermost carrying `inner`."""
    text = inner
    for number, link in reversed(list(enumerate(_LINKS, start=1))):
        rgba = ".32 .33 .36 1" if link.dark else ".90 .90 .92 1"
        text = f"""
    <body name="link{number}" pos="{link.pos}" quat="{link.quat}" gravcomp="1">
      <inertial mass="{link.mass}" pos="{link.com}" fullinertia="{link.inertia}"/>
      <joint name="joint{number}" axis="0 0 1" range="{link.joint_range}" armature=".1" damping="1"/>
      <geom class="ghost" type="capsule" fromto="{link.capsule}" size="{link.radius}" rgba="{rgba}"/>{text}
    </body>"""
    return f"""
    <body name="base" pos="-.5 0 0">
      <geom class="ghost" type="capsule" fromto="0 0 -.1 0 0 .14" size=".07" rgba=".90 .90 .92 1"/>{text}
    </body>"""


def _rgba(colour: str) -> str:
    return " ".join(str(part) for part in COLOURS[colour]) + " 1"


def _cube(name: str) -> str:
    size = f"{CUBE_HALF} {CUBE_HALF} {CUBE_HALF}"
    return f"""
    <body name="{name}" pos="0 0 {CUBE_HALF}"><freejoint name="{name}"/>
      <geom class="object" type="box" size="{size}" mass=".06" rgba="{_rgba(name.split()[0])}"/>
    </body>"""


def _pad(name: str) -> str:
    return f"""
    <body name="{name}" mocap="true">
      <geom class="ghost" type="box" size="{PAD_HALF} {PAD_HALF} .001" rgba="{_rgba(name.split()[0])}"/>
    </body>"""


def _bowl(name: str) -> str:
    """A floor and eight walls that lean outwards."""
    walls = ""
    for corner in range(8):
        angle = corner * pi / 4
        x, y = 0.055 * cos(angle), 0.055 * sin(angle)
        walls += f"""
      <geom class="object" type="box" size=".0035 .0255 .017" pos="{x:.6f} {y:.6f} .018" rgba=".96 .96 .97 1"
        euler="0 .42 {angle:.6f}"/>"""
    return f"""
    <body name="{name}" mocap="true">
      <geom class="object" type="cylinder" size=".049 .003" pos="0 0 .003" rgba=".80 .80 .82 1"/>{walls}
    </body>"""


def _strips() -> str:
    middle, half = (STRIP_Y[0] + STRIP_Y[1]) / 2, (STRIP_Y[1] - STRIP_Y[0]) / 2
    x, half_x = (TABLE_X[0] + TABLE_X[1]) / 2, (TABLE_X[1] - TABLE_X[0]) / 2
    return "".join(
        f'<geom class="ghost" type="box" size="{half_x} {half} .0006" pos="{x} {y} 0" rgba=".42 .40 .38 1"/>'
        for y in (-middle, middle)
    )


def _table() -> str:
    x, half_x = (TABLE_X[0] + TABLE_X[1]) / 2, (TABLE_X[1] - TABLE_X[0]) / 2
    return f"""
    <geom name="table" class="object" type="box" size="{half_x} {TABLE_Y} .05" pos="{x} 0 -.05" rgba=".66 .60 .52 1"/>
    <geom class="ghost" type="box" size="9 9 .01" pos="0 0 -.5" rgba=".22 .25 .30 1"/>{_strips()}"""


def scene_xml(cubes: tuple[str, ...], pads: tuple[str, ...], bowls: tuple[str, ...]) -> str:
    """MJCF of the whole scene. Object names are those of the instructions: "red cube", "yellow pad", "bowl"."""
    objects = "".join([*map(_cube, cubes), *map(_pad, pads), *map(_bowl, bowls)])
    servos = "".join(
        f'<position joint="joint{i}" kp="{kp}" kv="{kv}" forcerange="-{limit} {limit}"/>'
        for i, (kp, kv, limit) in enumerate(SERVOS, start=1)
    )
    return f"""
<mujoco model="tabletop">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast" cone="elliptic" impratio="10" iterations="20"
    ls_iterations="20"/>
  <statistic extent="1" center="0 0 .1"/>
  <visual>
    <headlight ambient=".45 .45 .45" diffuse=".45 .45 .45" specular="0 0 0"/>
    <map znear=".02" zfar="30"/>
  </visual>
  <default>
    <default class="ghost"><geom contype="0" conaffinity="0"/></default>
    <default class="robot"><geom contype="2" conaffinity="1"/></default>
    <default class="object">
      <geom contype="1" conaffinity="3" condim="4" friction="1 .05 .001" solref=".01 1" solimp=".95 .99 .001"/>
    </default>
  </default>
  <worldbody>
    <light pos=".4 -.3 2" dir="-.2 .15 -1" castshadow="false" diffuse=".45 .45 .45" specular="0 0 0"/>
    <camera name="front" pos=".56 0 .62" xyaxes="0 1 0 -.72 0 .694" fovy="40"/>{_table()}{_arm(_hand())}{objects}
  </worldbody>
  <tendon>
    <fixed name="fingers"><joint joint="left_finger" coef=".5"/><joint joint="right_finger" coef=".5"/></fixed>
  </tendon>
  <equality>
    <joint joint1="left_finger" joint2="right_finger" solimp=".95 .99 .001" solref=".005 1"/>
  </equality>
  <actuator>{servos}
    <position tendon="fingers" kp="800" kv="40" ctrlrange="0 {FINGER_RANGE}" forcerange="-60 60"/>
  </actuator>
</mujoco>"""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The compiled model and where things stand in its arrays. Shared by every world of a process: never changed."""

    model: mujoco.MjModel
    grip_site: int
    body: dict[str, int]  # object -> body id
    cube_qpos: dict[str, int]  # cube -> first of its seven numbers in qpos
    cube_qvel: dict[str, int]  # cube -> first of its six numbers in qvel
    mocap: dict[str, int]  # pad or bowl -> mocap id
    finger_qpos: int  # qpos of the left finger


@lru_cache(maxsize=16)
def load_scene(cubes: tuple[str, ...], pads: tuple[str, ...], bowls: tuple[str, ...]) -> Scene:
    """Compile the scene, once a process."""
    model = mujoco.MjModel.from_xml_string(scene_xml(cubes, pads, bowls))
    return Scene(
        model=model,
        grip_site=model.site("grip").id,
        body={name: model.body(name).id for name in (*cubes, *pads, *bowls)},
        cube_qpos={name: int(model.joint(name).qposadr[0]) for name in cubes},
        cube_qvel={name: int(model.joint(name).dofadr[0]) for name in cubes},
        mocap={name: int(model.body(name).mocapid[0]) for name in (*pads, *bowls)},
        finger_qpos=int(model.joint("left_finger").qposadr[0]),
    )


@lru_cache(maxsize=1)
def load_arm() -> mujoco.MjModel:
    """The arm and hand without objects, for inverse kinematics: its first seven positions are the joints'."""
    return load_scene((), (), ()).model
