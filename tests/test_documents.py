"""The documents say what the code does: commands, keys and defaults, links, make targets."""

import argparse
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from robo_rl.app.cli import _parser
from robo_rl.app.config import RunConfig, dump_config, parse_config, read_tree
from robo_rl.app.fitters import fitter
from robo_rl.data import read_episodes, write_episodes, write_reward_table
from robo_rl.types import Outcome, RewardSignal, Trajectory

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COMMAND_LINES = re.findall(r"^robo-rl .+$", (ROOT / "README.md").read_text(), re.MULTILINE)


def leaves(tree: dict, prefix: str = "") -> dict[str, object]:
    """Dotted key -> default. Sections are followed; free mappings (`options`) are values."""
    found: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def test_every_key_of_an_experiment_is_described_with_its_default():
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]*)` \|", (ROOT / "docs" / "config.md").read_text(), re.MULTILINE)
    described = {key: yaml.safe_load(value) for key, value in rows}
    actual = {
        key: value for key, value in leaves(dump_config(RunConfig())).items() if not key.startswith("update.trainer")
    }
    wrong = {
        key: f"docs/config.md says {described.get(key, 'nothing')!r}, the code {actual.get(key, 'has no such key')!r}"
        for key in described.keys() | actual.keys()
        if key not in described or key not in actual or described[key] != actual[key]
    }
    assert not wrong, "\n".join(f"{key}: {text}" for key, text in sorted(wrong.items()))


def test_every_column_of_a_dataset_and_of_a_reward_table_is_described(tmp_path):
    episode = Trajectory(
        episode_id="e",
        instruction="wave",
        images={"front": np.zeros((3, 16, 16, 3), np.uint8)},
        state=np.zeros((3, 2), np.float32),
        actions=np.zeros((2, 1), np.float32),
        controller=np.zeros(2, np.int8),
        outcome=Outcome.SUCCESS,
        fps=10.0,
        true_progress=np.zeros(3, np.float32),
    )
    write_episodes(tmp_path / "data", [episode])
    (frames,) = (tmp_path / "data" / "data").rglob("*.parquet")
    episodes = read_episodes(tmp_path / "data")
    signal = RewardSignal(
        episode_id="e",
        model_id="judge@1",
        progress=np.zeros(3, np.float32),
        success_prob=np.zeros(3, np.float32),
        tri_state=np.zeros((2, 3), np.float32),
        uncertainty=np.zeros(3, np.float32),
    )
    write_reward_table(tmp_path / "scores.parquet", episodes, [signal], judge={"id": "judge@1"})
    facts = tmp_path / "data" / "meta" / "robo_episodes.parquet"
    columns = {name for path in (frames, facts, tmp_path / "scores.parquet") for name in pq.read_schema(path).names}
    rows = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "docs" / "data_format.md").read_text(), re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert columns <= described


def test_imitation_and_update_are_trained_with_the_same_keys():
    # docs/config.md describes them once
    types = {field.name: field.type for field in dataclasses.fields(RunConfig)}
    assert types["imitation"] == "TrainerConfig"
    trained = dump_config(RunConfig())
    assert trained["imitation"].keys() == trained["update"]["trainer"].keys()


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_the_commands_of_the_readme_are_understood(line):
    options, rest = _parser().parse_known_args(line.split()[1:])
    config = getattr(options, "config", None)
    assert config is None or (ROOT / config).is_file()
    if rest:  # changes of a file's values: the file must know them
        assert options.takes_overrides
        tree = read_tree(ROOT / config, rest)
        fitter(tree, line) if "type" in tree else parse_config(tree, line)


def commands(parser: argparse.ArgumentParser, prefix: str = "") -> set[str]:
    """Names of all commands that a parser offers, those of a group with the group's name."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        return {prefix.strip()}
    children = [item for group in groups for item in group.choices.items()]
    return {name for key, child in children for name in commands(child, f"{prefix} {key}")}


def test_every_command_has_an_example_in_the_readme():
    shown = {" ".join(re.findall(r"^robo-rl (reward \w+|\w+)", line)) for line in COMMAND_LINES}
    assert shown == commands(_parser())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(path):
    text = path.read_text()
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if not target.startswith("http")]
    for target in linked:
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
    named = re.findall(
        r"`((?:robo_rl|reward_models|sims|configs|docs|tests|scripts)/[\w/.]+\.(?:py|md|yaml|sh))`", text
    )
    for target in named:
        assert (ROOT / target).exists(), f"{path.name} names {target}"


def test_make_targets_that_documents_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        named = re.findall(r"`make ([a-z-]+)", path.read_text())
        assert set(named) <= targets, f"{path.name} names make targets that do not exist"


def test_every_key_of_a_judge_file_is_described_with_its_default():
    from reward_models.backbone import VlmConfig
    from reward_models.batches import ClipConfig
    from reward_models.causal_fit import CausalFitConfig
    from reward_models.judge import OBJECTIVES, CausalConfig
    from reward_models.network import CompactJudgeConfig

    kinds = {"": CausalConfig, "fit.": CausalFitConfig, "fit.clips.": ClipConfig}
    kinds |= {f"objectives.{name}.": kind for name, (kind, _) in OBJECTIVES.items()}
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]*)` \| \S", (ROOT / "docs" / "judges.md").read_text(), re.MULTILINE)
    described = {(key, value) for key, value in rows}
    missing = []
    for prefix, kind in [*kinds.items(), ("backbone.", VlmConfig), ("backbone.", CompactJudgeConfig)]:
        for entry in dataclasses.fields(kind):
            default = entry.default
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                default = "required"
            elif dataclasses.is_dataclass(entry.default_factory):
                continue
            shown = "required" if default == "required" else json.dumps(default)
            if (prefix + entry.name, shown) not in described:
                missing.append(f"docs/judges.md: `{prefix}{entry.name}` with default `{shown}`")
    assert not missing, "\n".join(missing)
