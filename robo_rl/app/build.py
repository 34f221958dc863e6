"""Names in an experiment file -> objects. The one place where a simulator or a judge is chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robo_rl.app.config import RunConfig, dump_config
from robo_rl.data import EpisodeSet, require
from robo_rl.errors import ConfigError, DataError
from robo_rl.evaluation import EvaluationResult
from robo_rl.options import configured as options
from robo_rl.policies.acting import MakePolicyActor
from robo_rl.policies.compact_vla import CompactVLAConfig, CompactVLAPolicy, make_compact_vla_pre_post_processors
from robo_rl.policies.compact_vla.configuration_compact_vla import features_for
from robo_rl.policies.storage import LoadedPolicy, load_policy, measure
from robo_rl.rollout import Disturbance, RecordConfig, collect
from robo_rl.rollout import evaluate as run_evaluation
from robo_rl.types import Actor, Trajectory, World

Report = Callable[[int, int], None]


def check_parts(config: RunConfig) -> None:
    """ConfigError now for what a stage would refuse an hour from now."""
    from reward_models.compact import CompactJudgeConfig
    from reward_models.fit import FitConfig

    world_settings(config.sim.type, config.sim.options)
    MakeExpert(config)()
    options(CompactJudgeConfig, config.judge.model, "judge.model")
    options(FitConfig, config.judge.fit, "judge.fit")
    policy_settings(config, {})


def policy_settings(config: RunConfig, features: Mapping[str, Any]) -> CompactVLAConfig:
    """CompactVLA's configuration; ConfigError where sizes do not fit each other."""
    settings: dict[str, Any] = dataclasses.asdict(config.policy)
    settings.pop("type")
    try:
        return CompactVLAConfig(device=config.device, push_to_hub=False, **settings, **features)
    except ValueError as error:
        raise ConfigError(f"policy: {error}") from None


def policy_name(folder: Path) -> str:
    """What a policy folder is called: its own name, or its stage's where it is just `policy`."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "policy" else folder.name


# --- worlds and who drives them -------------------------------------------------------------------------


@dataclass(frozen=True)
class MakeWorld:
    """Picklable recipe of a world; `size` (of frames) and `horizon` replace the experiment's."""

    config: RunConfig
    size: int | None = None
    horizon: int | None = None

    def __call__(self) -> World:
        from sims.gl import ensure_gl

        ensure_gl()
        sim = self.config.sim
        values = dict(sim.options)
        values |= {key: value for key in ("size", "horizon") if (value := getattr(self, key))}
        settings = world_settings(sim.type, values)
        match sim.type:
            case "tabletop":
                from sims.tabletop import TabletopWorld

                return TabletopWorld(settings)
            case "metaworld":
                from sims.meta_world import MetaWorldWorld

                return MetaWorldWorld(settings)
        raise ConfigError(f"sim.type: {sim.type!r} is not known")


def world_settings(kind: str, values: Mapping[str, Any]) -> Any:
    """The simulator's own configuration; ConfigError names a wrong key."""
    match kind:
        case "tabletop":
            from sims.tabletop import TabletopConfig

            return options(TabletopConfig, values, "sim.options")
        case "metaworld":
            from sims.meta_world import MetaWorldConfig

            return options(MetaWorldConfig, values, "sim.options")
    raise ConfigError(f"sim.type: {kind!r} is not known")


@dataclass(frozen=True)
class MakeExpert:
    """Picklable recipe of the simulator's scripted expert."""

    config: RunConfig

    def __call__(self) -> Actor:
        values = self.config.demos.expert
        match self.config.sim.type:
            case "tabletop":
                from sims.tabletop import ExpertConfig, ScriptedExpert

                return ScriptedExpert(options(ExpertConfig, values, "demos.expert"))
            case "metaworld":
                from sims.meta_world import MetaWorldExpert, MetaWorldExpertConfig

                return MetaWorldExpert(options(MetaWorldExpertConfig, values, "demos.expert"))
        raise ConfigError(f"sim.type: {self.config.sim.type!r} is not known")


