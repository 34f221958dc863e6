"""The choice of an OpenGL back-end: who decides, in which order, and what is said when nothing draws."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robo_rl.errors import ConfigError
from sims import gl

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def bare(monkeypatch):
    """An environment in which nothing has been chosen and there is no display."""
    for name in ("MUJOCO_GL", "LP_NUM_THREADS", gl.VERDICT, *DISPLAYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    # What ensure_gl writes must not outlive the test: monkeypatch restores only names it has touched.
    for name in ("MUJOCO_GL", "LP_NUM_THREADS", gl.VERDICT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def asked(answers):
    """A probe that answers from a dict, and the list of what it was asked."""
    calls = []

    def probe(name):
        calls.append(name)
        return answers.get(name, False)

    return probe, calls


def test_a_choice_already_made_is_kept_without_a_probe(bare):
    bare.setenv("MUJOCO_GL", "osmesa")
    probe, calls = asked({"egl": True})
    assert gl.ensure_gl(probe) == "osmesa"
    assert calls == []


@pytest.mark.parametrize("display", DISPLAYS)
def test_a_display_leaves_the_choice_to_mujoco(bare, display):
    bare.setenv(display, ":0")
    probe, calls = asked({"egl": True})
    assert gl.ensure_gl(probe) == ""
    assert calls == []
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("answers", "chosen", "tried"),
    [
        ({"egl": True, "osmesa": True}, "egl", ["egl"]),
        ({"osmesa": True}, "osmesa", ["egl", "osmesa"]),
        ({"glfw": True}, "glfw", ["egl", "osmesa", "glfw"]),
    ],
)
def test_the_first_that_draws_is_taken_and_remembered(bare, answers, chosen, tried):
    probe, calls = asked(answers)
    assert gl.ensure_gl(probe) == chosen
    assert os.environ["MUJOCO_GL"] == chosen
    assert gl.ensure_gl(probe) == chosen  # from the environment, as in a worker process
    assert calls == tried


def test_when_none_draws_the_package_is_named_and_nothing_is_probed_again(bare):
    probe, calls = asked({})
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"libegl1 libgl1-mesa-dri.*libosmesa6"):
            gl.ensure_gl(probe)
    assert calls == ["egl", "osmesa", "glfw"]
    assert "MUJOCO_GL" not in os.environ


def test_mesa_draws_in_the_calling_thread_unless_told_otherwise(bare):
    gl.ensure_gl(lambda name: True)
    assert os.environ["LP_NUM_THREADS"] == "0"
    bare.setenv("LP_NUM_THREADS", "3")
    gl.ensure_gl(lambda name: True)
    assert os.environ["LP_NUM_THREADS"] == "3"


def run_python(code, **env):
    kept = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", gl.VERDICT, *DISPLAYS)}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | env, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_probe_draws_and_a_back_end_that_does_not_exist_is_seen():
    assert gl.draws(os.environ.get("MUJOCO_GL") or "egl")
    assert not gl.draws("no-such-back-end")


def test_drawing_works_where_mujoco_was_imported_before_the_choice():
    code = (
        "import mujoco\nfrom sims.tabletop import TabletopConfig\n"
        "print(TabletopConfig(num_cubes=2).__call__().observe().images['front'].std() > 10)"
    )
    done = run_python(code)
    assert done.stdout.strip() == "True", done.stderr


def test_a_wrong_back_end_is_one_clear_line():
    done = run_python("import sims.tabletop", MUJOCO_GL="no-such-back-end")
    assert "ConfigError: mujoco cannot be imported with MUJOCO_GL='no-such-back-end'" in done.stderr


def test_without_a_back_end_the_physics_runs_and_drawing_says_what_to_install():
    code = (
        "from sims.tabletop import TabletopConfig\nworld = TabletopConfig(num_cubes=2)()\n"
        "print(world.advance([0, 0, 0, 1]).terminated)\nworld.observe()"
    )
    done = run_python(code, **{gl.VERDICT: "none"})
    assert done.stdout.strip() == "False"
    assert "ConfigError: no OpenGL back-end can draw" in done.stderr
