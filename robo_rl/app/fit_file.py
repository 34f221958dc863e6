"""`robo-rl reward fit` on a judge file: a YAML file that describes one judge, instead of a whole experiment.

type: causal
name: progress
backbone: {type: compact}
objectives: {progress: {}}
fit: {steps: 600, trunk_steps: 300}
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robo_rl.app.config import read_tree
from robo_rl.errors import ConfigError, DataError

Report = Callable[[int, int], None]


def is_judge_file(path: Path) -> bool:
    """Whether a YAML file describes a judge (it has `type:` at the top) and not an experiment."""
    return path.suffix in (".yaml", ".yml") and path.exists() and "type" in read_tree(path)


def command(options: argparse.Namespace, display: Any, report: Report) -> int:
    """The command on a judge file. `options` are those of `robo-rl reward fit`."""
    from robo_rl.app import steps

    if options.policy is not None:
        raise ConfigError("reward fit: --policy starts the judge of an experiment file, not that of a judge file")
    steps.single_thread()
    judge = fit_file(
        options.config, options.overrides, options.data, options.out, report=report, previous=options.judge
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
    labels: Any = None,
) -> Any:
    """Fit the judge that a file describes to datasets and save it; returns it.

    While it runs, `<out>.partial` keeps its checkpoints. The same command goes on from them, one with another
    configuration or other data starts afresh. `labels`: `reward_models.targets.HumanLabels`, or None.

    Raises ConfigError for a wrong file, DataError for data that teaches nothing.
    """
    from reward_models.causal_fit import fit_causal
    from reward_models.judge import CausalJudge
    from robo_rl.data import concat, read_episodes

    if out.exists():
        raise DataError(f"{out}: already exists; choose another --out or remove it")
    tree = read_tree(path, overrides)
    model, settings = judge_settings(tree, str(path))
    seed = int(tree.get("seed", 0))
    episodes = concat([read_episodes(folder) for folder in data])
    judge = CausalJudge(model, seed=seed) if previous is None else CausalJudge.load(previous)
    mark = json.dumps(
        {"file": tree, "previous": str(previous), "data": episodes.fingerprint, "labels": str(labels)},
        sort_keys=True,
    )
    workdir = _workdir(out, mark)
    fit_causal(
        judge,
        episodes,
        settings,
        seed=seed,
        workdir=workdir,
        labels=labels,
        progress_callback=report,
        warm_start=previous is not None,
    )
    judge.save(out)
    shutil.rmtree(workdir)
    return judge


def judge_settings(tree: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """(CausalConfig, CausalFitConfig) of a judge file. Raises ConfigError naming the file."""
    from reward_models.causal_fit import CausalFitConfig
    from reward_models.judge import CausalConfig
    from robo_rl.app.build import options

    if tree.get("type") != "causal":
        raise ConfigError(f"{where}: only judges of `type: causal` are fitted, this is {tree.get('type')!r}")
    values = {key: value for key, value in tree.items() if key not in ("type", "fit", "seed")}
    try:
        return options(CausalConfig, values, "judge"), options(CausalFitConfig, tree.get("fit") or {}, "judge.fit")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _workdir(out: Path, mark: str) -> Path:
    """`<out>.partial`, emptied when it belongs to another fit."""
    folder = out.with_name(out.name + ".partial")
    file = folder / "inputs.json"
    if not file.exists() or file.read_text() != mark:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        file.write_text(mark)
    return folder
