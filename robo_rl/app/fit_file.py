"""`robo-rl reward fit` on a judge file: a YAML file that describes one judge, instead of a whole experiment.

type: causal
name: progress
backbone: {type: compact}
objectives: {progress: {}}
fit: {steps: 600, trunk_steps: 300}
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.app.config import read_tree
from robo_rl.app.fitters import FitJob, fitter
from robo_rl.errors import ConfigError, DataError

Report = Callable[[int, int], None]
LABELS = {"directions": "direction", "subtasks": "subtasks", "outcomes": "success", "preferences": "preferences"}
"""Options of the command -> arguments of `robo_rl.data.labels.read_labels`."""


def is_judge_file(path: Path) -> bool:
    """Whether a YAML file describes a judge (it has `type:` at the top) and not an experiment."""
    return path.suffix in (".yaml", ".yml") and path.exists() and "type" in read_tree(path)


def command(options: argparse.Namespace, display: Any, report: Report) -> int:
    """The command on a judge file. `options` are those of `robo-rl reward fit`."""
    from robo_rl.app import steps

    if options.policy is not None:
        raise ConfigError("reward fit: --policy starts the judge of an experiment file, not that of a judge file")
    steps.single_thread()
    files = {name: path for name in LABELS if (path := getattr(options, name)) is not None}
    judge = fit_file(
        options.config,
        options.overrides,
        options.data,
        options.out,
        report=report,
        previous=options.judge,
        labels=files,
        chosen=options.episodes,
    )
    display.close()
    print(f"judge: {options.out} ({judge.model_id})")
    return 0


def fit_file(
    path: Path,
    overrides: Sequence[str],
    data: Sequence[Path],
    out: Path,
    *,
    report: Report,
    previous: Path | None = None,
    labels: Mapping[str, Path] | None = None,
    chosen: str | None = None,
) -> Any:
    """Fit the judge that a file describes to datasets and save it; returns it.

    While it runs, `<out>.partial` keeps its checkpoints. The same command goes on from them, one with another
    configuration or other data starts afresh. `labels`: files by what they hold, see `LABELS`.
    `chosen`: numbers of the episodes to fit to, as "0,3-5"; None: all.

    Raises ConfigError for a wrong file, DataError for data that teaches nothing.
    """
    from robo_rl.data import concat, read_episodes

    if out.exists():
        raise DataError(f"{out}: already exists; choose another --out or remove it")
    tree, files = read_tree(path, overrides), labels or {}
    fit = fitter(tree, str(path))
    episodes = concat([read_episodes(folder) for folder in data])
    if len(data) > 1 and files:
        raise ConfigError(f"reward fit: label files belong to one dataset, but {len(data)} were given with --data")
    pairs = {"preferences": files["preferences"]} if tree["type"] == "preference" and "preferences" in files else {}
    given = human_labels(episodes, {name: file for name, file in files.items() if name not in pairs})
    if chosen is not None:
        numbers = np.array(episode_numbers(chosen, len(episodes)))
        episodes, given = episodes.select(numbers), None if given is None else given.select(numbers)
        if pairs:
            raise ConfigError("reward fit: --episodes does not go with comparisons; leave pairs out of their file")
    mark = json.dumps(
        {"file": tree, "previous": str(previous), "data": episodes.fingerprint, "labels": _hashes(files)},
        sort_keys=True,
    )
    workdir = _workdir(out, mark)
    judge = fit(FitJob(tree, episodes, given, files, previous, workdir, report))
    judge.save(out)
    shutil.rmtree(workdir)
    return judge


def episode_numbers(text: str, count: int) -> list[int]:
    """ "0,3-5" -> [0, 3, 4, 5]. Raises ConfigError for what is no number or no episode."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"--episodes: {part!r} is neither a number nor a range; write it as 0,3-5")
        numbers += range(int(first), int(last or first) + 1)
    beyond = [number for number in numbers if number >= count]
    if beyond:
        raise ConfigError(f"--episodes: there is no episode {beyond[0]}; the data has {count}, from 0")
    return sorted(set(numbers))


def human_labels(episodes: Any, files: Mapping[str, Path]) -> Any:
    """`HumanLabels` of label files (docs/data_format.md), None without any. Raises DataError naming file and row."""
    from reward_models.targets import HumanLabels
    from robo_rl.data.labels import read_labels

    if not files:
        return None
    read = read_labels(episodes, **{LABELS[name]: path for name, path in files.items()})
    better = []
    for preference in read.preferences:
        parts = {
            "a": (preference.a, *(preference.frames_a or (0, -1))),
            "b": (preference.b, *(preference.frames_b or (0, -1))),
        }
        if preference.preferred in parts:  # a tie teaches nothing about which is better
            other = "b" if preference.preferred == "a" else "a"
            better.append((parts[preference.preferred], parts[other]))
    return HumanLabels(
        direction=read.direction,
        boundaries={episode: subtasks.frames for episode, subtasks in read.subtasks.items()},
        success=read.success,
        preferences=better,
    )


def _hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Content of the label files: a change of one starts the fit afresh. A folder's files are listed by size."""
    made = {}
    for name, path in files.items():
        inside = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        digest = hashlib.sha256()
        for file in inside:
            digest.update(file.read_bytes() if file.exists() else b"")
        made[name] = digest.hexdigest()
    return made


def _workdir(out: Path, mark: str) -> Path:
    """`<out>.partial`, emptied when it belongs to another fit."""
    folder = out.with_name(out.name + ".partial")
    file = folder / "inputs.json"
    if not file.exists() or file.read_text() != mark:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file.write_text(mark)
    return folder
