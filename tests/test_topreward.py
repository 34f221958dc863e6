"""TOPReward in one pass beside lerobot's one call a prefix: the same log-probabilities, linear work, no drift."""

import json
import logging
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from lerobot.lerobot_types import TransitionKey
from lerobot.rewards.topreward import TOPRewardConfig, TOPRewardModel
from lerobot.rewards.topreward.processor_topreward import TOPRewardEncoderProcessorStep, _prepare_video_batch
from tiny_models import tiny

from reward_models import topreward_text
from reward_models.registry import Judge, load_judge
from reward_models.topreward import (
    LeRobotTOPRewardConfig,
    LeRobotTOPRewardJudge,
    TOPRewardJudge,
    TOPRewardJudgeConfig,
)
from reward_models.topreward_curve import anchors, curve, stretched
from reward_models.topreward_text import read_text, timestamp
from reward_models.topreward_video import lengths_by_size, patches, resize
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import Controller, Outcome, Trajectory

CLOSE = {"rtol": 0.0, "atol": 1e-4}  # nats, float32: sums in another order, nothing else
TASK = "pick up the blue cube"
KEY = "observation.images.front"
# Pixels of a whole video at most and at least. Published Qwen3-VL models: 4096 and 25165824.
PIXELS = {"steady": (4096, 25165824), "growing": (131072, 786432), "shrinking": (4096, 8 * 64 * 96)}


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """The same tiny Qwen3-VL with three budgets of pixels for a video."""
    base = tiny("qwen3_vl", tmp_path_factory.getbasetemp() / "tiny")
    folders = {}
    for name, (least, most) in PIXELS.items():
        folders[name] = tmp_path_factory.mktemp("topreward") / name
        shutil.copytree(base, folders[name])
        processor = transformers.AutoProcessor.from_pretrained(base)
        processor.video_processor.size = {"shortest_edge": least, "longest_edge": most}
        processor.save_pretrained(folders[name])
    return folders


@cache
def judge_of(folder: Path, **changes) -> TOPRewardJudge:
    return TOPRewardJudge(TOPRewardJudgeConfig(path=str(folder), **changes))


def trajectory(number: int, frames: int, instruction: str = TASK, size=(64, 64), **changes) -> Trajectory:
    pictures = np.random.default_rng(number).integers(0, 256, (frames, *size, 3), dtype=np.uint8)
    pictures.setflags(write=False)  # as the memory map of a dataset
    values = {
        "episode_id": f"e{number}",
        "instruction": instruction,
        "images": {"front": pictures},
        "state": np.zeros((frames, 1), np.float32),
        "actions": np.zeros((frames - 1, 1), np.float32),
        "controller": np.full(frames - 1, Controller.POLICY, np.int8),
        "outcome": Outcome.SUCCESS,
        "fps": 10.0,
    }
    return Trajectory(**(values | changes))


@cache
def lerobots_parts(folder: Path, **changes) -> tuple[TOPRewardModel, TOPRewardEncoderProcessorStep]:
    config = TOPRewardConfig(vlm_name=str(folder), device="cpu", torch_dtype="float32", image_key=KEY, **changes)
    encoder = TOPRewardEncoderProcessorStep(
        vlm_name=config.vlm_name,
        image_key=config.image_key,
        max_frames=None,
        fps=config.fps,
        prompt_prefix=config.prompt_prefix,
        prompt_suffix_template=config.prompt_suffix_template,
        add_chat_template=config.add_chat_template,
        max_length=config.max_input_length,
    )
    return TOPRewardModel(config).eval(), encoder


def floats(episode: Trajectory) -> torch.Tensor:
    """Frames as lerobot's dataset gives them."""
    return torch.from_numpy(episode.images["front"].copy()).permute(0, 3, 1, 2).float() / 255


def lerobots(folder: Path, episode: Trajectory, lengths=None, **changes) -> np.ndarray:
    """lerobot's reward of each prefix, one call each."""
    model, encoder = lerobots_parts(folder, **changes)
    frames = floats(episode)
    rewards = []
    for length in lengths or range(1, len(frames) + 1):
        encoded = encoder(
            {
                TransitionKey.OBSERVATION: {KEY: frames[:length][None]},
                TransitionKey.COMPLEMENTARY_DATA: {"task": episode.instruction},
            }
        )
        rewards.append(model.compute_reward(encoded[TransitionKey.OBSERVATION]).item())
    return np.array(rewards)


