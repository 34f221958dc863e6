"""Similarity judges: the formulas by hand, demonstrations, and a contrastive fit that learns a toy and resumes."""

import dataclasses
import json
from pathlib import Path

import judge_toy as toy
import numpy as np
import pytest
import torch
from data_sample import sample_episodes
from tiny_models import tiny

from reward_models.dual_encoder import DualEncoder, frame_features
from reward_models.hub import Source
from reward_models.registry import load_judge
from reward_models.score import score
from reward_models.similarity import SimilarityConfig, SimilarityJudge, projected, video_vectors
from reward_models.similarity_fit import SimilarityFitConfig, fit_similarity
from robo_rl.data import write_episodes
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import Outcome

KINDS = ["clip", "siglip"]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def judge(models: Path, kind: str = "clip", **options) -> SimilarityJudge:
    if kind == "clip":  # reads a text at its closing token, which the tiny tokenizer does not write by itself
        options = {"prompt": "{instruction}</s>"} | options
    return SimilarityJudge(SimilarityConfig(path=str(tiny(kind, models)), **options))


def units(*shape: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# --- formulas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_projection_is_that_of_the_matrix(alpha: float) -> None:
    states, goal, base = units(6, 8), units(8, seed=1), units(8, seed=2)
    line = goal - base
    matrix = alpha * np.outer(line, line) / (line @ line) + (1 - alpha) * np.eye(8)
    expected = 1 - np.linalg.norm((states - goal) @ matrix, axis=-1) ** 2 / 2
    np.testing.assert_allclose(projected(states, goal, base, alpha), expected, atol=1e-6)


def test_the_projection_without_strength_is_the_cosine() -> None:
    states, goal, base = units(6, 8), units(8, seed=1), units(8, seed=2)
    # 1 - |s - g|^2 / 2 = 1 - (2 - 2 s'g) / 2 = s'g
    np.testing.assert_allclose(projected(states, goal, base, 0.0), states @ goal, atol=1e-6)
    np.testing.assert_allclose(projected(goal, goal, base, 1.0), 1.0, atol=1e-6)
    # entirely on the line, the baseline is as far as the goal: 1 - |b - g|^2 / 2 = b'g
    np.testing.assert_allclose(projected(base, goal, base, 1.0), base @ goal, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 3])
def test_the_vector_of_a_video(window: int) -> None:
    frames = units(7, 2, 5)
    found = video_vectors(frames, window)
    for t in range(7):
        part = frames[max(0, t + 1 - window) if window else 0 : t + 1].mean(0)
        np.testing.assert_allclose(found[t], part / np.linalg.norm(part, axis=-1, keepdims=True), atol=1e-6)


# --- scoring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_similarity_is_that_of_the_official_model(models: Path, kind: str) -> None:
    made, (episode, *_) = judge(models, kind), sample_episodes()
    closing = "</s>" if kind == "clip" else ""
    (signal,) = made.score([episode])
    model, processor = made.encoder.model, made.encoder.processor
    padding = "max_length" if kind == "siglip" else True
    with torch.inference_mode():
        cosines = []
        for camera in ("front", "wrist"):
            inputs = processor(
                text=[episode.instruction + closing],
                images=list(episode.images[camera]),
                padding=padding,
                max_length=64 if kind == "siglip" else None,
                return_tensors="pt",
            )
            out = model(**inputs)
            cosines.append((out.image_embeds @ out.text_embeds.T)[:, 0])
    expected = (cosines[0] + cosines[1]) / 2
    np.testing.assert_allclose(signal.extra["similarity"], expected, atol=1e-5)
    np.testing.assert_allclose(signal.progress, (1 + expected) / 2, atol=1e-5)
    assert np.ptp(signal.progress) > 1e-3


