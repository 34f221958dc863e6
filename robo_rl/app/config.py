"""One YAML file is one complete experiment. Unknown keys are errors that name the nearest right one."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import draccus
import yaml

from robo_rl.critics import CriticConfig
from robo_rl.errors import ConfigError
from robo_rl.trainer import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """Which simulator; `options` are the fields of that simulator's own configuration."""

    type: str = "tabletop"  # tabletop | metaworld
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Demonstrations by the simulator's scripted expert."""

    episodes: int = 100
    disturbance: float = 0.3  # standard deviation of the motion noise added to executed actions; labels stay clean
    horizon: int = 0  # longest demonstration in steps; 0: as long as an episode of the simulator
    expert: dict[str, Any] = field(default_factory=dict)  # options of the expert: speed, jitter, imperfections


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Sizes of CompactVLA; see `CompactVLAConfig`."""

    type: str = "compact_vla"
    chunk_size: int = 8
    n_action_steps: int = 4
    flow_draws: int = 6
    regression_weight: float = 0.5
    denoise_steps: int = 5
    channels: int = 48


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """The policy's own experience, gathered every round."""

    episodes: int = 300
    noise_scale: float = 1.0  # of the flow's starting noise; above 1 explores
    bold_share: float = 0.5  # share of episodes that explore


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """The reward model and how it is fitted; fields of `CompactJudgeConfig` and `FitConfig`."""

    type: str = "compact"
    model: dict[str, Any] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)
    trunk: str = "policy"  # policy: start from the policy's convolutional trunk, frozen | scratch
    held_out: float = 0.2  # share of rollouts kept for the audit and the calibration


