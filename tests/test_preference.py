"""Preferences: pairs in files, a model asked in both orders, and a reward learned from the answers."""

import dataclasses
import json
from pathlib import Path

import judge_toy as toy
import numpy as np
import pandas as pd
import pytest
import torch
from asked_toy import FakeAsker, grey, level, pictures_of
from data_sample import sample_episodes
from tiny_models import tiny

from reward_models.preference import EVERY, PreferenceConfig, PreferenceJudge
from reward_models.preference_fit import PreferenceFitConfig, bradley_terry, fit_preference
from reward_models.preference_pairs import FramePair, read_pairs, sample_pairs, write_pairs
from reward_models.preference_vlm import PairLabeller, PreferenceVLMConfig, label_pairs
from reward_models.registry import load_judge
from reward_models.score import score
from robo_rl.data import read_episodes, write_episodes
from robo_rl.errors import ConfigError, DataError, RewardError


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("pairs") / "data"
    write_episodes(root, sample_episodes())  # e0 push, e1 lift, e2 push, e3 tape; 7, 10, 9, 6 frames
    return read_episodes(root)


# --- pairs ---------------------------------------------------------------------------------------------------------


def test_sampled_pairs_compare_different_frames_of_one_instruction() -> None:
    episodes = sample_episodes()
    pairs = sample_pairs(episodes, 60, seed=0)
    assert pairs == sample_pairs(episodes, 60, seed=0)
    assert pairs != sample_pairs(episodes, 60, seed=1)
    assert len({frozenset([p.shown[:2], p.shown[2:]]) for p in pairs}) == 60
    for pair in pairs:
        assert episodes[pair.a].instruction == episodes[pair.b].instruction
        assert pair.frame_a <= len(episodes[pair.a])
        assert pair.frame_b <= len(episodes[pair.b])
    assert {(pair.a, pair.b) for pair in pairs} >= {(0, 2), (2, 0), (0, 0), (1, 1), (3, 3)}
    with pytest.raises(DataError, match="do not give 50 different pairs"):
        sample_pairs(episodes[3:], 50, seed=0)  # 6 frames are 15 pairs


def test_pairs_return_from_a_file(dataset, tmp_path: Path) -> None:
    answers = [("a", 0.75), ("b", 1.0), ("tie", 0.5), ("unsure", 0.0), ("abstained", 0.0)]
    pairs = [p.answered(*answer) for p, answer in zip(sample_pairs(dataset, 5, seed=2), answers, strict=True)]
    write_pairs(tmp_path / "pairs.parquet", dataset, pairs, labeller="somebody")
    assert read_pairs(tmp_path / "pairs.parquet", dataset) == pairs