def test_each_picture_is_encoded_once_and_chunks_change_nothing(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, episodes = DualEncoder(Source(path=str(tiny("clip", models)))), sample_episodes()
    sizes: list[int] = []
    own = encoder.pictures

    def counted(pictures):
        sizes.append(len(pictures))
        return own(pictures)

    monkeypatch.setattr(encoder, "pictures", counted)
    small = list(frame_features(encoder, episodes, ("front", "wrist"), 5))
    assert max(sizes) == 5
    assert sum(sizes) == 2 * sum(len(episode) + 1 for episode in episodes)
    sizes.clear()
    large = list(frame_features(encoder, episodes, ("front", "wrist"), 1000))
    assert len(sizes) == 1  # frames of several episodes go together
    for one, other, episode in zip(small, large, episodes, strict=True):
        assert one.shape == (len(episode) + 1, 2, 24)
        np.testing.assert_allclose(one, other, atol=1e-5)
    for view, camera in enumerate(("front", "wrist")):
        expected = own([episodes[1].images[camera][4]])[0].numpy()
        np.testing.assert_allclose(large[1][4, view], expected, atol=1e-5)


def test_only_the_last_frame(models: Path) -> None:
    episodes = sample_episodes()[:2]
    every = judge(models, window=0).score(episodes)
    for one, other in zip(judge(models, window=0, when="last").score(episodes), every, strict=True):
        assert (one.progress[:-1] == 0).all()
        assert np.isnan(one.extra["similarity"][:-1]).all()
        assert one.progress[-1] == pytest.approx(other.progress[-1])


def test_a_demonstration_is_most_like_itself(models: Path, tmp_path: Path) -> None:
    episodes = sample_episodes()[:3]  # push, lift (a failure), push
    made = judge(models, target="demonstration", window=0, when="last")
    made.demonstrate([dataclasses.replace(episodes[0], outcome=Outcome.UNKNOWN), episodes[1]])
    assert list(made.demonstrated) == ["push the cube"]  # what failed shows nothing
    itself, other = made.score([episodes[0], episodes[2]])
    assert itself.extra["similarity"][-1] == pytest.approx(1.0, abs=1e-5)
    assert other.extra["similarity"][-1] < 0.9999
    with pytest.raises(RewardError, match=r"episode 'e1': nobody demonstrated 'lift the cube'; .*'push the cube'"):
        made.score([episodes[1]])
    made.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == made.model_id
    np.testing.assert_array_equal(again.score(episodes[:1])[0].progress, itself.progress)
    with pytest.raises(DataError, match="all of 1 demonstrations failed"):
        made.demonstrate([episodes[1]])


def test_demonstrations_from_a_dataset(models: Path, tmp_path: Path) -> None:
    write_episodes(tmp_path / "data", sample_episodes()[:1])
    description = {
        "type": "similarity",
        "path": str(tiny("siglip", models)),
        "target": "demonstration",
        "demonstrations": str(tmp_path / "data"),
        "cameras": ["front"],
    }
    (tmp_path / "judge.yaml").write_text(json.dumps(description))
    made = load_judge(tmp_path / "judge.yaml")
    (signal,) = made.score(sample_episodes()[:1])
    assert int(signal.progress.argmax()) == len(signal.progress) - 1  # most like the demonstration's last frame
    del description["demonstrations"]
    (tmp_path / "judge.yaml").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="name the dataset that shows"):
        load_judge(tmp_path / "judge.yaml")


