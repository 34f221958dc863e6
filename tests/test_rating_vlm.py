"""Ratings from 1 to 5: of beginnings of a video, with honest gaps between them."""

import json
from pathlib import Path

import numpy as np
import pytest
from asked_toy import FakeAsker, grey, level, pictures_of
from data_sample import sample_episodes
from tiny_models import tiny

from reward_models.rating_vlm import START, RatingVLMConfig, RatingVLMJudge
from reward_models.registry import load_judge
from reward_models.score import score
from robo_rl.errors import ConfigError, RewardError

LEVELS = [0, 10, 20, 30, 40, 30, 20, 10, 0]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def by_the_last(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
    """Half of all probability on the rating 1 + level / 10 of the last picture."""
    return np.array([0.5 if int(option) == 1 + level(pictures[-1]) // 10 else 0.0 for option in options])


def judge(asker: FakeAsker, **options) -> RatingVLMJudge:
    return RatingVLMJudge(RatingVLMConfig(path="none", **options), asker)


def test_each_moment_has_the_rating_of_what_came_before() -> None:
    asker = FakeAsker(by_the_last)
    (signal,) = judge(asker, anchors=9).score([grey("e", LEVELS)])
    # levels 0, 10, ... are ratings 1, 2, ...; progress = (rating - 1) / 4
    np.testing.assert_allclose(signal.progress, np.array(LEVELS) / 40)
    np.testing.assert_allclose(signal.extra["rating"], 1 + np.array(LEVELS) / 10)
    np.testing.assert_allclose(signal.extra["answer_mass"], 0.5)
    np.testing.assert_allclose(signal.success_prob, np.array(LEVELS) == 40)
    shown = [[level(picture) for picture in pictures_of(prompt)] for prompt in asker.prompts]
    assert shown == [LEVELS[: n + 1] for n in range(9)]


def test_uncertainty_is_a_deviation() -> None:
    def one_or_five(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
        return np.array([0.75, 0, 0, 0, 0.25])

    (signal,) = judge(FakeAsker(one_or_five), anchors=2).score([grey("e", LEVELS)])
    # progress 0 with 3/4 and 1 with 1/4: mean 1/4, variance 1/4 - 1/16 = 3/16
    np.testing.assert_allclose(signal.progress, 0.25)
    np.testing.assert_allclose(signal.uncertainty, np.sqrt(3 / 16), rtol=1e-6)
    np.testing.assert_allclose(signal.success_prob, 0.25)


def test_between_anchors_there_is_no_rating() -> None:
    (signal,) = judge(FakeAsker(by_the_last), anchors=3).score([grey("e", LEVELS)])
    # frames 0, 4, 8 are rated 1, 5, 1
    assert np.flatnonzero(np.isfinite(signal.extra["rating"])).tolist() == [0, 4, 8]
    np.testing.assert_allclose(signal.progress, [0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25, 0])
    assert not signal.abstained.any()


def test_fewer_frames_than_the_video_has() -> None:
    asker = FakeAsker(by_the_last)
    (signal,) = judge(asker, max_frames=3, anchors=8).score([grey("e", LEVELS)])
    # only the frames that are shown can be rated: 0, 4 and 8
    assert [len(pictures_of(prompt)) for prompt in asker.prompts] == [1, 2, 3]
    assert np.flatnonzero(np.isfinite(signal.extra["rating"])).tolist() == [0, 4, 8]


def test_only_the_end() -> None:
    asker = FakeAsker(by_the_last)
    (signal,) = judge(asker, anchors=1).score([grey("e", [0, 10, 40, 20])])
    assert [[level(p) for p in pictures_of(prompt)] for prompt in asker.prompts] == [[0, 10, 40, 20]]
    np.testing.assert_allclose(signal.progress, 0.5)  # rating 3 of the last frame
    np.testing.assert_array_equal(signal.extra["rating"], [np.nan, np.nan, np.nan, 3.0])
    assert signal.abstained.tolist() == [True, True, True, False]


def test_one_frame_a_prompt() -> None:
    asker = FakeAsker(by_the_last, several=False)
    (signal,) = judge(asker, max_frames=1, anchors=9).score([grey("e", LEVELS)])
    assert [[level(p) for p in pictures_of(prompt)] for prompt in asker.prompts] == [[n] for n in LEVELS]
    np.testing.assert_allclose(signal.progress, np.array(LEVELS) / 40)
    with pytest.raises(ConfigError, match="one picture only"):
        judge(asker, max_frames=2)
    with pytest.raises(ConfigError, match="one picture only"):
        judge(asker, max_frames=1, cameras=("front", "wrist"))


def test_written_ratings_and_abstentions() -> None:
    def only_above_20(pictures: list[np.ndarray]) -> str:
        last = level(pictures[-1])
        return f"It moved. ANSWER: {1 + last // 10}" if last > 20 else "ANSWER: unclear"

    (signal,) = judge(FakeAsker(text=only_above_20), readout="text", anchors=9).score([grey("e", LEVELS)])
    # frames 3, 4, 5 are rated 4, 5, 4; earlier ones repeat frame 3, later ones frame 5
    np.testing.assert_allclose(signal.progress, [0.75, 0.75, 0.75, 0.75, 1, 0.75, 0.75, 0.75, 0.75])
    assert signal.abstained.tolist() == [level <= 20 for level in LEVELS]
    assert np.isnan(signal.extra["rating"][signal.abstained]).all()
    assert signal.success_prob is None
    with pytest.raises(RewardError, match="episode 'low': the model answered none of 2 questions"):
        judge(FakeAsker(text=only_above_20), readout="text").score([grey("low", [0, 1])])


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm"])
def test_a_real_model(models: Path, tmp_path: Path, family: str) -> None:
    description = {"type": "rating_vlm", "path": str(tiny(family, models)), "max_frames": 4, "anchors": 3}
    (tmp_path / "rating.yaml").write_text(json.dumps(description))
    made = load_judge(tmp_path / "rating.yaml")
    episodes = sample_episodes()[:2]
    signals = score(made, episodes)
    assert np.ptp(signals[0].progress) > 1e-3
    # each anchor by a prompt of its own: frames 0, 2, 4, 6 are shown, of which 0, 4 and 6 are rated
    front = episodes[0].images["front"]
    for shown, frame in (((0,), 0), ((0, 2, 4), 4), ((0, 2, 4, 6), 6)):
        parts = [part for n, f in enumerate(shown) for part in (f"\nFrame {n + 1}: ", front[f])]
        content = [made.config.prompt, *parts, made.config.question.replace("{instruction}", "push the cube")]
        log_p = made.asker.log_probs([content], ["1", "2", "3", "4", "5"], START)[0]
        rating = np.exp(log_p) @ np.arange(1, 6) / np.exp(log_p).sum()
        assert signals[0].extra["rating"][frame] == pytest.approx(rating, abs=1e-4)
    made.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == made.model_id
    np.testing.assert_array_equal(again.score(episodes)[0].progress, signals[0].progress)


def test_paligemma_rates_single_frames(models: Path) -> None:
    options = {"path": str(tiny("paligemma", models)), "max_frames": 1, "anchors": 3}
    signals = RatingVLMJudge.from_config(options).score(sample_episodes()[:1])
    assert np.ptp(signals[0].progress) > 1e-4
    with pytest.raises(ConfigError, match=r"a rating of a video .* no chat template"):
        RatingVLMJudge.from_config(options | {"max_frames": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchors": 0}, "max_frames and anchors must be at least 1"),
        ({"question": "how far?"}, r"must contain \{instruction\}"),
        ({"ancors": 3}, "did you mean 'anchors'"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RatingVLMJudge.from_config({"path": "nowhere/at-all"} | options)
