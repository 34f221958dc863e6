"""`robo-rl run`: bring a run folder up to date, then say what came out."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from robo_rl.app.build import check_parts
from robo_rl.app.config import RunConfig, dump_config
from robo_rl.app.pipeline import Plan, plan
from robo_rl.app.results import collect_results
from robo_rl.loops.progress import Display, spoken
from robo_rl.loops.stages import RunRecord, run_stages
from robo_rl.processes import preload
from robo_rl.report.model import Provenance, save_report_data
from robo_rl.report.render import write_report
from sims.gl import ensure_gl

PACKAGES = ("torch", "lerobot", "mujoco", "gymnasium", "transformers", "stable-baselines3", "numpy", "robo-rl")


def run(config: RunConfig, out: Path) -> Path:
    """Run what is missing of an experiment; returns the report's path. The verdict is printed last."""
    started = time.monotonic()
    check_parts(config)
    warm_up()
    out.mkdir(parents=True, exist_ok=True)
    display = Display()
    steps = plan(config, out)
    try:
        record = run_stages(out, steps.stages, slots=config.processes, display=display)
    finally:
        display.close()
    return _conclude(config, out, steps, record, time.monotonic() - started)


def warm_up() -> None:
    """Let the process server import what every stage needs, once."""
    ensure_gl()
    preload("robo_rl.app.steps", "reward_models.fit", "reward_models.audit", "robo_rl.report.render")


def _conclude(config: RunConfig, out: Path, steps: Plan, record: RunRecord, seconds: float) -> Path:
    before = _read(out / "run.json")
    wall = max(seconds, before.get("seconds", {}).get("wall", 0.0) if len(record.skipped) else seconds)
    facts: dict[str, Any] = {
        "name": config.name,
        "config": dump_config(config),
        "versions": _versions(),
        "commit": _commit(),
        "seed": config.seed,
        "machine": _machine(),
        "seconds": {**record.seconds, "all_stages": round(sum(record.seconds.values()), 1), "wall": round(wall, 1)},
        "peak_rss_gb": round(max(record.peak_rss_gb, before.get("peak_rss_gb", 0.0) if record.skipped else 0.0), 2),
        "fingerprints": record.fingerprints,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    provenance = Provenance(
        config=yaml.safe_dump(facts["config"], sort_keys=False),
        versions=facts["versions"],
        commit=facts["commit"],
        seeds={"run": config.seed, "evaluation": config.evaluation.seed},
        machine=facts["machine"],
        seconds_per_stage=record.seconds,
        peak_rss_gb=facts["peak_rss_gb"],
        fingerprints=record.fingerprints,
    )
    results = collect_results(config, out, steps, provenance)
    save_report_data(out / "report_data", results.report)
    page = write_report(out)
    _write(out / "run.json", facts)
    kept = {key: facts[key] for key in ("seconds", "peak_rss_gb", "versions", "commit", "seed")}
    _write(out / "summary.json", results.summary | kept)
    for sentence in (*results.report.details, "", results.report.headline):
        print(sentence)
    print(f"{spoken(wall)}, peak memory {facts['peak_rss_gb']:.1f} GB")
    print(f"report: {page}")
    sys.stdout.flush()
    return page


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(content, indent=1, default=str, allow_nan=False) + "\n")
    os.replace(temporary, path)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
