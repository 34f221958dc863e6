"""How each type of judge file is fitted: what its keys mean and which data it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robo_rl.errors import ConfigError, DataError
from robo_rl.options import configured

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class FitJob:
    """One fit: the file's keys, the data, where it works, and who wants to know how far it is."""

    tree: Mapping[str, Any]
    episodes: Any  # EpisodeSet
    labels: Any  # HumanLabels or None
    files: Mapping[str, Path]  # label files by option
    previous: Path | None
    workdir: Path
    report: Report

    @property
    def seed(self) -> int:
        """Decides parameters, batches and what is held out."""
        return int(self.tree.get("seed", 0))


def model_and_fit(tree: Mapping[str, Any], model: type, fit: type, others: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """The two configurations of a judge file. Raises ConfigError for an unknown key."""
    values = {key: value for key, value in tree.items() if key not in ("type", "fit", "seed", *others)}
    return configured(model, values, "judge"), configured(
        fit, {} if tree.get("fit") is None else tree["fit"], "judge.fit"
    )


def causal_settings(tree: Mapping[str, Any]) -> tuple[Any, Any]:
    """(CausalConfig, CausalFitConfig)."""
    from reward_models.causal_fit import CausalFitConfig
    from reward_models.judge import CausalConfig

    return model_and_fit(tree, CausalConfig, CausalFitConfig)


def fit_causal_file(job: FitJob) -> Any:
    """Objectives on one causal pass."""
    from reward_models.causal_fit import fit_causal
    from reward_models.judge import CausalJudge

    model, settings = causal_settings(job.tree)
    judge = CausalJudge(model, seed=job.seed) if job.previous is None else CausalJudge.load(job.previous)
    fit_causal(
        judge,
        job.episodes,
        settings,
        seed=job.seed,
        workdir=job.workdir,
        labels=job.labels,
        progress_callback=job.report,
        warm_start=job.previous is not None,
    )
    return judge


def similarity_settings(tree: Mapping[str, Any]) -> tuple[Any, Any]:
    """(SimilarityConfig, SimilarityFitConfig). `demonstrations` of a file are for scoring without a fit."""
    from reward_models.similarity import SimilarityConfig
    from reward_models.similarity_fit import SimilarityFitConfig

    return model_and_fit(tree, SimilarityConfig, SimilarityFitConfig, ("demonstrations",))


def fit_similarity_file(job: FitJob) -> Any:
    """Contrastive video-text fine-tuning of a CLIP or SigLIP."""
    from reward_models.similarity import SimilarityJudge
    from reward_models.similarity_fit import fit_similarity

    model, settings = similarity_settings(job.tree)
    judge = SimilarityJudge(model) if job.previous is None else SimilarityJudge.load(job.previous)
    fit_similarity(judge, job.episodes, settings, seed=job.seed, workdir=job.workdir, progress_callback=job.report)
    return judge


def preference_settings(tree: Mapping[str, Any]) -> tuple[Any, Any]:
    """(PreferenceConfig, PreferenceFitConfig)."""
    from reward_models.preference import PreferenceConfig
    from reward_models.preference_fit import PreferenceFitConfig

    return model_and_fit(tree, PreferenceConfig, PreferenceFitConfig, ("ask",))


def fit_preference_file(job: FitJob) -> Any:
    """A Bradley-Terry reward from comparisons: of people (`--preferences`), or of the model that `ask` names."""
    from reward_models.preference import PreferenceJudge
    from reward_models.preference_fit import fit_preference
    from reward_models.preference_pairs import read_pairs

    model, settings = preference_settings(job.tree)
    if "preferences" in job.files:
        pairs = read_pairs(job.files["preferences"], job.episodes)
    elif job.tree.get("ask"):
        pairs = _asked(job)
    else:
        raise DataError("a preference judge needs comparisons: give --preferences, or name a model under `ask`")
    judge = PreferenceJudge(model, seed=job.seed) if job.previous is None else PreferenceJudge.load(job.previous)
    fit_preference(
        judge, job.episodes, pairs, settings, seed=job.seed, workdir=job.workdir, progress_callback=job.report
    )
    return judge


def _asked(job: FitJob) -> Any:
    """Pairs answered by a vision-language model; kept, so that a killed fit asks each only once."""
    from reward_models.preference_pairs import sample_pairs
    from reward_models.preference_vlm import PairLabeller, PreferenceVLMConfig, label_pairs

    values = dict(job.tree["ask"])
    count = int(values.pop("pairs", 500))
    labeller = PairLabeller(configured(PreferenceVLMConfig, values, "judge.ask"))
    pairs = sample_pairs(job.episodes, count, seed=job.seed)
    return label_pairs(labeller, job.episodes, pairs, job.workdir / "pairs.parquet", progress_callback=job.report)


FITTERS: dict[str, tuple[Callable[[Mapping[str, Any]], tuple[Any, Any]], Callable[[FitJob], Any]]] = {
    "causal": (causal_settings, fit_causal_file),
    "similarity": (similarity_settings, fit_similarity_file),
    "preference": (preference_settings, fit_preference_file),
}


def fitter(tree: Mapping[str, Any], where: str) -> Callable[[FitJob], Any]:
    """The fit of a judge file, after its keys were checked. Raises ConfigError naming the file."""
    kind = tree.get("type")
    if kind not in FITTERS:
        raise ConfigError(f"{where}: type {kind!r} is not fitted; these are: {', '.join(FITTERS)}")
    settings, fit = FITTERS[kind]
    try:
        settings(tree)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return fit
