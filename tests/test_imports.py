"""The architecture as a test: which room may import which, how heavy an import is, how long a file may be.

Imports are read from the syntax tree, so those inside functions and under TYPE_CHECKING count too.
"""

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("robo_rl", "reward_models", "sims", "real_robot")
HEAVY = ("torch", "lerobot", "mujoco", "transformers", "stable_baselines3", "pandas", "pyarrow", "av", "scipy")


@dataclass(frozen=True)
class Room:
    """What the modules below a prefix may import; `third_party` None means anything."""

    prefix: str
    project: tuple[str, ...]
    third_party: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()


CONTRACT = ("robo_rl.types", "robo_rl.errors")
SHARED = (*CONTRACT, "robo_rl.data", "robo_rl.nets", "robo_rl.credit", "robo_rl.statistics", "robo_rl.options")
# The first prefix that fits decides.
ROOMS = (
    Room("robo_rl.errors", (), ()),
    Room("robo_rl.types", ("robo_rl.errors",), ("numpy",)),
    Room("robo_rl.credit", (*CONTRACT, "robo_rl.credit"), ("numpy",)),
    Room("robo_rl.options", ("robo_rl.errors",), ()),
    Room("robo_rl.statistics", CONTRACT, ("numpy", "scipy")),
    Room("robo_rl.data", (*CONTRACT, "robo_rl.data", "robo_rl.credit.kinds")),
    Room("robo_rl.nets", CONTRACT, ("numpy", "torch")),
    Room("robo_rl.app", PACKAGES),
    Room("robo_rl", ("robo_rl",), never=("robo_rl.app",)),
    Room("reward_models", ("reward_models", *SHARED)),
    Room("sims", ("sims", *SHARED)),
    Room("real_robot", ("real_robot", *SHARED)),
)


def below(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything a module imports, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*base, node.module] if node.module else base)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
                yield node.lineno, str(node.args[0].value)


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports that the module's room does not allow."""
    room = next(room for room in ROOMS if below(module, (room.prefix,)))
    found = []
    for line, name in imported(source, module, is_package):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top in PACKAGES:
            allowed = below(name, room.project) and not below(name, room.never)
        else:
            allowed = room.third_party is None or top in room.third_party
        if not allowed:
            found.append(f"{module}:{line} imports {name}")
    return found


def project_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_arrows_of_the_architecture():
    files = project_files()
    assert len(files) > 40  # the walk found the tree
    found = [
        text
        for path in files
        for text in violations(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "module", "named"),
    [
        ("def f():\n    from sims.gl import ensure_gl", "robo_rl.trainer", "sims.gl.ensure_gl"),
        ("if TYPE_CHECKING:\n    import reward_models.fit", "sims.tabletop", "reward_models.fit"),
        ("from robo_rl import app", "robo_rl.trainer", "robo_rl.app"),
        ("from ..app import build", "robo_rl.report.render", "robo_rl.app.build"),
        ("import importlib\nimportlib.import_module('robo_rl.trainer')", "reward_models.fit", "robo_rl.trainer"),
        ("import torch", "robo_rl.credit.td", "torch"),
        ("import scipy.stats", "robo_rl.types", "scipy.stats"),
        ("from robo_rl.credit import td", "robo_rl.data.windows", "robo_rl.credit.td"),
    ],
)
def test_a_forbidden_import_is_found(source, module, named):
    (text,) = violations(source, module)
    assert text.endswith(f"imports {named}")


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from .kinds import WindowKind\nimport numpy as np", "robo_rl.credit", True),
        ("from robo_rl.credit.kinds import WindowKind", "robo_rl.data.windows", False),
        ("def f():\n    from sims.gl import ensure_gl\n    import reward_models.fit", "robo_rl.app.build", False),
        ("import torch\nfrom robo_rl.data import read_episodes", "reward_models.fit", False),
    ],
)
def test_an_allowed_import_passes(source, module, is_package):
    assert violations(source, module, is_package) == []


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["robo_rl.types", "robo_rl.errors", "robo_rl.credit.habc", "robo_rl.app.cli"])
def test_light_modules_load_nothing_heavy(module):
    assert loaded_by(f"import {module}") == set()


def test_heavy_imports_would_be_seen():
    assert loaded_by("import scipy") == {"scipy"}


def test_help_answers_at_once():
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "robo_rl.app.cli", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
        )
        seconds.append(time.perf_counter() - started)
    assert "run" in done.stdout
    # The best of three: the promise is one second on an idle machine, twice that while others use it.
    assert min(seconds) < 2.0, f"robo-rl --help took {min(seconds):.2f} s"


def test_files_and_functions_stay_short():
    too_long = []
    for path in [*project_files(), *sorted((ROOT / "benchmarks").rglob("*.py"))]:
        source = path.read_text()
        where = path.relative_to(ROOT)
        lines = source.count("\n")
        if lines >= 400:
            too_long.append(f"{where}: {lines} lines; a file stays under 400")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length >= 60:
                    too_long.append(f"{where}:{node.lineno} {node.name}: {length} lines; a function stays under 60")
    assert not too_long, "\n".join(too_long)