def record_demos(
    config: RunConfig, *, workers: int, report: Report, start: int = 0, episodes: int | None = None
) -> Iterator[Trajectory]:
    """Episodes of the expert, one and a half times as many as wanted, since failed ones are thrown away."""
    wanted = episodes or config.demos.episodes
    disturbance = Disturbance(scale=config.demos.disturbance) if config.demos.disturbance > 0 else None
    return collect(
        MakeWorld(config, horizon=config.demos.horizon),
        MakeExpert(config),
        seed=config.seed * 1000,
        indices=range(start, start + wanted + wanted // 2),
        workers=workers,
        group_size=config.group_size,
        record=RecordConfig(true_progress=True, episode_prefix="demo"),
        disturbance=disturbance,
        progress=lambda done, _: report(min(done, wanted), wanted),
    )


def record_rollouts(
    config: RunConfig,
    policy: Path,
    *,
    seed: int,
    workers: int,
    report: Report,
    start: int = 0,
    episodes: int | None = None,
) -> Iterator[Trajectory]:
    """Episodes of a policy with the exploration that `rollouts` asks for."""
    settings = config.rollouts
    name = policy_name(policy)
    actor = MakePolicyActor(
        folder=policy, policy_id=name, noise_scale=settings.noise_scale, bold_share=settings.bold_share
    )
    return collect(
        MakeWorld(config),
        actor,
        seed=seed,
        indices=range(start, start + (episodes or settings.episodes)),
        workers=workers,
        group_size=config.group_size,
        record=RecordConfig(true_progress=True, episode_prefix=name),
        progress=report,
    )


def evaluate(config: RunConfig, policy: Path, *, workers: int, report: Report) -> EvaluationResult:
    """Success of a policy over the held-out states of `evaluation`."""
    name = policy_name(policy)
    results = run_evaluation(
        MakeWorld(config),
        MakePolicyActor(folder=policy, policy_id=name),
        seed=config.evaluation.seed,
        indices=range(config.evaluation.episodes),
        workers=workers,
        group_size=config.group_size,
        progress=report,
    )
    return EvaluationResult.from_episodes(
        results, policy_id=name, seed=config.evaluation.seed, world=json.dumps(dump_config(config.sim), sort_keys=True)
    )


# --- policies ---------------------------------------------------------------------------------------------


def new_policy(config: RunConfig, episodes: EpisodeSet) -> LoadedPolicy:
    """A CompactVLA with fresh parameters, shaped and normalised for a dataset."""
    first = episodes[0]
    cameras = {name: first.images[name].shape[1:3] for name in episodes.cameras}
    features: dict[str, Any] = features_for(cameras, first.state.shape[1], first.actions.shape[1])
    torch.manual_seed(config.seed)
    architecture = policy_settings(config, features)
    policy = CompactVLAPolicy(architecture)
    frames = ~np.asarray(episodes.is_final)
    normaliser = measure(np.asarray(episodes.flat_state)[frames], np.asarray(episodes.flat_actions)[frames])
    before, after = make_compact_vla_pre_post_processors(architecture, normaliser.as_stats())
    return LoadedPolicy(policy=policy, normaliser=normaliser, preprocessor=before, postprocessor=after)


def require_fit(folder: Path, loaded: LoadedPolicy, episodes: EpisodeSet) -> None:
    """DataError when a dataset lacks what the policy in `folder` sees and does."""
    settings = loaded.policy.config
    try:
        require(
            episodes,
            cameras={
                key.removeprefix("observation.images."): feature.shape[1:]
                for key, feature in settings.image_features.items()
            },
            state_dim=settings.robot_state_feature.shape[0],
            action_dim=settings.action_feature.shape[0],
        )
    except DataError as error:
        raise DataError(f"policy {folder} does not fit this dataset: {error}") from None


def policy_features(folder: Path, episodes: EpisodeSet, batch: int = 256) -> np.ndarray:
    """The policy encoder's context of every frame, float32 (N, D): what critics see with `features: policy`."""
    from robo_rl.nets import tokenize
    from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS

    loaded = load_policy(folder)
    require_fit(folder, loaded, episodes)
    states = loaded.normaliser.state(np.asarray(episodes.flat_state)).astype(np.float32)
    owner = np.asarray(episodes.episode_of_frame)
    tokens = tokenize([episode.instruction for episode in episodes])
    parts = []
    with torch.inference_mode():
        for first in range(0, len(states), batch):
            rows = np.arange(first, min(first + batch, len(states)))
            inputs = {"observation.state": torch.from_numpy(states[rows]), TOKENS: tokens[owner[rows]]}
            for camera in episodes.cameras:
                frames = torch.from_numpy(episodes.gather(camera, rows)).permute(0, 3, 1, 2).float() / 255.0
                inputs[f"observation.images.{camera}"] = frames
            parts.append(loaded.policy.encode(inputs).float().numpy())
    return np.concatenate(parts)


# --- judges -------------------------------------------------------------------------------------------------


def fit_judge(
    config: RunConfig, episodes: EpisodeSet, *, policy: Path | None, previous: Path | None, seed: int, report: Report
) -> Any:
    """(judge, fit result): continued from `previous`, or started from the policy's image encoder."""
    from reward_models.compact import CompactJudge, CompactJudgeConfig
    from reward_models.fit import FitConfig, fit

    settings = config.judge
    if previous is not None:
        judge = CompactJudge.load(previous)
    else:
        judge = CompactJudge(options(CompactJudgeConfig, settings.model, "judge.model"), seed=seed)
        if settings.trunk == "policy":
            if policy is None:
                raise ConfigError("judge.trunk: 'policy' needs a policy to start from; give --policy or use 'scratch'")
            judge.init_trunk(load_policy(policy).policy.trunk_parameters())
    result = fit(
        judge,
        episodes,
        options(FitConfig, settings.fit, "judge.fit"),
        seed=seed,
        progress_callback=report,
        warm_start=previous is not None,
    )
    return judge, result


def load_judge(folder: Path) -> Any:
    """Open a judge folder."""
    from reward_models.compact import CompactJudge

    return CompactJudge.load(folder)


def examine_judge(judge: Any, episodes: EpisodeSet, folder: Path, *, seed: int) -> None:
    """Quality and audit on episodes the judge never saw: `quality.json` and `audit.json` in `folder`."""
    from reward_models.audit import audit
    from reward_models.quality import measure_quality, score_reversed

    backwards = score_reversed(judge, episodes)
    quality = measure_quality(judge.score(episodes), episodes, seed=seed, reversed_signals=backwards)
    (folder / "quality.json").write_text(json.dumps(quality, indent=1))
    (folder / "audit.json").write_text(json.dumps(audit(judge, episodes, seed=seed).to_json(), indent=1))
