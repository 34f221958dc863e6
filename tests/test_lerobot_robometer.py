"""RobometerJudge beside lerobot's own Robometer: the same numbers, each frame encoded once."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.configs.rewards import RewardModelConfig
from lerobot.lerobot_types import TransitionKey
from lerobot.rewards.robometer import RobometerConfig, RobometerRewardModel
from lerobot.rewards.robometer.processor_robometer import RobometerEncoderProcessorStep, _video_to_numpy
from tiny_models import tiny

from reward_models import robometer_frames
from reward_models.lerobot_robometer import RobometerJudge, RobometerJudgeConfig
from reward_models.prefix_cache import extend, stack
from reward_models.registry import Judge, load_judge
from reward_models.robometer_frames import FrameFeatures, prepare
from reward_models.robometer_pass import batches
from reward_models.robometer_rows import frame_rows, prefix_tree
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import Controller, Outcome, Trajectory

# What lerobot's encoder passes on, transformers remarks upon; the judge keeps quiet, the reference here does not.
pytestmark = pytest.mark.filterwarnings("ignore:`max_length` is ignored")
CLOSE = {"rtol": 0.0, "atol": 1e-5}  # float32: sums in another order, nothing else


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A lerobot Robometer folder on a tiny Qwen3-VL, with heads loud enough that pictures matter."""
    base = tiny("qwen3_vl", tmp_path_factory.getbasetemp() / "tiny")
    config = RobometerConfig(
        pretrained_path=None,
        device="cpu",
        base_model_id=str(base),
        torch_dtype="float32",
        image_key="observation.images.front",
    )
    torch.manual_seed(1)
    model = RobometerRewardModel(config)
    with torch.no_grad():
        for head in (model.progress_head, model.success_head, model.frame_pool_attn):
            for parameter in (p for p in head.parameters() if p.ndim == 2):
                parameter.mul_(8.0)
    folder = tmp_path_factory.mktemp("robometer") / "checkpoint"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def judge(checkpoint) -> RobometerJudge:
    return RobometerJudge(RobometerJudgeConfig(path=str(checkpoint)))


def trajectory(number: int, frames: int, instruction: str = "put the red cube", size=(64, 64), **changes) -> Trajectory:
    rng = np.random.default_rng(number)
    pictures = rng.integers(0, 256, (frames, *size, 3), dtype=np.uint8)
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
def lerobots_model(folder: Path) -> RobometerRewardModel:
    config = RewardModelConfig.from_pretrained(folder)
    config.pretrained_path, config.device = str(folder), "cpu"
    return RobometerRewardModel.from_pretrained(str(folder), config=config)


def lerobots(folder: Path, episode: Trajectory, looked_at: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Progress and success as lerobot's labelling script computes them: its model, encoder, sampling and batches."""
    model = lerobots_model(folder)
    config = model.config
    encoder = RobometerEncoderProcessorStep(
        base_model_id=config.base_model_id,
        image_key=config.image_key,
        max_frames=looked_at,
        use_multi_image=config.use_multi_image,
        use_per_frame_progress_token=config.use_per_frame_progress_token,
    )
    floats = (
        torch.from_numpy(episode.images["front"].copy()).permute(0, 3, 1, 2).float() / 255
    )  # as its dataset gives them
    rows = [np.linspace(0, t, looked_at).round().astype(np.int64) for t in range(len(floats))]
    progress, success = [], []
    for first in range(0, len(rows), 32):
        frames = torch.stack([floats[row] for row in rows[first : first + 32]])
        encoded = encoder(
            {
                TransitionKey.OBSERVATION: {config.image_key: frames},
                TransitionKey.COMPLEMENTARY_DATA: {"task": episode.instruction},
            }
        )[TransitionKey.OBSERVATION]
        progress.append(model.compute_reward(dict(encoded)))
        inputs = {name.removeprefix("observation.robometer."): v for name, v in encoded.items() if "robometer" in name}
        with torch.no_grad():
            success.append(model._compute_rbm_logits(inputs)[1][:, -1].sigmoid())
    return torch.cat(progress).numpy(), torch.cat(success).numpy()


# --- the same numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_episodes_of_all_kinds_score_as_in_lerobot(checkpoint, batch_size):
    # Long and short prompts in one batch (padded in front), early rows that repeat frames, a size that is resized.
    episodes = [
        trajectory(0, 2),
        trajectory(1, 24, "pick up the blue cube and place it in the bowl"),
        trajectory(2, 9, "put"),
        trajectory(3, 5, "put", size=(70, 100)),
    ]
    judge = RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), batch_size=batch_size))
    for episode, signal in zip(episodes, judge.score(episodes), strict=True):
        progress, success = lerobots(checkpoint, episode)
        np.testing.assert_allclose(signal.progress, progress, **CLOSE)
        np.testing.assert_allclose(signal.success_prob, success, **CLOSE)
        assert signal.episode_id == episode.episode_id
        if len(progress) > 8:  # equal numbers would mean little if all frames scored alike
            assert progress.std() > 0.005
            assert success.std() > 0.005


