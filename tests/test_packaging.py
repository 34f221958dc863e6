"""What a user downloads: the wheel, the source archive, the experiment files, and the text of the repository."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from robo_rl.app.config import load_config
from robo_rl.errors import ConfigError

ROOT = Path(__file__).parents[1]
PACKAGES = ("robo_rl", "reward_models", "sims", "real_robot")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def git_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        pytest.skip("not a git checkout: nothing says which files belong to the repository")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return folder


def test_the_wheel_holds_the_four_packages_and_nothing_else(archives):
    (path,) = archives.glob("*.whl")
    assert path.name == f"robo_rl-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (entry_points,) = (wheel.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert "robo-rl = robo_rl.app.cli:main" in entry_points
    # Every source file and every static file of the report is in it, and only those.
    kept = (".py", ".html", ".css", ".js", ".typed")
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert not [name for name in expected if not name.endswith(kept)]


def test_the_report_can_find_its_static_files_in_the_wheel(archives):
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        static = {name.rsplit("/", 1)[1] for name in wheel.namelist() if name.startswith("robo_rl/report/static/")}
    assert {"page.html", "style.css"} <= static


def test_the_source_archive_can_be_built_from_and_holds_no_data(archives):
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        sizes = {name.name.split("/", 1)[1]: name.size for name in archive.getmembers() if "/" in name.name}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "robo_rl/types.py", "tests/test_packaging.py"):
        assert needed in sizes
    assert not [name for name in sizes if name.startswith((".venv", "runs/", "uv.lock"))]
    assert sum(sizes.values()) < 10e6


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_experiment_file_can_be_read(path):
    assert load_config(path, []).rounds >= 1
    # A mistyped key is found in every one of them, and the nearest right key is named.
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        load_config(path, ["--rouns=3"])


def test_the_demo_has_its_experiment_file():
    makefile = (ROOT / "Makefile").read_text()
    (named,) = re.findall(r"robo-rl run (\S+) --out=runs/demo", makefile)
    assert (ROOT / named).is_file()


def test_every_third_party_import_is_a_declared_dependency():
    declared = PROJECT["dependencies"] + [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    names = {canonical(re.split(r"[\[<>=!~; ]", line)[0]) for line in declared}
    providers = packages_distributions()
    missing = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                tops = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                tops = [node.module.split(".")[0]]
            else:
                continue
            for top in set(tops) - set(sys.stdlib_module_names) - set(PACKAGES):
                candidates = {canonical(name) for name in providers.get(top, [top])}
                if not candidates & names:
                    missing.add(f"{path.relative_to(ROOT)} imports {top}, which pyproject.toml does not ask for")
    assert not missing, "\n".join(sorted(missing))


def test_the_constraints_pin_exact_versions():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+]+", line)]
    assert lines == sorted(lines)


# Written in pieces, so that this file does not match itself.
UNWANTED = {
    "a path of one machine": re.compile("/(work|tmp|root|home)" + r"/[A-Za-z.]"),
    "a package index": re.compile(
        "|".join([r"index[-_]" + r"url", r"//\S+/sim" + "ple", r"py" + r"pi\.org", "pythonhos" + "ted"])
    ),
}


@pytest.mark.parametrize("what", UNWANTED)
def test_no_tracked_file_names(what):
    found = []
    for path in git_files():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{n}: {what}" for n, line in enumerate(lines, 1) if UNWANTED[what].search(line)
        ]
    assert not found, "\n".join(found)


def test_what_is_unwanted_would_be_found():
    assert UNWANTED["a path of one machine"].search("open('/" + "tmp/x')")
    assert UNWANTED["a package index"].search("--extra-index-" + "url=x")


def test_no_lock_file_is_tracked():
    assert not {path.name for path in git_files()} & {"uv.lock", "poetry.lock"}