def test_calibration_puts_successes_between_0_and_1(models: Path) -> None:
    made = judge(models, cameras=("front",))
    first, second = sample_episodes()[0], sample_episodes()[2]
    episodes = [first, dataclasses.replace(second, outcome=Outcome.SUCCESS)]
    raw = [signal.extra["similarity"] for signal in made.score(episodes)]
    if np.mean([r[-1] - r[0] for r in raw]) < 0:  # backwards, so that there is something to calibrate
        episodes = [dataclasses.replace(e, images={"front": e.images["front"][::-1]}) for e in episodes]
    before = made.model_id
    made.calibrate(episodes)
    assert made.model_id != before
    raw = [signal.extra["similarity"] for signal in made.score(episodes)]
    mapped = [made.config.scale * r + made.config.shift for r in raw]
    assert np.mean([m[0] for m in mapped]) == pytest.approx(0.0, abs=1e-5)
    assert np.mean([m[-1] for m in mapped]) == pytest.approx(1.0, abs=1e-5)
    backwards = [dataclasses.replace(e, images={"front": e.images["front"][::-1]}) for e in episodes]
    with pytest.raises(DataError, match="no more similar"):
        made.calibrate(backwards)
    with pytest.raises(DataError, match="none of 1 episodes succeeded"):
        made.calibrate([sample_episodes()[1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "goal"}, "target must be text or demonstration"),
        ({"alpha": 2.0}, r"alpha must lie in \[0, 1\]"),
        ({"prompt": "a cube"}, r"must contain \{instruction\}"),
        ({"target": "demonstration", "baseline": "a table"}, "goes with target: text"),
        ({"windows": 3}, "did you mean 'window'"),
        ({"window": -1}, "window must not be negative"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimilarityJudge.from_config({"path": "nowhere/at-all"} | options)


# --- fine-tuning ---------------------------------------------------------------------------------------------------

QUICK = SimilarityFitConfig(
    steps=30, batch_size=8, learning_rate=3e-3, vision_layers=-1, text_layers=-1, checkpoint_every=4
)


def successes(count: int, first: int = 0) -> list:
    return [
        toy.episode(n, asked=colour, moved=colour)
        for n in range(first, first + count)
        for colour in [("red", "green")[n % 2]]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_learns_to_tell_ends_from_beginnings_and_colours(models: Path, tmp_path: Path, kind: str) -> None:
    made = judge(models, kind)
    result = fit_similarity(made, successes(24), QUICK, seed=0)
    assert np.mean(result.curves["total"][-5:]) < 0.7 * np.mean(result.curves["total"][:5])
    assert result.calibration == ""
    held_out = successes(8, first=100)
    signals = score(made, held_out)
    assert np.mean([s.progress[-1] - s.progress[0] for s in signals]) > 0.5
    # the end of another task's success is less similar to the instruction
    swapped = [
        dataclasses.replace(episode, instruction=held_out[n ^ 1].instruction) for n, episode in enumerate(held_out)
    ]
    wrong = score(made, swapped)
    assert np.mean([a.progress[-1] - b.progress[-1] for a, b in zip(signals, wrong, strict=True)]) > 0.1
    made.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == made.model_id
    for one, other in zip(signals, score(again, held_out), strict=True):
        np.testing.assert_array_equal(one.progress, other.progress)


class Stop(Exception):
    """The process was killed."""


@pytest.mark.parametrize("part", [{"vision_layers": 1, "text_layers": 0}, {"vision_layers": 0, "lora_rank": 2}])
def test_a_stopped_fit_goes_on_exactly(models: Path, tmp_path: Path, part: dict) -> None:
    config = dataclasses.replace(QUICK, steps=10, batch_size=4, calibrate=False, **{"text_layers": 0} | part)
    episodes = successes(6)
    whole = judge(models)
    fit_similarity(whole, episodes, config, seed=3)
    official = dict(DualEncoder(whole.config.source()).model.named_parameters())
    changed = {name.replace(".base_layer", "") for name in whole.trained()}
    for name, parameter in whole.encoder.model.named_parameters():  # nothing else is touched
        plain = name.replace(".base_layer", "")
        if plain not in changed and plain in official:
            assert torch.equal(parameter, official[plain])

    def stop(step: int, steps: int) -> None:
        if step == 6:
            raise Stop

    with pytest.raises(Stop):
        fit_similarity(judge(models), episodes, config, seed=3, workdir=tmp_path, progress_callback=stop)
    seen: list[int] = []
    resumed = judge(models)
    result = fit_similarity(
        resumed, episodes, config, seed=3, workdir=tmp_path, progress_callback=lambda step, steps: seen.append(step)
    )
    assert seen == [5, 6, 7, 8, 9, 10]  # the checkpoint of step 4
    assert len(result.curves["total"]) == 10
    assert resumed.model_id == whole.model_id
    with pytest.raises(DataError, match="belongs to another fit"):
        fit_similarity(judge(models), episodes, config, seed=4, workdir=tmp_path)
    again = SimilarityJudge(whole.config)
    whole.save(tmp_path / "judge")
    again = SimilarityJudge.load(tmp_path / "judge")
    assert again.model_id == whole.model_id


def test_what_cannot_be_fitted_is_said(models: Path) -> None:
    failed = [dataclasses.replace(episode, outcome=Outcome.FAILURE) for episode in successes(2)]
    with pytest.raises(DataError, match="learns from successes; none of 2"):
        fit_similarity(judge(models), failed, QUICK, seed=0)
    with pytest.raises(ConfigError, match="nothing is trained"):
        fit_similarity(judge(models), successes(2), dataclasses.replace(QUICK, vision_layers=0, text_layers=0), seed=0)
    with pytest.raises(ConfigError, match="99 layers of vision_model"):
        fit_similarity(judge(models), successes(2), dataclasses.replace(QUICK, vision_layers=99), seed=0)
    with pytest.raises(DataError, match=r"set judge\.fit\.beginnings"):
        fit_similarity(judge(models), successes(1), dataclasses.replace(QUICK, beginnings=False), seed=0)
    with pytest.raises(ConfigError, match="must be fp32 to fit"):
        fit_similarity(judge(models, dtype="bf16"), successes(2), QUICK, seed=0)


def test_a_damaged_folder_is_named(models: Path, tmp_path: Path) -> None:
    made = judge(models, target="demonstration")
    made.demonstrate(sample_episodes()[:1])
    made.save(tmp_path / "judge")
    (tmp_path / "judge" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="damaged"):
        load_judge(tmp_path / "judge")
    (tmp_path / "judge" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors is missing"):
        load_judge(tmp_path / "judge")