def test_people_write_csv(dataset, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("episode_a,frame_a,episode_b,frame_b,preferred\n0,3,2,8,B\ne2,0,e0,6,tie\n")
    assert read_pairs(file, dataset) == [
        FramePair(a=0, frame_a=3, b=2, frame_b=8, preferred="b"),
        FramePair(a=2, frame_a=0, b=0, frame_b=6, preferred="tie"),
    ]
    # a file of preferences between episodes: the ends are compared
    file.write_text("episode_a,episode_b,preferred,from_a,to_a\n0,2,a,1,4\n2,0,b,,\n")
    assert [pair.shown for pair in read_pairs(file, dataset)] == [(0, 4, 2, 8), (2, 8, 0, 6)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,3,2,9,a,1", "row 1: frame 9 is beyond episode 'e2', whose frames are 0 to 8"),
        ("0,-1,2,8,a,1", "row 1: frame -1 is beyond episode 'e0'"),
        ("0,3,9,0,a,1", "row 1: episode_b 9: no such episode"),
        ("0,3,1,0,a,1", "row 1: the instructions differ"),
        ("0,3,0,3,a,1", "row 1: frame 3 of episode 'e0' stands beside itself"),
        ("0,3,2,8,first,1", "row 1: preferred 'first' is none of a, b, tie, unsure, abstained"),
        ("0,3,2,8,a,1.5", r"row 1: confidence must lie in \(0, 1\]"),
        ("0,3,2,8,a,0", r"row 1: confidence must lie in \(0, 1\]"),
        ("0,3,2,8,a,much", r"row 1: confidence must lie in \(0, 1\]"),
        ("0,x,2,8,a,1", "row 1: frame_a must be a whole number"),
    ],
)
def test_wrong_rows_are_named(dataset, tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(f"episode_a,frame_a,episode_b,frame_b,preferred,confidence\n{row}\n")
    with pytest.raises(DataError, match=rf"pairs\.csv: {message}"):
        read_pairs(file, dataset)


# --- asking --------------------------------------------------------------------------------------------------------


def brighter(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
    """The brighter last picture of two sides with 0.6 of all, the other with 0.1, unsure 0.1."""
    one, other = level(pictures[len(pictures) // 2 - 1]), level(pictures[-1])
    return np.array([0.1, 0.1, 0.6]) if one == other else np.array([0.6, 0.1, 0.1] if one > other else [0.1, 0.6, 0.1])


def labeller(asker: FakeAsker, **options) -> PairLabeller:
    return PairLabeller(PreferenceVLMConfig(path="none", **options), asker)


EPISODES = [grey("x", [0, 50, 100]), grey("y", [100, 50, 0])]
PAIRS = [
    FramePair(a=0, frame_a=2, b=1, frame_b=2),  # 100 and 0
    FramePair(a=0, frame_a=1, b=1, frame_b=0),  # 50 and 100
    FramePair(a=0, frame_a=1, b=1, frame_b=1),  # 50 and 50
]


def test_the_better_frame_is_found_in_both_orders() -> None:
    asker = FakeAsker(brighter)
    answered = labeller(asker).answer(EPISODES, PAIRS)
    assert [pair.preferred for pair in answered] == ["a", "b", "unsure"]
    assert [pair.confidence for pair in answered] == pytest.approx([0.75, 0.75, 0.75])  # 0.6 of 0.8
    shown = [[level(picture) for picture in pictures_of(prompt)] for prompt in asker.prompts]
    assert shown == [[100, 0], [0, 100], [50, 100], [100, 50], [50, 50], [50, 50]]


def test_a_model_that_always_says_a_says_nothing() -> None:
    def always_a(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
        return np.array([0.8, 0.1, 0.1])

    # over both orders a and b have (0.8 + 0.1) / 2 each
    answered = labeller(FakeAsker(always_a)).answer(EPISODES, PAIRS)
    assert [pair.preferred for pair in answered] == ["unsure"] * 3


def test_a_bias_is_cancelled() -> None:
    def biased(place: int, pictures: list[np.ndarray], options: list[str]) -> np.ndarray:
        # alone, the first order would always say A: 0.55 or 0.75 against 0.45 or 0.25
        first = 0.75 if level(pictures[0]) > level(pictures[1]) else 0.55
        return np.array([first, 1 - first, 0.0])

    first, second, _ = labeller(FakeAsker(biased)).answer(EPISODES, PAIRS)
    # a: (0.75 + 0.45) / 2 = 0.6 for the brighter
    assert (first.preferred, second.preferred) == ("a", "b")
    assert first.confidence == pytest.approx(0.6)
    wide = labeller(FakeAsker(biased), margin=0.3).answer(EPISODES, PAIRS)
    assert [pair.preferred for pair in wide] == ["unsure"] * 3


def test_clips_lead_up_to_the_compared_frames() -> None:
    asker = FakeAsker(brighter)
    labeller(asker, clip=3, clip_stride=2).answer([grey("x", range(9)), EPISODES[1]], [PAIRS[1]])
    # frame 1, and 2 and 4 before it: nothing before the first frame
    assert [level(picture) for picture in pictures_of(asker.prompts[0])] == [0, 0, 1, 100, 100, 100]


def test_little_probability_abstains() -> None:
    answered = labeller(FakeAsker(brighter), min_mass=0.9).answer(EPISODES, PAIRS)
    assert [pair.preferred for pair in answered] == ["abstained"] * 3


def test_written_letters_must_agree() -> None:
    def text(pictures: list[np.ndarray]) -> str:
        one, other = (level(picture) for picture in pictures)
        if {one, other} == {0, 100}:
            return "A" if one > other else "The answer is B."
        return "A" if {one, other} == {50, 100} else "I cannot tell."

    answered = labeller(FakeAsker(text=text), readout="text").answer(EPISODES, PAIRS)
    assert [pair.preferred for pair in answered] == ["a", "unsure", "abstained"]


def test_labelling_goes_on_after_what_a_file_holds(dataset, tmp_path: Path) -> None:
    pairs, path = sample_pairs(dataset, 7, seed=0), tmp_path / "pairs.parquet"
    asker = FakeAsker(brighter)
    label_pairs(labeller(asker), dataset, pairs[:4], path, write_every=2)
    assert len(asker.prompts) == 8
    counts: list[tuple[int, int]] = []
    label_pairs(labeller(asker), dataset, pairs, path, progress_callback=lambda done, of: counts.append((done, of)))
    assert len(asker.prompts) == 14
    assert counts == [(7, 7)]
    expected = labeller(FakeAsker(brighter)).answer(dataset, pairs)
    for found, right in zip(read_pairs(path, dataset), expected, strict=True):
        assert (found.shown, found.preferred) == (right.shown, right.preferred)
        assert found.confidence == pytest.approx(right.confidence)
    with pytest.raises(DataError, match="holds other pairs"):
        label_pairs(labeller(asker), dataset, pairs[::-1], path)
    with pytest.raises(DataError, match=r"answered by preference_vlm@.*choose a new file"):
        label_pairs(labeller(asker, margin=0.3), dataset, pairs, path)


def test_a_real_model_compares(models: Path) -> None:
    episodes = sample_episodes()
    pairs = sample_pairs(episodes, 3, seed=0)
    made = PairLabeller.from_config({"path": str(tiny("smolvlm", models)), "margin": 0.0, "cameras": ["front"]})
    answered = made.answer(episodes, pairs)
    flipped = [FramePair(a=p.b, frame_a=p.frame_b, b=p.a, frame_b=p.frame_a) for p in pairs]
    turned = {"a": "b", "b": "a", "unsure": "unsure"}
    for one, other in zip(answered, made.answer(episodes, flipped), strict=True):  # the order of a pair is nothing
        assert turned[one.preferred] == other.preferred
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
    with pytest.raises(ConfigError, match="a comparison shows several pictures"):
        PairLabeller.from_config({"path": str(tiny("paligemma", models))})


# --- learning ------------------------------------------------------------------------------------------------------


def true_pairs(episodes: list, count: int, seed: int) -> list[FramePair]:
    """Pairs answered by the truth; ties where it differs by less than 0.05."""
    answered = []
    for pair in sample_pairs(episodes, count, seed=seed):
        difference = episodes[pair.b].true_progress[pair.frame_b] - episodes[pair.a].true_progress[pair.frame_a]
        word = "tie" if abs(difference) < 0.05 else "b" if difference > 0 else "a"
        answered.append(pair.answered(word, 1.0))
    return answered


def test_bradley_terry_by_hand() -> None:
    pairs = [
        FramePair(a=0, frame_a=0, b=1, frame_b=1, preferred="b", confidence=1.0),
        FramePair(a=0, frame_a=0, b=1, frame_b=1, preferred="a", confidence=0.5),
        FramePair(a=0, frame_a=0, b=1, frame_b=1, preferred="tie", confidence=0.5),
    ]
    found = bradley_terry(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([2.0, 1.0, 1.0]), pairs)
    # -log s(2), -log s(-1), -log s(0) with weights 1, 1/2, 1/2 of 2
    expected = (np.log(1 + np.exp(-2)) + 0.5 * np.log(1 + np.exp(1)) + 0.5 * np.log(2)) / 2
    assert float(found) == pytest.approx(expected, rel=1e-5)


QUICK = PreferenceFitConfig(steps=120, batch_size=32, learning_rate=3e-3)
SMALL = PreferenceConfig(channels=12, image_size=32, hidden=48, text_dim=24)


def test_a_reward_learned_from_pixels(tmp_path: Path) -> None:
    episodes = toy.episodes(24)
    pairs = true_pairs(episodes, 400, seed=0)
    judge = PreferenceJudge(SMALL, seed=0)
    with pytest.raises(RewardError, match="has not been fitted"):
        judge.score(episodes)
    result = fit_preference(judge, episodes, pairs, QUICK, seed=0)
    assert result.num_dropped == sum(pair.preferred == "tie" for pair in pairs) > 0
    assert np.mean(result.curves["total"][-10:]) < 0.6 * np.mean(result.curves["total"][:10])
    assert result.held_out_pairs > 20
    assert result.held_out_accuracy > 0.8
    held_out = [episode for episode in toy.episodes(24, first=500) if episode.success]
    signals = score(judge, held_out)
    rows = zip(signals, held_out, strict=True)
    assert np.mean([np.corrcoef(signal.progress, episode.true_progress)[0, 1] for signal, episode in rows]) > 0.7
    judge.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == judge.model_id
    for one, other in zip(signals, score(again, held_out), strict=True):
        np.testing.assert_array_equal(one.progress, other.progress)
        np.testing.assert_array_equal(one.extra["reward"], other.extra["reward"])


def test_progress_is_standardised_within_an_instruction() -> None:
    episodes = toy.episodes(4)
    judge = PreferenceJudge(SMALL)
    judge.build(("front",))
    judge.measure(episodes)
    signals = judge.score(episodes)
    for text in {episode.instruction for episode in episodes}:
        chosen = [n for n, episode in enumerate(episodes) if episode.instruction == text]
        rewards = np.concatenate([signals[n].extra["reward"] for n in chosen])
        logits = np.concatenate([np.log(signals[n].progress / (1 - signals[n].progress)) for n in chosen])
        np.testing.assert_allclose(logits, (rewards - rewards.mean()) / rewards.std(), atol=1e-3)
    foreign = dataclasses.replace(episodes[0], instruction="wave")
    (signal,) = judge.score([foreign])
    mean, deviation = judge.scales[EVERY]
    expected = 1 / (1 + np.exp(-(signal.extra["reward"] - mean) / deviation))
    np.testing.assert_allclose(signal.progress, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_reward_on_frozen_vectors(models: Path, tmp_path: Path, kind: str) -> None:
    episodes = [toy.episode(n) for n in range(12)]
    pairs = true_pairs(episodes, 300, seed=0)
    judge = PreferenceJudge.from_config({"encoder": str(tiny(kind, models)), "hidden": 48, "seed": 1})
    result = fit_preference(judge, episodes, pairs, dataclasses.replace(QUICK, ties="half"), seed=0)
    assert result.num_dropped == 0
    assert np.mean(result.curves["total"][-10:]) < 0.8 * np.mean(result.curves["total"][:10])
    assert result.held_out_accuracy > 0.7
    judge.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == judge.model_id
    np.testing.assert_array_equal(score(again, episodes[:2])[1].progress, score(judge, episodes[:2])[1].progress)


class Stop(Exception):
    """The process was killed."""


def test_a_stopped_fit_goes_on_exactly(tmp_path: Path) -> None:
    episodes = toy.episodes(4)
    pairs = true_pairs(episodes, 40, seed=0)
    config = dataclasses.replace(QUICK, steps=10, batch_size=4, checkpoint_every=3)
    whole = PreferenceJudge(SMALL)
    fit_preference(whole, episodes, pairs, config, seed=3)

    def stop(step: int, steps: int) -> None:
        if step == 8:
            raise Stop

    with pytest.raises(Stop):
        fit_preference(
            PreferenceJudge(SMALL), episodes, pairs, config, seed=3, workdir=tmp_path, progress_callback=stop
        )
    seen: list[int] = []
    resumed = PreferenceJudge(SMALL)
    note = lambda step, steps: seen.append(step)  # noqa: E731
    fit_preference(resumed, episodes, pairs, config, seed=3, workdir=tmp_path, progress_callback=note)
    assert seen == [7, 8, 9, 10]  # the checkpoint of step 6
    assert resumed.model_id == whole.model_id
    with pytest.raises(DataError, match="belongs to another fit"):
        fit_preference(PreferenceJudge(SMALL), episodes, pairs[1:], config, seed=3, workdir=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"cut off")
    with pytest.raises(DataError, match="damaged checkpoint"):
        fit_preference(PreferenceJudge(SMALL), episodes, pairs, config, seed=3, workdir=tmp_path)


def test_what_cannot_be_fitted_is_said() -> None:
    episodes = toy.episodes(2)
    pair = FramePair(a=0, frame_a=0, b=0, frame_b=1, preferred="tie")
    with pytest.raises(DataError, match="needs pairs with a verdict; none of 1 has one"):
        fit_preference(PreferenceJudge(SMALL), episodes, [pair], QUICK, seed=0)
    with pytest.raises(DataError, match="needs camera 'top'"):
        fit_preference(
            PreferenceJudge(dataclasses.replace(SMALL, cameras=("top",))),
            episodes,
            [dataclasses.replace(pair, preferred="a")],
            QUICK,
            seed=0,
        )
    with pytest.raises(ConfigError, match=r"judge\.preference\.hiden: unknown key; did you mean 'hidden'"):
        PreferenceJudge.from_config({"hiden": 3})


def test_a_folder_whose_facts_were_changed_is_noticed(tmp_path: Path) -> None:
    judge = PreferenceJudge(SMALL)
    judge.build(("front",))
    judge.measure(toy.episodes(1))
    judge.save(tmp_path / "judge")
    file = tmp_path / "judge" / "config.json"
    facts = json.loads(file.read_text())
    facts["scales"][EVERY][0] += 1.0
    file.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="one of its files was exchanged"):
        load_judge(tmp_path / "judge")
    facts["config"]["hidden"] = 7
    file.write_text(json.dumps(facts))
    with pytest.raises(DataError, match="damaged judge"):
        load_judge(tmp_path / "judge")


def test_a_file_of_pairs_is_plain_parquet(dataset, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.parquet", dataset, [PAIRS[0].answered("a", 0.5)], labeller="me")
    table = pd.read_parquet(tmp_path / "pairs.parquet")
    assert table.to_dict("records") == [
        {"episode_a": "e0", "frame_a": 2, "episode_b": "e1", "frame_b": 2, "preferred": "a", "confidence": 0.5}
    ]