@pytest.mark.parametrize("looked_at", [2, 6])
def test_other_numbers_of_pictures(checkpoint, looked_at):
    episode = trajectory(4, 12)
    judge = RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), num_frames=looked_at))
    np.testing.assert_allclose(judge.score([episode])[0].progress, lerobots(checkpoint, episode, looked_at)[0], **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_per_frame_progress_token": False, "frame_pooling": "mean"},
        {"use_per_frame_progress_token": False, "frame_pooling": "boundary"},
        {"use_per_frame_progress_token": False, "frame_pooling": "attention"},
        {"use_per_frame_progress_token": False, "use_multi_image": False},
    ],
)
def test_other_ways_to_read_the_frames(checkpoint, tmp_path, changes):
    folder = tmp_path / "changed"
    shutil.copytree(checkpoint, folder)
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | changes))
    # the video mode wants pictures of at least 128 tokens, of which the tiny model has few positions: keep it short
    episode = trajectory(5, 7)
    signal = RobometerJudge(RobometerJudgeConfig(path=str(folder))).score([episode])[0]
    progress, success = lerobots(folder, episode)
    np.testing.assert_allclose(signal.progress, progress, **CLOSE)
    np.testing.assert_allclose(signal.success_prob, success, **CLOSE)
    assert progress.std() > 0.005


def test_a_continuous_head(checkpoint, tmp_path):
    config = RewardModelConfig.from_pretrained(checkpoint)
    config.progress_loss_type, config.pretrained_path = "l2", None
    torch.manual_seed(2)
    RobometerRewardModel(config).save_pretrained(tmp_path / "l2")
    episode = trajectory(6, 6)
    signal = RobometerJudge(RobometerJudgeConfig(path=str(tmp_path / "l2"))).score([episode])[0]
    np.testing.assert_allclose(signal.progress, lerobots(tmp_path / "l2", episode)[0], **CLOSE)


# --- the same pictures --------------------------------------------------------------------------------


def test_floats_of_a_dataset_come_back_as_the_bytes_they_were():
    # lerobot divides by 255, multiplies by 255 in float32 and truncates: for no byte does that lose one.
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, 1)
    np.testing.assert_array_equal(
        _video_to_numpy(torch.from_numpy(every).float() / 255, max_frames=None), every.transpose(0, 2, 3, 1)
    )


@pytest.mark.parametrize("size", [(64, 64), (70, 100), (32, 33)])
def test_pictures_are_prepared_bit_for_bit_as_in_lerobot(judge, size):
    frames = trajectory(7, 3, size=size).images["front"]
    encoded = judge.encoder.encode_samples([(frames, "put the red cube")])
    pixels, grid = prepare(judge.encoder._processor, frames)
    assert torch.equal(pixels, encoded["pixel_values"])
    assert encoded["image_grid_thw"].tolist() == [[1, *grid]] * 3


# --- each frame once ----------------------------------------------------------------------------------


def test_every_frame_is_encoded_once_and_common_beginnings_are_run_once(checkpoint):
    judge = RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), batch_size=100))
    patches = []
    judge.passes.model.visual.register_forward_pre_hook(lambda _, args: patches.append(len(args[0])))
    judge.score([trajectory(8, 30)])
    assert sum(patches) == 30 * 16  # 64 x 64 pixels are 4 x 4 patches
    # lerobot runs the prompt 30 times; we run the instruction and frame 0 once, and then at most the pieces of
    # 11 second, 30 third and 30 fourth pictures (round(t / 3) takes 11 values for t below 30)
    prompt = judge.passes.prompt("put the red cube", (64, 64), 4)
    first, second, third, fourth = (prompt.piece(n).stop - prompt.piece(n).start for n in range(4))
    assert judge.passes.tokens <= first + 11 * second + 30 * third + 30 * fourth
    assert judge.passes.tokens < 0.4 * 30 * len(prompt.ids)