def lerobots_curve(folder: Path, episode: Trajectory, num_samples: int | None, **changes) -> np.ndarray:
    """What lerobot's labelling script writes for an episode."""
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)
    from lerobot.rewards.topreward.compute_rabc_weights import compute_instruction_rewards_for_prefixes

    model, encoder = lerobots_parts(folder, **changes)
    frames = [{KEY: frame} for frame in floats(episode)]
    return compute_instruction_rewards_for_prefixes(
        model, encoder, frames, 0, len(frames), episode.instruction, KEY, num_samples, "cpu"
    )


# --- the same numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", range(1, 10))
def test_videos_of_odd_and_even_length_score_as_in_lerobot(models, frames):
    # 1: no group of two frames at all; odd: the last frame twice, with its own time stamp
    episode = trajectory(frames, max(2, frames))
    judge = judge_of(models["steady"])
    text = read_text(judge.encoder, judge.model.config, TASK)
    found = judge.passes.log_probs(episode.images["front"][:frames], text, range(1, frames + 1))
    expected = lerobots(models["steady"], episode, range(1, frames + 1))
    np.testing.assert_allclose(found, expected, **CLOSE)
    if frames > 4:
        assert expected.std() > 0.05  # equal numbers would mean little if all prefixes scored alike


@pytest.mark.parametrize(("budget", "size"), [("growing", (64, 64)), ("shrinking", (64, 64)), ("shrinking", (70, 100))])
def test_prefixes_that_are_resized_differently(models, budget, size):
    # "growing": few frames are enlarged to fill the budget; "shrinking": from 13 frames of 64 x 64 on, too many pixels
    episode = trajectory(20, 17, size=size)
    judge = judge_of(models[budget])
    sizes = lengths_by_size(judge.passes.processor, range(1, 18), size)
    assert len(sizes) > 1
    assert sorted(length for group in sizes.values() for length in group) == list(range(1, 18))
    np.testing.assert_allclose(judge.log_probs(episode)[1], lerobots(models[budget], episode), **CLOSE)


@pytest.mark.parametrize("together", [1, 90, 100_000])
def test_the_size_of_a_pass_changes_nothing(models, together):
    episode = trajectory(21, 11)
    found = judge_of(models["steady"], tokens_together=together).log_probs(episode)[1]
    np.testing.assert_allclose(found, lerobots(models["steady"], episode), **CLOSE)


def test_nothing_drifts_along_a_long_episode(models):
    # The prefix caches of others drift by up to 1.1 nats; here the last of 60 prefixes is as exact as the first.
    episode = trajectory(22, 60)
    lengths = [1, 2, 39, 40, 59, 60]
    found = judge_of(models["steady"]).log_probs(episode)[1][np.array(lengths) - 1]
    np.testing.assert_allclose(found, lerobots(models["steady"], episode, lengths), **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"add_chat_template": True},
        {"fps": 10.0},
        {"prompt_prefix": "A robot. ", "prompt_suffix_template": "Is {instruction} done? True"},
    ],
)
def test_other_prompts(models, changes):
    episode = trajectory(23, 5)
    found = judge_of(models["steady"], **changes).log_probs(episode)[1]
    np.testing.assert_allclose(found, lerobots(models["steady"], episode, **changes), **CLOSE)


@pytest.mark.parametrize(("frames", "num_samples"), [(13, 5), (12, 4), (6, 6), (9, 0)])
def test_anchors_and_curves_are_those_of_lerobots_script(models, frames, num_samples):
    episode = trajectory(24, frames)
    signal = judge_of(models["steady"], num_samples=num_samples, normalise="episode").score([episode])[0]
    np.testing.assert_allclose(
        signal.progress, lerobots_curve(models["steady"], episode, num_samples or None), rtol=0, atol=1e-3
    )
    scored = np.isfinite(signal.extra["log_prob"])
    assert scored.sum() == (num_samples or frames)
    assert scored[[0, -1]].all()


def test_an_episode_without_an_instruction_gets_lerobots_default(models):
    episode, named = trajectory(25, 4, ""), trajectory(25, 4, "perform the task")
    judge = judge_of(models["steady"])
    np.testing.assert_array_equal(judge.log_probs(episode)[1], judge.log_probs(named)[1])


