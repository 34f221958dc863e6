"""docs/doctor.md and the code name the same findings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_finding_is_described_and_every_described_one_is_made():
    sources = [path.read_text() for path in (ROOT / "robo_rl" / "data").glob("doctor*.py")]
    # `found("name", ...)`, or one of two names chosen before
    made = {name for text in sources for name in re.findall(r'found\(\s*"([a-z-]+)"', text)} | {
        "gripper-sign",
        "flipped-axis",
    }
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", (ROOT / "docs" / "doctor.md").read_text(), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert made == described