def test_features_that_were_dropped_are_encoded_again(judge, monkeypatch):
    monkeypatch.setattr(robometer_frames, "CHUNK_PIXELS", 2 * 64 * 64)  # two frames at a time
    frames = trajectory(9, 12).images["front"]
    plenty = FrameFeatures(judge.passes.model, judge.encoder._processor, frames)
    scarce = FrameFeatures(judge.passes.model, judge.encoder._processor, frames, keep_bytes=1)
    with torch.inference_mode():
        for index in ([0, 3, 5], [0, 4, 5], [11, 11, 2]):
            torch.testing.assert_close(scarce.take(np.array(index)), plenty.take(np.array(index)), rtol=0, atol=1e-5)
    assert plenty.encoded == 6  # 0 3 5, 4, 2 11
    assert scarce.encoded == 7  # 0 3 5, then 5 was the one kept: 0 4, then 2 11
    assert list(scarce._kept) == [11]
    some = FrameFeatures(judge.passes.model, judge.encoder._processor, frames, keep_bytes=2 * 2 * 4 * 64 * 4)
    with torch.inference_mode():  # room for two frames of 2 layers, 4 tokens, 64 numbers of 4 bytes
        for index in ([0, 1], [0], [2]):
            some.take(np.array(index))
    assert list(some._kept) == [0, 2]  # 1 was the longest unused


def test_rows_are_those_of_lerobots_script():
    # round(t k / 3): for t = 5 the thirds 1.67 and 3.33 round to 2 and 3; half is rounded to even
    assert frame_rows(6, 4)[5].tolist() == [0, 2, 3, 5]
    assert frame_rows(6, 3)[5].tolist() == [0, 2, 5]
    assert frame_rows(1, 4).tolist() == [[0, 0, 0, 0]]


def test_the_tree_holds_every_row_and_no_prompt_twice():
    episode = np.array([0] * 12 + [1] * 7)
    rows = np.concatenate([frame_rows(12, 4), frame_rows(7, 4)])
    levels, node = prefix_tree(episode, rows)
    for row, e, leaf in zip(rows, episode, node, strict=True):
        walked = []
        for level in reversed(levels):
            assert level.episode[leaf] == e
            walked.append(level.frame[leaf])
            leaf = level.parent[leaf]
        assert (leaf, *reversed(walked)) == (e, *row[1:])
    assert [len(level.frame) for level in levels] == [
        len(np.unique(np.c_[episode, rows[:, 1 : depth + 1]], axis=0)) for depth in (1, 2, 3)
    ]


def test_batches_go_across_episodes_but_not_across_sizes(judge):
    episodes = [trajectory(0, 5), trajectory(1, 6, "put"), trajectory(2, 3, size=(96, 64))]
    found = [
        [(batch.episodes[e].number, int(t)) for e, t in zip(batch.episode, batch.frame, strict=True)]
        for batch in batches(judge._episodes(episodes), 4)
    ]
    assert [len(batch) for batch in found] == [4, 4, 3, 3]  # 11 rows of one size, then 3 of another
    assert [row for batch in found for row in batch] == [
        (n, t) for n, count in enumerate((5, 6, 3)) for t in range(count)
    ]


def test_a_text_run_in_pieces_is_the_text_run_at_once(judge):
    # Two rows of 5 and 3 known tokens, continued by 4: the padded batch equals each row in one pass.
    language = judge.passes.model.language_model
    torch.manual_seed(3)
    embeds = [torch.randn(1, 9, 64), torch.randn(1, 7, 64)]
    where = [torch.arange(row.shape[1]).expand(3, 1, -1) for row in embeds]
    with torch.inference_mode():
        whole = [
            language(inputs_embeds=e, position_ids=p).last_hidden_state[:, -4:]
            for e, p in zip(embeds, where, strict=True)
        ]
        begun = [extend(language, e[:, :-4], p[..., :-4])[1] for e, p in zip(embeds, where, strict=True)]
        hidden, after = extend(
            language,
            torch.cat([e[:, -4:] for e in embeds]),
            torch.cat([p[..., -4:] for p in where], dim=1),
            stack(begun),
        )
    torch.testing.assert_close(hidden, torch.cat(whole), rtol=0, atol=1e-5)
    assert after.valid.tolist() == [[True] * 9, [False] * 2 + [True] * 7]
    assert after.first(3).valid.tolist() == [[True] * 3, [False] * 2 + [True]]


# --- folders and mistakes -----------------------------------------------------------------------------