# --- the same pictures and tokens ---------------------------------------------------------------------


def test_floats_of_a_dataset_come_back_as_the_bytes_they_were():
    # lerobot divides by 255, multiplies by 255 in float32 and truncates: for no byte does that lose one.
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 1, 16, 16).repeat(1, 1, 3, 1, 1)
    assert torch.equal(_prepare_video_batch(every.float() / 255, max_frames=None), every)


@pytest.mark.parametrize(("frames", "size"), [(4, (64, 64)), (3, (64, 64)), (15, (70, 100)), (1, (40, 70))])
def test_pictures_are_prepared_bit_for_bit_as_in_lerobot(models, frames, size):
    _, encoder = lerobots_parts(models["shrinking"])
    processor = encoder._processor.video_processor
    episode = trajectory(26, max(2, frames), size=size)
    encoded = encoder(
        {
            TransitionKey.OBSERVATION: {KEY: floats(episode)[:frames][None]},
            TransitionKey.COMPLEMENTARY_DATA: {"task": TASK},
        }
    )[TransitionKey.OBSERVATION]
    (target,) = lengths_by_size(processor, [frames], size)
    ready = resize(processor, episode.images["front"][:frames], target)
    full = frames // 2 * 2
    clips = [clip for clip in (ready[:full], ready[full:]) if len(clip)]
    assert torch.equal(patches(processor, clips), encoded["observation.topreward.pixel_values_videos"])


def test_prompts_are_put_together_token_by_token_as_in_lerobot(models):
    model, encoder = lerobots_parts(models["steady"])
    text = read_text(encoder, model.model.config, TASK)
    for frames in (1, 2, 7, 8):
        encoded = encoder(
            {
                TransitionKey.OBSERVATION: {KEY: torch.zeros(1, frames, 3, 64, 64)},
                TransitionKey.COMPLEMENTARY_DATA: {"task": TASK},
            }
        )[TransitionKey.OBSERVATION]
        assert text.prompt(frames, 4) == encoded["observation.topreward.input_ids"][0].tolist()


def test_time_stamps_are_those_of_the_processor(models):
    processor = lerobots_parts(models["steady"])[1]._processor
    stamps = processor._calculate_timestamps(list(range(7)), 3.0, 2)  # groups 0 1, 2 3, 4 5, 6 6
    assert stamps == [timestamp(0, 2, 3.0), timestamp(2, 2, 3.0), timestamp(4, 2, 3.0), timestamp(6, 1, 3.0)]


def test_tokens_that_cannot_be_shared_are_noticed(models, monkeypatch):
    judge = judge_of(models["steady"])
    monkeypatch.setattr(topreward_text, "timestamp", lambda *_: 99.0)
    with pytest.raises(RewardError, match="no tokens in common"):
        read_text(judge.encoder, judge.model.config, TASK)


# --- linear, and bounded ------------------------------------------------------------------------------


def test_work_grows_with_the_frames_and_not_with_their_square(models):
    judge = TOPRewardJudge(TOPRewardJudgeConfig(path=str(models["steady"]), tokens_together=200))
    passes = []
    judge.model.model.language_model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    work = []
    for frames in (20, 40, 60):
        judge.passes.tokens = judge.passes.pictures = 0
        judge.log_probs(trajectory(27, frames))
        work.append((judge.passes.tokens, judge.passes.pictures))
    # half the frames close a group, the other half are a group of their own for one prefix; lerobot encodes 110, 420
    # and 930 groups: the sum over n of ceil(n / 2)
    assert [pictures for _, pictures in work] == [20, 40, 60]
    # time stamps grow from "<9.5 seconds>" to "<29.5 seconds>" by a token or two, everything else is equal
    first, second = work[1][0] - work[0][0], work[2][0] - work[1][0]
    assert abs(second - first) < 0.02 * first
    assert sum(passes) == sum(tokens for tokens, _ in work)
    assert max(passes) <= 200  # however long the episode is


# --- progress -----------------------------------------------------------------------------------------


