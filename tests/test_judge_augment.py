"""Augmentations of a judge's training as pure functions: wrong instructions, failures, black cameras, soft outcomes."""

from dataclasses import replace
from pathlib import Path

import judge_toy as toy
import numpy as np
import pytest
import torch
import transformers
from tiny_models import TEXT, tiny, tokenizer_of

from reward_models.after_fit import with_soft_outcomes
from reward_models.augment import drop_cameras, mix_failures
from reward_models.backbone import VlmBackbone, VlmConfig
from reward_models.batches import ClipBatches, ClipConfig
from reward_models.causal_fit import CausalFitConfig, fit_causal
from reward_models.compact_backbone import CompactBackbone
from reward_models.counterfactual import from_dataset, from_language_model, from_words, merged
from reward_models.features import CameraDropout, FrameSource
from reward_models.hub import Source
from reward_models.judge import CausalConfig, CausalJudge
from reward_models.network import CompactJudgeConfig
from reward_models.soft_targets import soft_failure_targets, success_centres
from reward_models.targets import episode_targets
from robo_rl.errors import ConfigError
from robo_rl.types import Trajectory


def two_cameras(episode: Trajectory) -> Trajectory:
    return replace(episode, images={"front": episode.images["front"], "wrist": 255 - episode.images["front"]})


# --- instructions ------------------------------------------------------------------------------------------------


def test_one_word_is_changed() -> None:
    made = from_words("Put the red cube left of the bowl", [("red", "blue", "bowl"), ("left", "right")])
    assert made == [
        "put the blue cube left of the bowl",
        "put the red cube left of the blue",
        "put the red cube right of the bowl",
    ]


def test_words_in_use_are_left_alone() -> None:
    assert from_words("put the red cube on the blue cube", [("red", "blue"), ("cube", "ball")]) == []
    assert from_words("fold the towel", [("red", "blue")]) == []
    assert from_words("open the reddish door", [("red", "blue")]) == []  # only whole words


def test_instructions_of_the_dataset_and_their_odds() -> None:
    episodes = [toy.episode(0, asked="red"), toy.episode(1, asked="green", moved="green")]
    found = from_dataset(episodes)
    assert found["move the red square to the goal"] == ["move the green square to the goal"]
    texts, odds = merged(episodes, found, {"move the red square to the goal": ["open the drawer"]})[0] or ([], [])
    assert texts == ["move the green square to the goal", "open the drawer"]
    # two of four words in common ("square", "goal" of "red green square goal"), none: odds e^(1.5) to 1
    assert odds[0] / odds[1] == pytest.approx(np.exp(1.5))
    assert merged(episodes, {}) == [None, None]


def test_a_language_model_s_rewrites_are_checked() -> None:
    def answers(prompt: str, count: int, seed: int) -> list[str]:
        assert "Instruction: put the red cube in the bowl" in prompt
        return [
            ' "Put the blue cube in the box."\nmore',
            "place the red cube into the bowl",
            "",
            "Put the blue cube in the box",
        ]

    found = from_language_model(["put the red cube in the bowl"] * 3, Source(path="x"), generate=answers)
    assert found == {"put the red cube in the bowl": ["Put the blue cube in the box"]}