def test_a_saved_judge_and_a_described_one_score_alike(judge, checkpoint, tmp_path, monkeypatch):
    assert isinstance(judge, Judge)
    monkeypatch.chdir(checkpoint.parent)
    RobometerJudge(RobometerJudgeConfig(path="checkpoint")).save(tmp_path / "judge")
    monkeypatch.chdir(tmp_path)  # what was saved does not depend on the working directory
    (tmp_path / "judge.yaml").write_text(f"type: lerobot_robometer\npath: {checkpoint}\ncamera: front\n")
    episode = trajectory(10, 6)
    expected = judge.score([episode])[0]
    for other in (load_judge(tmp_path / "judge"), load_judge(tmp_path / "judge.yaml")):
        signal = other.score([episode])[0]
        assert signal.model_id == expected.model_id
        np.testing.assert_array_equal(signal.progress, expected.progress)
    facts = judge.provenance()
    assert facts["checkpoint_revision"] == judge.checkpoint.revision
    assert "linspace(0, t, 4)" in facts["frames"]
    assert "{task}" in facts["prompt"]
    assert all(isinstance(value, str) for value in facts.values())


def test_the_id_says_what_decides_the_scores(judge, checkpoint):
    def other(**changes) -> str:
        return RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), **changes)).model_id

    assert judge.model_id.startswith("robometer@")
    assert other(batch_size=3) == other(dtype="fp32") == judge.model_id
    assert len({judge.model_id, other(num_frames=6), other(camera="wrist"), other(dtype="bf16")}) == 4


def test_a_checkpoint_that_changed_is_noticed(checkpoint, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    RobometerJudge(RobometerJudgeConfig(path=str(copy))).save(tmp_path / "judge")
    facts = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(facts | {"max_frames": 16}))
    with pytest.raises(DataError, match="its models are now those of"):
        RobometerJudge.load(tmp_path / "judge")


def test_an_episode_without_the_camera_is_named(judge):
    episode = trajectory(11, 3)
    other = trajectory(12, 3, images={"wrist": episode.images["front"]})
    with pytest.raises(RewardError, match=r"episode 'e12' has no camera 'front'; it has: wrist"):
        judge.score([episode, other])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/no/such/folder"}, "no such checkpoint folder"),
        ({"path": ""}, "path is empty"),
        ({"path": "x", "num_frames": 1}, "at least 2"),
        ({"path": "x", "batch_size": 0}, "at least 1"),
        ({"path": "x", "procesor": "y"}, "procesor: unknown key; did you mean 'processor'"),
        ({"path": "nobody/nothing-robometer"}, "the hub does not give it"),
        ({}, "path"),
    ],
)
def test_wrong_options_are_one_clear_line(options, message):
    with pytest.raises(ConfigError, match=message) as error:
        RobometerJudge.from_config(options)
    assert "\n" not in str(error.value)


def test_damaged_checkpoints_are_one_clear_line(checkpoint, tmp_path):
    def opened(name: str, change) -> str:
        folder = tmp_path / name
        shutil.copytree(checkpoint, folder)
        change(folder)
        with pytest.raises((ConfigError, DataError)) as error:
            RobometerJudge(RobometerJudgeConfig(path=str(folder)))
        assert "\n" not in str(error.value)
        return str(error.value)

    def edit(**changes):
        def change(folder: Path) -> None:
            facts = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(facts | changes))

        return change

    def lose_a_parameter(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        del tensors["success_head.0.weight"]
        save_file(tensors, folder / "model.safetensors")

    assert "success_head.0.weight" in opened("lost", lose_a_parameter)
    assert "no such file" in opened("empty", lambda folder: (folder / "model.safetensors").unlink())
    assert "config.json is missing" in opened("bare", lambda folder: (folder / "config.json").unlink())
    assert "not a robometer of lerobot, config.json says type 'sarm'" in opened("sarm", edit(type="sarm"))
    assert "cannot be read" in opened("half", lambda folder: (folder / "config.json").write_text("{"))
    assert "lerobot cannot read it" in opened("bad", edit(frame_pooling="median"))
    assert "do not fit" in opened("bins", edit(progress_discrete_bins=7))
    assert "set processor:" in opened("base", edit(base_model_id=str(tmp_path / "gone")))


def test_a_judge_folder_of_another_kind(tmp_path):
    with pytest.raises(DataError, match=r"config\.json is missing"):
        RobometerJudge.load(tmp_path)
    (tmp_path / "config.json").write_text('{"type": "gvl", "options": {}, "revision": ""}')
    with pytest.raises(DataError, match="type 'gvl'"):
        RobometerJudge.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(DataError, match="damaged judge"):
        RobometerJudge.load(tmp_path)