def test_probabilities_can_be_compared_and_stretched_ones_cannot(models):
    # exp(log p) is the probability itself; stretched, every episode has a 0 and a 1, however it went.
    episodes = [trajectory(28, 6), trajectory(29, 5, "put the red cube on the green pad")]
    plain = judge_of(models["steady"])
    assert plain.config.normalise == "probability"
    for signal, other in zip(
        plain.score(episodes), judge_of(models["steady"], normalise="episode").score(episodes), strict=True
    ):
        np.testing.assert_allclose(signal.progress, np.exp(signal.extra["log_prob"]), rtol=1e-5)
        np.testing.assert_array_equal(signal.extra["log_prob"], other.extra["log_prob"])
        assert (other.progress.min(), other.progress.max()) == (0.0, 1.0)
        assert signal.progress.max() < 1.0
        assert signal.success_prob is None


def test_stretching_and_interpolating():
    assert stretched(np.array([-3.0, -1.0, -2.0])).tolist() == [0.0, 1.0, 0.5]
    assert stretched(np.array([-2.0, -2.0])).tolist() == [1.0, 1.0]  # as in lerobot
    assert anchors(7, 3).tolist() == [1, 4, 7]
    assert anchors(3, 5).tolist() == [1, 2, 3]
    assert anchors(3, 0).tolist() == [1, 2, 3]
    assert curve(np.array([1, 3, 4]), np.array([0.0, 1.0, 0.0])).tolist() == [0.0, 0.5, 1.0, 0.0]


# --- lerobot's folders --------------------------------------------------------------------------------


def lerobot_folder(tmp_path: Path, vlm: Path, **changes) -> Path:
    TOPRewardConfig(vlm_name=str(vlm), device="cpu", image_key=KEY, **changes).save_pretrained(tmp_path)
    return tmp_path


def test_a_lerobot_folder_gives_lerobots_labels(models, tmp_path):
    folder = lerobot_folder(tmp_path, models["steady"], fps=4.0)
    judge = LeRobotTOPRewardJudge(LeRobotTOPRewardConfig(path=str(folder)))
    episode = trajectory(30, 7)
    signal = judge.score([episode])[0]
    np.testing.assert_allclose(
        signal.progress, lerobots_curve(models["steady"], episode, None, fps=4.0), rtol=0, atol=1e-3
    )
    np.testing.assert_allclose(signal.extra["log_prob"], lerobots(models["steady"], episode, fps=4.0), **CLOSE)
    assert judge.config.dtype == "fp32"  # "auto": what the model was saved in
    assert judge.provenance()["normalise"] == "episode"


def test_a_threshold_of_lerobot_becomes_success(models, tmp_path):
    episode = trajectory(31, 8)
    threshold = float(np.median(lerobots(models["steady"], episode)))
    folder = lerobot_folder(tmp_path, models["steady"], success_threshold=threshold)
    signal = LeRobotTOPRewardJudge(LeRobotTOPRewardConfig(path=str(folder))).score([episode])[0]
    theirs = lerobots_curve(models["steady"], episode, None, success_threshold=threshold)
    assert set(theirs) == {0.0, 1.0}
    np.testing.assert_array_equal(signal.progress, theirs)
    np.testing.assert_array_equal(signal.success_prob, theirs)
    np.testing.assert_array_equal(signal.extra["log_prob"] > threshold, theirs > 0)


# --- folders and mistakes -----------------------------------------------------------------------------


def test_saved_and_described_judges_score_alike(models, tmp_path):
    episode = trajectory(32, 5)
    theirs = lerobot_folder(tmp_path / "lerobot", models["steady"])
    given = LeRobotTOPRewardConfig(path=str(theirs), num_samples=3)
    for judge, text in (
        (judge_of(models["steady"], num_samples=3), f"type: topreward\npath: {models['steady']}\nnum_samples: 3\n"),
        (LeRobotTOPRewardJudge(given), f"type: lerobot_topreward\npath: {theirs}\nnum_samples: 3\n"),
    ):
        assert isinstance(judge, Judge)
        judge.save(tmp_path / judge.TYPE)
        (tmp_path / "judge.yaml").write_text(text)
        expected = judge.score([episode])[0]
        for other in (load_judge(tmp_path / judge.TYPE), load_judge(tmp_path / "judge.yaml")):
            assert type(other) is type(judge)
            signal = other.score([episode])[0]
            assert signal.model_id == expected.model_id
            np.testing.assert_array_equal(signal.progress, expected.progress)
            np.testing.assert_array_equal(signal.extra["log_prob"], expected.extra["log_prob"])
        facts = judge.provenance()
        assert facts["prefixes"].startswith("3 an episode")
        assert "{instruction}" in facts["prompt"]
        assert all(isinstance(value, str) for value in facts.values())


