"""GVL: what is shown in random order is put back into time, and what is not answered is no zero."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from asked_toy import FakeAsker, grey, level, pictures_of
from data_sample import sample_episodes
from tiny_models import tiny

from reward_models.gvl import PERCENT, GVLConfig, GVLJudge
from reward_models.registry import load_judge
from reward_models.score import score
from reward_models.zero_shot import Spread
from robo_rl.errors import ConfigError, DataError, RewardError


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def exact(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
    """The picture labelled `place` has the grey level 10, 20, ...: that many percent. Picture 0 is the beginning."""
    return np.array([option == f"{level(pictures[place])}%" for option in options], np.float64)


def judge(asker: FakeAsker, **options) -> GVLJudge:
    return GVLJudge(GVLConfig(path="none", **options), asker)


# a robot that does, undoes and does again: no clock could say this
LEVELS = [0, 20, 40, 60, 30, 10, 50, 70, 90, 100]


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_answers_return_to_their_frames(seed: int) -> None:
    asker = FakeAsker(exact)
    (signal,) = judge(asker, seed=seed).score([grey("e", LEVELS)])
    np.testing.assert_allclose(signal.progress, np.array(LEVELS) / 100, atol=1e-6)
    shown = [level(picture) for picture in pictures_of(asker.prompts[0])]
    assert shown[0] == 0  # the beginning first
    assert shown[1:] != LEVELS[1:]  # the others not in their order
    assert sorted(shown) == sorted(LEVELS)


def test_the_order_depends_on_seed_and_episode() -> None:
    orders = [
        tuple(judge(FakeAsker(exact), seed=seed).shuffled(grey(name, LEVELS))[1])
        for seed, name in ((0, "e"), (0, "e"), (1, "e"), (0, "f"))
    ]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_progress_is_an_expectation_and_uncertainty_its_deviation() -> None:
    def half_half(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
        return np.array([0.2 if option in ("0%", "100%") else 0.0 for option in options])

    (signal,) = judge(FakeAsker(half_half)).score([grey("e", [0, 1, 2])])
    # each frame but the given first: 0 or 1 with one half each: mean 0.5, deviation 0.5; both hold 0.4 together
    np.testing.assert_allclose(signal.progress, [0, 0.5, 0.5])
    np.testing.assert_allclose(signal.uncertainty, [0, 0.5, 0.5])
    np.testing.assert_allclose(signal.extra["answer_mass"], [np.nan, 0.4, 0.4])
    assert not signal.abstained.any()


def test_frames_between_anchors_are_interpolated() -> None:
    levels = list(range(0, 101, 5))  # 21 frames; anchors 0, 10, 20
    asker = FakeAsker(exact)
    (signal,) = judge(asker, max_frames=3).score([grey("e", levels)])
    assert len(pictures_of(asker.prompts[0])) == 3
    np.testing.assert_allclose(signal.progress, np.array(levels) / 100, atol=1e-6)  # linear, so exact in between
    assert np.flatnonzero(np.isfinite(signal.extra["answer_mass"])).tolist() == [10, 20]


def test_little_probability_is_an_abstention() -> None:
    def unsure_of_grey_50(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
        return exact(place, pictures, options) * (0.01 if level(pictures[place]) == 50 else 0.9)

    (signal,) = judge(FakeAsker(unsure_of_grey_50), min_mass=0.1).score([grey("e", LEVELS)])
    assert np.flatnonzero(signal.abstained).tolist() == [LEVELS.index(50)]
    assert signal.progress[6] == pytest.approx(0.1)  # the earlier of its neighbours, 10 % and 70 %


# --- text ----------------------------------------------------------------------------------------------------------


def lines(pictures: list[np.ndarray]) -> str:
    return "\n".join(f"Frame {k}: {level(picture)}%" for k, picture in enumerate(pictures) if k)


@pytest.mark.parametrize("form", ["lines", "json"])
def test_written_answers_return_to_their_frames(form: str) -> None:
    def as_json(pictures: list[np.ndarray]) -> str:
        rows = [{"frame": k, "percent": level(picture)} for k, picture in enumerate(pictures) if k]
        return f"Here you are:\n{json.dumps(rows)}"

    asker = FakeAsker(text={"lines": lines, "json": as_json}[form])
    episodes = [grey(f"e{n}", LEVELS) for n in range(10)]  # more than a batch
    for signal in judge(asker, readout="text").score(episodes):
        np.testing.assert_allclose(signal.progress, np.array(LEVELS) / 100, atol=1e-6)
        assert signal.uncertainty is None


def test_missing_lines_abstain_and_never_count_as_zero() -> None:
    def only_the_full_ones(pictures: list[np.ndarray]) -> str:
        answered = [f"Frame {k}: 90%" for k, picture in enumerate(pictures) if k and level(picture) == 90]
        return "\n".join([*answered, "Frame 3: I cannot see"])

    (signal,) = judge(FakeAsker(text=only_the_full_ones), readout="text").score([grey("e", LEVELS)])
    # frame 0 is given, frame 8 answered; the eight others repeat the answer, not the given 0
    np.testing.assert_allclose(signal.progress, [0, *[0.9] * 9])
    assert signal.abstained.sum() == 8
    assert not signal.abstained[[0, 8]].any()


def test_no_answer_at_all_names_the_episode() -> None:
    with pytest.raises(RewardError, match=r"episode 'e7': the model answered none of 9 questions"):
        judge(FakeAsker(text=lambda pictures: "Sorry."), readout="text").score([grey("e7", LEVELS)])


def test_an_unanswered_anchor_between_two_answered() -> None:
    # anchors 0, 4, 8 of 9 frames; the middle one is silent and takes the first answered of its equally near neighbours
    spread = Spread(grey("e", range(9)), np.array([0, 4, 8]), np.array([0.2, np.nan, 0.6]))
    np.testing.assert_allclose(spread.progress, [0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6], atol=1e-6)
    # frames nearer to the silent anchor than to another abstain: 3, 4, 5, and 6 which is as near to both
    assert np.flatnonzero(spread.abstained).tolist() == [3, 4, 5, 6]


# --- a real model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm"])
@pytest.mark.parametrize("readout", ["logits", "text"])
def test_a_real_model_from_a_file(models: Path, tmp_path: Path, family: str, readout: str) -> None:
    description = {
        "type": "gvl",
        "path": str(tiny(family, models)),
        "max_frames": 4,
        "cameras": ["front", "wrist"],
        "readout": readout,
        "max_tokens": 4,
    }
    (tmp_path / "gvl.yaml").write_text(json.dumps(description))
    made = load_judge(tmp_path / "gvl.yaml")
    episodes = sample_episodes()[:2]
    if readout == "text":  # random words are no percentages
        with pytest.raises(RewardError, match="answered none of 3 questions"):
            score(made, episodes)
        return
    signals = score(made, episodes)
    assert np.ptp(signals[0].progress[1:]) > 1e-5  # frames matter
    made.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == made.model_id
    for one, other in zip(signals, again.score(episodes), strict=True):
        np.testing.assert_array_equal(one.progress, other.progress)
        np.testing.assert_array_equal(one.uncertainty, other.uncertainty)
    assert made.provenance()["revision"] == made.asker.revision
    # the answer belongs to the frame, wherever it is shown: equal pictures under other labels differ, so only the
    # exact prompt of this seed gives these values
    other = GVLJudge(dataclasses.replace(made.config, seed=1), made.asker)
    assert other.model_id != made.model_id
    assert np.abs(other.score(episodes)[0].progress - signals[0].progress).max() > 1e-6


def test_a_saved_judge_notices_another_model(models: Path, tmp_path: Path) -> None:
    made = GVLJudge(GVLConfig(path=str(tiny("smolvlm", models))))
    made.save(tmp_path / "judge")
    facts = json.loads((tmp_path / "judge" / "config.json").read_text())
    facts["config"]["path"] = str(tiny("internvl", models))
    (tmp_path / "judge" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=rf"made for .*internvl at {made.asker.revision}, but"):
        load_judge(tmp_path / "judge")
    facts["config"] |= {"path": made.config.path, "prompt": "other {instruction}"}
    (tmp_path / "judge" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="one of its files was exchanged"):
        load_judge(tmp_path / "judge")


def test_a_model_for_single_pictures_is_refused(models: Path) -> None:
    with pytest.raises(ConfigError, match="GVL shows several pictures in one prompt"):
        GVLJudge.from_config({"path": str(tiny("paligemma", models))})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readout": "guess"}, "readout must be logits or text"),
        ({"max_frames": 1}, "max_frames must be at least 2"),
        ({"prompt": "how far?"}, r"must contain \{instruction\}"),
        ({"max_frame": 4}, r"judge\.gvl\.max_frame: unknown key; did you mean 'max_frames'"),
        ({"cameras": "front"}, "cameras: must be a list"),
        ({"min_mass": 2}, r"min_mass must lie in \[0, 1\]"),
        ({"dtype": "int4"}, "dtype must be one of"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GVLJudge.from_config({"path": "nowhere/at-all"} | options)


def test_a_camera_that_is_missing_is_named() -> None:
    with pytest.raises(DataError, match="needs camera 'top'"):
        judge(FakeAsker(exact), cameras=("top",)).score([grey("e", LEVELS)])


def test_the_answers_are_tens_of_percent() -> None:
    assert PERCENT.tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
