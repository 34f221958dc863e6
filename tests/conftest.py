"""Settings of every test process, set before torch or mujoco can be imported, and the shared fixtures."""

import os
import sys
from pathlib import Path

import pytest

from robo_rl.errors import ConfigError
from sims.gl import ensure_gl

# Two contended threads make small networks many times slower than one. Nothing may ask a hub for anything.
os.environ.update(
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="passive",
    MKL_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
)

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    """Choose the OpenGL back-end once: the workers of pytest-xdist inherit it from this environment."""
    try:
        ensure_gl()
    except ConfigError as error:
        print(f"tests that draw will fail: {error}", file=sys.stderr)


def pytest_collection_finish(session: pytest.Session) -> None:
    """All test modules are imported by now. A torch that is not loaded stays so: most tests need only numpy."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """An empty folder for a run to write into."""
    folder = tmp_path / "runs" / "test"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Recordings of a real robot that lie beside the checkout, where there are any."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"{SHARED_DATA}: no recordings beside this checkout")
    return SHARED_DATA
