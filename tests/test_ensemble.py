"""Ensembles: every read-out by hand, members that lack a head or abstain, and folders that refer to each other."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_sample import sample_episodes
from tiny_models import tiny

from reward_models.ensemble import EnsembleConfig, EnsembleJudge
from reward_models.registry import Judge, load_judge
from reward_models.score import score
from reward_models.similarity import SimilarityConfig, SimilarityJudge
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import RewardSignal, Trajectory

EPISODE = sample_episodes()[3]  # 5 steps, 6 frames


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


class Fixed:
    """A judge that says the same of every episode."""

    def __init__(self, name: str, **said) -> None:
        self.model_id, self.said = f"{name}@1", said

    def score(self, trajectories: list[Trajectory]) -> list[RewardSignal]:
        arrays = {
            key: np.asarray(value, bool if key == "abstained" else np.float32) for key, value in self.said.items()
        }
        return [RewardSignal(episode_id=e.episode_id, model_id=self.model_id, **arrays) for e in trajectories]

    def provenance(self) -> dict[str, str]:
        return {"prompt": self.model_id[0]}


def combined(*members: Fixed, **options) -> RewardSignal:
    return EnsembleJudge(members, EnsembleConfig(**options)).score([EPISODE])[0]


ONE = Fixed("one", progress=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
TWO = Fixed("two", progress=[0.0, 0.4, 0.2, 0.8, 0.4, 0.6])


def test_mean_worst_and_lower_bound() -> None:
    mean = combined(ONE, TWO)
    np.testing.assert_allclose(mean.progress, [0, 0.3, 0.3, 0.7, 0.6, 0.8], rtol=1e-6)
    # of two values the deviation is half their distance
    np.testing.assert_allclose(mean.uncertainty, [0, 0.1, 0.1, 0.1, 0.2, 0.2], atol=1e-7)
    np.testing.assert_allclose(combined(ONE, TWO, readout="worst").progress, [0, 0.2, 0.2, 0.6, 0.4, 0.6], rtol=1e-6)
    bound = combined(ONE, TWO, readout="lcb", k=2.0)
    np.testing.assert_allclose(bound.progress, [0, 0.1, 0.1, 0.5, 0.2, 0.4], rtol=1e-5)
    assert combined(ONE, TWO, readout="lcb", k=100.0).progress.min() == 0.0
    np.testing.assert_array_equal(mean.extra["progress_1"], np.float32(ONE.said["progress"]))
    np.testing.assert_array_equal(mean.extra["progress_2"], np.float32(TWO.said["progress"]))
    assert mean.success_prob is None
    assert mean.tri_state is None
    assert not mean.abstained.any()


def test_an_ensemble_of_one_is_that_one() -> None:
    alone = combined(ONE, readout="lcb", k=3.0)
    np.testing.assert_array_equal(alone.progress, np.float32(ONE.said["progress"]))
    np.testing.assert_array_equal(alone.uncertainty, 0.0)


def test_heads_come_from_the_members_that_have_them() -> None:
    sure = Fixed("sure", progress=[0.5] * 6, success_prob=[0.2] * 6, uncertainty=[0.3] * 6)
    unsure = Fixed("unsure", progress=[0.5] * 6, success_prob=[0.6] * 6, uncertainty=[0.4] * 6)
    signal = combined(ONE, sure, unsure)
    np.testing.assert_allclose(signal.success_prob, 0.4)  # of two, not of three
    np.testing.assert_allclose(signal.extra["own_uncertainty"], np.sqrt((0.09 + 0.16) / 2), rtol=1e-6)
    assert "own_uncertainty" not in combined(ONE, TWO).extra
    np.testing.assert_allclose(combined(ONE, sure, unsure, readout="worst").success_prob, 0.2)
    steps = np.tile([0.7, 0.2, 0.1], (5, 1))
    other = np.tile([0.1, 0.2, 0.7], (5, 1))
    members = (Fixed("a", progress=[0.5] * 6, tri_state=steps), ONE, Fixed("b", progress=[0.5] * 6, tri_state=other))
    np.testing.assert_allclose(combined(*members).tri_state, np.tile([0.4, 0.2, 0.4], (5, 1)), rtol=1e-6)


def test_who_abstains_is_left_out() -> None:
    silent = Fixed(
        "silent",
        progress=[0.9] * 6,
        success_prob=[0.9] * 6,
        tri_state=np.tile([1.0, 0, 0], (5, 1)),
        abstained=[True, False, True, True, False, False],
    )
    speaking = Fixed(
        "speaking",
        progress=[0.1] * 6,
        success_prob=[0.1] * 6,
        tri_state=np.tile([0.0, 1, 0], (5, 1)),
        abstained=[False, False, False, True, False, False],
    )
    signal = combined(silent, speaking)
    np.testing.assert_allclose(signal.progress, [0.1, 0.5, 0.1, 0.5, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(signal.success_prob, [0.1, 0.5, 0.1, 0.5, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(signal.uncertainty, [0, 0.4, 0, 0.4, 0.4, 0.4], atol=1e-7)
    assert signal.abstained.tolist() == [False, False, False, True, False, False]
    # steps 0 and 1 touch a frame where only one speaks, 2 and 3 one where nobody does, 4 none
    np.testing.assert_allclose(signal.tri_state[:, 0], [0, 0, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(combined(silent, speaking, readout="worst").progress, 0.1, rtol=1e-6)
    low = Fixed("low", progress=[0.0] * 6, abstained=silent.said["abstained"])  # its repeated 0 is no word of its own
    np.testing.assert_allclose(combined(low, speaking, readout="worst").progress, [0.1, 0, 0.1, 0, 0, 0], rtol=1e-6)


def test_the_ensemble_is_named_by_its_members() -> None:
    names = [
        EnsembleJudge([ONE, TWO]).model_id,
        EnsembleJudge([TWO, ONE]).model_id,
        EnsembleJudge([ONE]).model_id,
        EnsembleJudge([ONE, TWO], EnsembleConfig(readout="worst")).model_id,
    ]
    assert len(set(names)) == 4
    assert names[0] == EnsembleJudge([ONE, TWO]).model_id
    facts = EnsembleJudge([ONE, TWO]).provenance()
    assert facts["member_2"] == "two@1"
    assert facts["member_2_prompt"] == "t"


class Wrong(Fixed):
    def score(self, trajectories: list[Trajectory]) -> list[RewardSignal]:
        return super().score(trajectories)[::-1]


def test_a_member_that_mixes_up_episodes_is_named() -> None:
    episodes = [EPISODE, sample_episodes()[0]]
    with pytest.raises(RewardError, match="two@1: episode 'e3' has 6 observations"):
        EnsembleJudge([Wrong("two", progress=[0.5] * 6)]).score(episodes)


# --- folders -------------------------------------------------------------------------------------------------------


def member(models: Path, kind: str, **options) -> SimilarityJudge:
    return SimilarityJudge(SimilarityConfig(path=str(tiny(kind, models)), **options))


def test_members_are_referred_to_and_checked(models: Path, tmp_path: Path) -> None:
    member(models, "clip").save(tmp_path / "judges" / "clip")
    file = tmp_path / "judges" / "siglip.yaml"
    file.write_text(json.dumps({"type": "similarity", "path": str(tiny("siglip", models)), "cameras": ["front"]}))
    description = {"type": "ensemble", "members": [str(tmp_path / "judges" / "clip"), str(file)], "readout": "worst"}
    (tmp_path / "ensemble.yaml").write_text(json.dumps(description))
    made = load_judge(tmp_path / "ensemble.yaml")
    assert isinstance(made, Judge)
    made.save(tmp_path / "runs" / "ensemble")
    facts = json.loads((tmp_path / "runs" / "ensemble" / "config.json").read_text())
    assert [entry["path"] for entry in facts["members"]] == ["../../judges/clip", "../../judges/siglip.yaml"]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copytree(tmp_path / "judges", moved / "judges")
    shutil.copytree(tmp_path / "runs", moved / "runs")
    shutil.rmtree(tmp_path / "judges")  # so that only the copies can be found
    again = load_judge(moved / "runs" / "ensemble")
    assert again.model_id == made.model_id
    episodes = sample_episodes()[:2]
    signals = score(made, episodes)
    for one, other in zip(signals, score(again, episodes), strict=True):
        np.testing.assert_array_equal(one.progress, other.progress)
    expected = np.minimum(*(m.score(episodes)[0].progress for m in made.members))
    np.testing.assert_array_equal(signals[0].progress, expected)
    member(models, "clip", shift=0.4).save(moved / "judges" / "clip")
    with pytest.raises(DataError, match=r"its member .*clip was similarity@\w+ and is similarity@\w+ now"):
        load_judge(moved / "runs" / "ensemble")
    shutil.rmtree(moved / "judges")
    with pytest.raises(DataError, match="not a judge"):
        load_judge(moved / "runs" / "ensemble")


def test_members_without_a_folder_are_saved_inside(models: Path, tmp_path: Path) -> None:
    made = EnsembleJudge([member(models, "clip"), member(models, "siglip")])
    made.save(tmp_path / "one")
    shutil.move(tmp_path / "one", tmp_path / "two")
    again = load_judge(tmp_path / "two")
    assert again.model_id == made.model_id
    again.save(tmp_path / "two")  # over itself: its members lie in the folder that is replaced
    assert load_judge(tmp_path / "two").model_id == made.model_id
    file = tmp_path / "two" / "config.json"
    file.write_text(file.read_text().replace('"mean"', '"worst"'))
    with pytest.raises(DataError, match=r"config\.json was changed"):
        load_judge(tmp_path / "two")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "list the folders or YAML files"),
        ({"members": []}, "list the folders or YAML files"),
        ({"members": "clip"}, "list the folders or YAML files"),
        ({"members": ["x"], "readout": "best"}, "readout must be one of mean, worst, lcb"),
        ({"members": ["x"], "k": -1}, "k must not be negative"),
        ({"members": ["x"], "readuot": "mean"}, "did you mean 'readout'"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnsembleJudge.from_config(options)
    with pytest.raises(ConfigError, match="needs at least one judge"):
        EnsembleJudge([])