def test_a_local_language_model_is_asked(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(())
    config = transformers.LlamaConfig(**(TEXT | {"vocab_size": len(tokenizer)}))
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = "put the red cube in the bowl"
    one = from_language_model([text], Source(path=str(tmp_path)), count=3, seed=1)
    assert one == from_language_model([text], Source(path=str(tmp_path)), count=3, seed=1)
    with pytest.raises(ConfigError, match="cannot be opened as a language model"):
        from_language_model([text], Source(path=str(tmp_path / "none")))


def test_changed_words_reach_the_batches() -> None:
    episodes = [toy.episode(n) for n in range(3)]  # one instruction: nothing else could be wrong
    first = np.cumsum([0] + [len(e) + 1 for e in episodes[:-1]])
    plain = ClipBatches(episodes, episode_targets(episodes), first, ClipConfig(), batch_size=10, seed=0)(0)
    assert set(plain.texts) == {"move the red square to the goal"}
    config = ClipConfig(wrong_words=True)
    words = ClipBatches(episodes, episode_targets(episodes), first, config, batch_size=10, seed=0)(0)
    wrong = [place for place, text in enumerate(words.texts) if text != "move the red square to the goal"]
    assert len(wrong) == 3  # 0.3 of 10
    assert all(bool(words.incomplete[place, 0]) for place in wrong)


# --- episodes and cameras ------------------------------------------------------------------------------------------


def test_failures_are_mixed_in() -> None:
    chosen, failed = np.array([0, 1, 2, 3, 8, 5]), np.array([8, 9])
    mixed = mix_failures(chosen, failed, 0.5, np.random.default_rng(0))
    assert np.isin(mixed, failed).sum() == 3
    assert mixed[4] == 8
    assert np.array_equal(mix_failures(chosen, failed, 0.1, np.random.default_rng(0)), chosen)
    assert np.array_equal(mix_failures(chosen, np.array([], int), 0.5, np.random.default_rng(0)), chosen)


def test_which_camera_goes_dark() -> None:
    drawn = drop_cameras(4000, 0.25, np.random.default_rng(0))
    assert np.isnan(drawn).mean() == pytest.approx(0.75, abs=0.03)
    assert np.nanmax(drawn) < 1.0
    assert np.nanmean(drawn) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kind", ["compact", "smolvlm"])
def test_a_black_camera_is_a_camera_that_shows_black(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    torch.manual_seed(0)
    cameras = ("front", "wrist")
    if kind == "compact":
        backbone = CompactBackbone(CompactJudgeConfig(cameras=cameras, precision="fp32")).eval()
    else:
        path = str(tiny("smolvlm", tmp_path_factory.getbasetemp() / "tiny"))
        backbone = VlmBackbone(VlmConfig(path=path, cameras=cameras, language="none")).eval()
    episode = two_cameras(toy.episode(0))
    source = FrameSource([episode], [np.arange(4)], cameras)
    pixels = source.pixels(np.arange(4))
    with torch.no_grad():
        features = backbone.encode(pixels)[None].repeat(3, 1, *[1] * (backbone.encode(pixels).ndim - 1))
        dark = CameraDropout(backbone, source)(features, np.array([np.nan, 0.1, 0.9]))
        no_front = backbone.encode(pixels | {"front": torch.zeros_like(pixels["front"])})
        no_wrist = backbone.encode(pixels | {"wrist": torch.zeros_like(pixels["wrist"])})
    assert torch.equal(dark[0], features[0])
    assert torch.allclose(dark[1], no_front, atol=1e-5)
    assert torch.allclose(dark[2], no_wrist, atol=1e-5)
    assert not torch.allclose(dark[1], dark[2], atol=1e-3)


# --- soft outcomes ------------------------------------------------------------------------------------------------


def test_soft_outcomes_by_hand() -> None:
    """Successes at 0 and 0.1 (mean 0.05, one cluster of standardised -1, 1? eps 0.5: none, so the mean).

    Failures at distance 0.95, 1.95, 2.95: scaled 0, 0.5, 1, so 0.6 sigmoid(5), 0.3, 0.6 sigmoid(-5).
    """
    embedding = np.array([[0.0], [0.1], [1.0], [2.0], [3.0]])
    success = np.array([True, True, False, False, False])
    made = soft_failure_targets(embedding, success, ["a"] * 5)
    high, low = 0.6 / (1 + np.exp(-5)), 0.6 / (1 + np.exp(5))
    assert np.allclose(made, [1, 1, high, 0.3, low], atol=1e-6)


def test_tasks_without_a_success_keep_hard_outcomes() -> None:
    made = soft_failure_targets(
        np.random.default_rng(0).normal(size=(4, 3)), np.array([False, False, True, False]), list("aabb")
    )
    assert made.tolist() == [0, 0, 1, 0]  # b has one failure: nothing to tell apart


def test_two_ways_to_succeed_are_two_centres() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-3, 0.05, (20, 2)), rng.normal(3, 0.05, (20, 2))])
    centres = success_centres(points)
    assert np.allclose(sorted(centres[:, 0]), [-3, 3], atol=0.1)


def test_failures_that_look_like_successes_get_more() -> None:
    """The nearest failure of a task gets 0.6 sigmoid(5), the farthest 0.6 sigmoid(-5)."""
    episodes = toy.episodes(16)
    judge = CausalJudge(CausalConfig(backbone={"type": "compact", "cameras": ["front"]}, objectives={"td_success": {}}))
    made = with_soft_outcomes(judge, episodes, episode_targets(episodes))
    outcomes = np.array([target.outcome for target in made])
    success = np.array([episode.success for episode in episodes])
    assert (outcomes[success] == 1).all()
    assert outcomes[~success].min() == pytest.approx(0.6 / (1 + np.exp(5)), abs=1e-3)
    assert outcomes[~success].max() == pytest.approx(0.6 / (1 + np.exp(-5)), abs=1e-3)


def test_all_augmentations_together_fit() -> None:
    episodes = [two_cameras(episode) for episode in toy.episodes(8)]
    clips = ClipConfig(wrong_words=True, failures=0.4, drop_camera=0.5)
    config = CausalFitConfig(steps=4, trunk_steps=2, batch_size=6, clips=clips, soft_failures=True, held_out=0.0)
    judge = CausalJudge(CausalConfig(backbone={"type": "compact"}, objectives={"progress": {}, "td_success": {}}))
    curves = fit_causal(judge, episodes, config, seed=0).curves
    assert np.isfinite(curves["total"]).all()
    assert len(curves["total"]) == 6


@pytest.mark.parametrize("bad", [{"failures": 1.0}, {"drop_camera": 1.5}])
def test_impossible_shares_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="failures must lie in"):
        ClipConfig(**bad)