def test_the_id_says_what_decides_the_scores(models):
    same = [judge_of(models["steady"]).model_id, judge_of(models["steady"], tokens_together=1).model_id]
    assert same[0] == same[1]
    assert same[0].startswith("topreward@")
    options = ({"normalise": "episode"}, {"num_samples": 3}, {"fps": 10.0}, {"add_chat_template": True})
    assert len({same[0], *(judge_of(models["steady"], **changes).model_id for changes in options)}) == 5


def test_a_model_that_changed_is_noticed(models, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(models["steady"], copy)
    TOPRewardJudge(TOPRewardJudgeConfig(path=str(copy))).save(tmp_path / "judge")
    facts = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(facts | {"note": "another"}))
    with pytest.raises(DataError, match="its models are now those of"):
        TOPRewardJudge.load(tmp_path / "judge")
    (tmp_path / "judge" / "config.json").write_text('{"type": "topreward"}')
    with pytest.raises(DataError, match="damaged judge"):
        TOPRewardJudge.load(tmp_path / "judge")
    with pytest.raises(DataError, match="not a judge folder"):
        TOPRewardJudge.load(tmp_path / "nothing")


def test_an_episode_that_cannot_be_scored_is_named(models):
    judge = judge_of(models["steady"])
    pictures = trajectory(33, 3).images["front"]
    two = trajectory(33, 3, images={"front": pictures, "wrist": pictures})
    with pytest.raises(RewardError, match=r"'e33' has several cameras; set camera: to one of front, wrist"):
        judge.score([two])
    with pytest.raises(RewardError, match=r"'e33' has no camera 'top'; set camera: to one of front, wrist"):
        judge_of(models["steady"], camera="top").score([two])
    with pytest.raises(RewardError, match=r"'e34': height:16 or width:16 must be larger than factor:32"):
        judge.score([trajectory(34, 3, size=(16, 16))])
    with pytest.raises(RewardError, match=r"'e35': 9 frames are \d+ tokens, more than max_input_length 100"):
        judge_of(models["steady"], max_input_length=100).score([trajectory(35, 9)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/no/such/folder"}, "no such model folder"),
        ({"path": ""}, "path is empty"),
        ({"path": "nobody/nothing-vl"}, "not in the local cache"),
        ({"path": "x", "normalise": "none"}, "must be probability or episode"),
        ({"path": "x", "attention": "flash_attention_2"}, "sdpa or eager"),
        ({"path": "x", "num_samples": 1}, "at least 2"),
        ({"path": "x", "fps": 0.0}, "fps must be positive"),
        ({"path": "x", "tokens_together": -1}, "must be positive"),
        ({"path": "x", "prompt_suffix_template": "done? True"}, "must contain {instruction}"),
        ({"path": "x", "num_sample": 3}, "did you mean 'num_samples'"),
    ],
)
def test_wrong_options_are_one_clear_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        TOPRewardJudge.from_config(options)
    assert "\n" not in str(error.value)


def test_models_of_another_kind(models, tmp_path, tmp_path_factory):
    other = tiny("qwen2_5_vl", tmp_path_factory.getbasetemp() / "tiny")
    with pytest.raises(ConfigError, match="qwen2_5_vl model; TOPReward needs a Qwen3-VL"):
        TOPRewardJudge(TOPRewardJudgeConfig(path=str(other)))
    with pytest.raises(DataError, match=r"not a topreward of lerobot, config\.json says type None"):
        LeRobotTOPRewardJudge.from_config({"path": str(models["steady"])})
    gone = lerobot_folder(tmp_path, models["steady"].parent / "gone")
    with pytest.raises(ConfigError, match="no such model folder"):
        LeRobotTOPRewardJudge.from_config({"path": str(gone)})
    bad = lerobot_folder(tmp_path / "bad", models["steady"], torch_dtype="float8_e5m2")
    with pytest.raises(ConfigError, match="torch_dtype 'float8_e5m2' cannot be used"):
        LeRobotTOPRewardJudge.from_config({"path": str(bad)})