@dataclass(frozen=True, kw_only=True)
class CreditSettings:
    """How judged experience becomes sample weights (METHODS 1, 3.4, 7)."""

    type: str = "habc"  # habc | bc | filtered_bc | awr | ra_bc | arm
    features: str = "judge"  # judge | policy: what the critics see
    viability: str = "critic"  # critic | td_success: the judge's own success head
    hop: int = 8  # frames between the two states of an advantage; the paper's one-step is 1
    tau_v: float = 1.0
    tau_e: float = 1.0
    clip_logit: float = 8.0
    smooth: int = 1  # moving average over critic outputs within an episode, in frames
    demo_weight: str = "one"  # one (paper) | gate: imperfect demonstrations are gated too
    failure_weight: str = "zero"  # zero (paper) | positive: good parts of failed episodes
    critic: CriticConfig = field(default_factory=CriticConfig)
    folds: int = 3
    awr_beta: float = 0.1


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """One improvement step of a policy on demonstrations and judged rollouts."""

    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    demo_share: float = 0.4  # of every batch
    # Steps with all weights 1. The paper warms up for 500 while its critics learn; here they are fitted first.
    warmup_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Fixed held-out initial states, the same for every policy."""

    episodes: int = 300
    seed: int = 1_000_003


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """What the report shows."""

    title: str = "robo_rl"
    episodes_per_group: int = 3
    frame_size: int = 160


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole experiment: `robo-rl run FILE`."""

    name: str = "run"
    seed: int = 0
    processes: int = 2  # stages and simulator workers that run at once
    device: str = "cpu"
    group_size: int = 20  # episodes stepped together; part of what a result depends on
    rounds: int = 2
    arms: tuple[str, ...] = ("bc_continued", "filtered_bc")  # controls beside `improved`
    accept_failed_audit: bool = False
    sim: SimConfig = field(default_factory=SimConfig)
    demos: DemoConfig = field(default_factory=DemoConfig)
    policy: PolicySettings = field(default_factory=PolicySettings)
    imitation: TrainerConfig = field(default_factory=TrainerConfig)
    rollouts: RolloutSettings = field(default_factory=RolloutSettings)
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    credit: CreditSettings = field(default_factory=CreditSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    report: ReportSettings = field(default_factory=ReportSettings)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and `--dotted.key=value` overrides. Raises ConfigError naming file and key."""
    return parse_config(read_tree(path, overrides), str(path))


def read_tree(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The keys and values of a YAML file, with overrides, not yet checked. Raises ConfigError."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such file; the project's own experiments are in configs/")
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold keys and values, not {type(tree).__name__}")
    for text in overrides:
        _override(tree, text)
    return tree


def parse_config(tree: dict[str, Any], where: str) -> RunConfig:
    """A plain tree -> RunConfig, checked."""
    _check_keys(tree, RunConfig, where, "")
    try:
        config = draccus.decode(RunConfig, tree)
    except (draccus.utils.DraccusException, TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}") from None
    _check_values(config, where)
    return config


def dump_config(config: Any) -> dict[str, Any]:
    """Plain values, for `run.json`, fingerprints and the report."""
    return draccus.encode(config)


def _override(tree: dict[str, Any], text: str) -> None:
    name, equals, value = text.removeprefix("--").partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r}: an override reads --dotted.key=value")
    *parents, last = name.split(".")
    for key in parents:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{text!r}: {key!r} holds a value, not further keys")
    try:
        tree[last] = yaml.safe_load(value) if value else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r}: not valid YAML: {' '.join(str(error).split())}") from None


def _check_keys(tree: dict[str, Any], kind: type, where: str, prefix: str) -> None:
    known = {f.name for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    for key, value in tree.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise ConfigError(f"{where}: {prefix}{key}: unknown key; {hint}")
        inner = hints[key]
        if isinstance(inner, types.UnionType):
            inner = next((part for part in inner.__args__ if dataclasses.is_dataclass(part)), inner)
        if typing.get_origin(inner) is tuple and not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: {prefix}{key}: must be a list, got {value!r}")
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{key}: must hold further keys, got {value!r}")
            _check_keys(value, inner, where, f"{prefix}{key}.")


CHOICES = {
    "sim.type": ("tabletop", "metaworld"),
    "policy.type": ("compact_vla",),
    "judge.type": ("compact",),
    "judge.trunk": ("policy", "scratch"),
    "credit.type": ("habc", "bc", "filtered_bc", "awr", "ra_bc", "arm"),
    "credit.features": ("judge", "policy"),
    "credit.viability": ("critic", "td_success"),
    "credit.demo_weight": ("one", "gate"),
    "credit.failure_weight": ("zero", "positive"),
}
ARMS = ("bc_continued", "filtered_bc")
POSITIVE = (
    *("demos.episodes", "rollouts.episodes", "evaluation.episodes", "group_size", "processes", "rounds"),
    *("imitation.steps", "imitation.batch_size", "update.trainer.steps", "update.trainer.batch_size", "credit.hop"),
)
SHARES = ("update.demo_share", "rollouts.bold_share", "judge.held_out")


def _read(config: RunConfig, name: str) -> Any:
    value: Any = config
    for key in name.split("."):
        value = getattr(value, key)
    return value


def _check_values(config: RunConfig, where: str) -> None:
    for name, choices in CHOICES.items():
        value = _read(config, name)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(choices)}"
            raise ConfigError(f"{where}: {name}: {value!r} is not known; {hint}")
    for arm in config.arms:
        if arm not in ARMS:
            raise ConfigError(f"{where}: arms: {arm!r} is not known; choose from {', '.join(ARMS)}")
    _check_numbers(config, where)


def _check_numbers(config: RunConfig, where: str) -> None:
    for name in POSITIVE:
        if _read(config, name) < 1:
            raise ConfigError(f"{where}: {name}: must be at least 1, got {_read(config, name)}")
    for name in SHARES:
        if not 0 <= _read(config, name) <= 1:
            raise ConfigError(f"{where}: {name}: must be between 0 and 1, got {_read(config, name)}")
    if not 0 < config.judge.held_out < 1:
        raise ConfigError(f"{where}: judge.held_out: the audit needs a share of the rollouts, and the judge the rest")
    for name in ("seed", "evaluation.seed"):
        if _read(config, name) < 0:
            raise ConfigError(f"{where}: {name}: must not be negative, got {_read(config, name)}")
