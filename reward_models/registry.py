"""Every judge by its type: the word in a judge folder's `config.json`, or in a YAML file that describes one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import yaml

from robo_rl.errors import ConfigError, DataError
from robo_rl.types import RewardModel

TYPES = {
    "compact_judge": "reward_models.compact:CompactJudge",
    "causal": "reward_models.judge:CausalJudge",
    "similarity": "reward_models.similarity:SimilarityJudge",
    "gvl": "reward_models.gvl:GVLJudge",
    "rating_vlm": "reward_models.rating_vlm:RatingVLMJudge",
    "topreward": "reward_models.topreward:TOPRewardJudge",
    "preference": "reward_models.preference:PreferenceJudge",
    "ensemble": "reward_models.ensemble:EnsembleJudge",
    "lerobot_robometer": "reward_models.lerobot_robometer:RobometerJudge",
    "lerobot_topreward": "reward_models.topreward:LeRobotTOPRewardJudge",
    "lerobot_sarm": "reward_models.lerobot_sarm:SARMJudge",
    "lerobot_classifier": "reward_models.lerobot_classifier:ClassifierJudge",
}


@runtime_checkable
class Judge(RewardModel, Protocol):
    """A reward model that knows what it is made of and can be kept in a folder."""

    def provenance(self) -> dict[str, str]:
        """What besides `model_id` decides its scores: revision, prompt, sampling of frames."""
        ...

    def save(self, folder: Path | str) -> None:
        """Write `config.json` (with `type`) and what else `load` needs; atomically."""
        ...

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Open what `save` wrote. Raises DataError for a folder that is missing, damaged or of another type."""
        ...


def judge_class(kind: str) -> Any:
    """The class of a type. Raises ConfigError for an unknown one."""
    if kind not in TYPES:
        raise ConfigError(f"judge type {kind!r} is not known; there are: {', '.join(sorted(TYPES))}")
    module, name = TYPES[kind].split(":")
    return getattr(importlib.import_module(module), name)


def load_judge(path: Path | str) -> Any:
    """A judge from its folder, or from a YAML file: `type:` and the options of that type's `from_config`.

    Raises DataError or ConfigError with what is wrong and where.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        return from_file(path)
    file = path / "config.json"
    try:
        facts = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: not a judge: neither a YAML file nor a folder with config.json") from None
    except ValueError as error:
        raise DataError(f"{file}: cannot be read ({error})") from None
    kind = facts.get("type") if isinstance(facts, dict) else None
    if kind not in TYPES:
        raise DataError(f"{path}: not a judge folder, config.json says type {kind!r}; known: {', '.join(TYPES)}")
    return judge_class(str(kind)).load(path)


def from_file(path: Path) -> Any:
    """A judge from a YAML description; zero-shot and pretrained ones need no folder of their own."""
    try:
        facts = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(facts, Mapping) or "type" not in facts:
        raise ConfigError(f"{path}: a judge is described by `type:` and its options; known: {', '.join(sorted(TYPES))}")
    kind = judge_class(str(facts["type"]))
    if not hasattr(kind, "from_config"):
        raise ConfigError(f"{path}: a {facts['type']} judge is fitted, not described; give its folder")
    try:
        return kind.from_config({key: value for key, value in facts.items() if key != "type"})
    except TypeError as error:
        raise ConfigError(f"{path}: {error}") from None
