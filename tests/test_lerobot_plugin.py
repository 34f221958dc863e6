"""Our judges inside lerobot: the same rewards as outside, labels found by row, trained by lerobot's own trainer."""

import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path

import judge_toy
import numpy as np
import pytest
import torch
from lerobot.configs.parser import load_plugin
from lerobot.configs.rewards import RewardModelConfig
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.rewards import make_reward_model, make_reward_model_config, make_reward_pre_post_processors
from torch.utils.data import default_collate

from reward_models.batches import ClipConfig
from reward_models.compact import CompactJudge, CompactJudgeConfig
from reward_models.judge import CausalJudge
from reward_models.lerobot_plugin.configuration_robo_judge import RoboJudgeConfig
from reward_models.lerobot_plugin.labels import WindowLabels
from reward_models.lerobot_plugin.modeling_robo_judge import RoboJudgeRewardModel
from reward_models.losses import judge_loss
from reward_models.registry import load_judge
from robo_rl.data import read_episodes, write_episodes
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import tokenize
from robo_rl.types import Outcome, RewardSignal

# looks back 2 * (4 - 1) = 6 frames
TINY = {"channels": 8, "dim": 16, "layers": 2, "heads": 2, "window": 4, "queries": 3, "values": 3, "map_size": 4}
KEY = "observation.images.front"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)  # a page about a missing decoder
    root = tmp_path_factory.mktemp("datasets") / "plugin"
    write_episodes(root, judge_toy.episodes(8))
    return root


@pytest.fixture(scope="module")
def meta(root) -> LeRobotDatasetMetadata:
    return LeRobotDatasetMetadata("local/toy", root=root)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A compact judge whose opinions differ from frame to frame."""
    judge = CompactJudge(CompactJudgeConfig(cameras=("front",), precision="fp32", **TINY), seed=2)
    with torch.no_grad():
        for parameter in judge.network.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(1.5)
        judge.network.map_scale.fill_(2.0)
    judge.save(tmp_path_factory.mktemp("judges") / "compact")
    return tmp_path_factory.getbasetemp() / "judges0" / "compact"


def config(**options) -> RoboJudgeConfig:
    network = CompactJudgeConfig(precision="fp32", **TINY)
    return RoboJudgeConfig(device="cpu", **({"network": network, "frames": 8} | options))


def windows(root: Path, model_config: RoboJudgeConfig, rows, *, processed: bool = True) -> dict:
    """A batch as lerobot makes it: by its dataset, its collate function, its pipeline of this model."""
    times = [offset / 10 for offset in model_config.observation_delta_indices]
    dataset = LeRobotDataset(
        "local/toy", root=root, delta_timestamps={KEY: times, "observation.state": times}, video_backend="pyav"
    )
    batch = default_collate([dataset[int(row)] for row in rows])
    before, _ = make_reward_pre_post_processors(model_config)
    return before(batch) if processed else batch


# --- rewards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["progress", "success"])
def test_the_reward_of_a_window_is_what_the_judge_says_of_its_last_frame(folder, root, output):
    # 8 frames are more than the judge looks back. The first rows are windows that are mostly padding.
    model = make_reward_model(config(judge=str(folder), reward_output=output))
    rows = [0, 1, 4, 9, 12]
    rewards = model.compute_reward(windows(root, model.config, rows))
    (signal,) = load_judge(folder).score(read_episodes(root)[:1])
    expected = signal.progress if output == "progress" else signal.success_prob
    assert expected.std() > 1e-3
    np.testing.assert_allclose(rewards.numpy(), expected[rows], atol=1e-5)


def test_without_marks_every_frame_of_a_window_is_one(folder, root):
    model = make_reward_model(config(judge=str(folder)))
    batch = {key: value for key, value in windows(root, model.config, [0]).items() if not key.endswith("_is_pad")}
    frames = (batch[KEY][0] * 255).round().byte().permute(0, 2, 3, 1).numpy()
    one = read_episodes(root)[0]
    parts = {"state": one.state[:8], "actions": one.actions[:7], "controller": one.controller[:7]}
    shown = replace(one, images={"front": frames}, true_progress=None, **parts)
    expected = load_judge(folder).score([shown])[0].progress[-1]
    assert float(model.compute_reward(batch)[0]) == pytest.approx(expected, abs=1e-5)
    with_marks = model.compute_reward(windows(root, model.config, [0]))
    assert float(with_marks[0]) != pytest.approx(expected, abs=1e-6)


def test_a_single_frame_is_a_window_of_one(folder, root):
    model = make_reward_model(config(judge=str(folder)))
    item = LeRobotDataset("local/toy", root=root, video_backend="pyav")[0]
    before, _ = make_reward_pre_post_processors(model.config)
    reward = model.compute_reward(before(dict(item)))  # lerobot's pipeline adds the dimension of the batch
    first = load_judge(folder).score(read_episodes(root)[:1])[0].progress[0]
    np.testing.assert_allclose(reward.numpy(), [first], atol=1e-5)


def test_any_judge_gives_rewards(root, tmp_path):
    described = {"backbone": {"type": "compact", "cameras": ["front"], **TINY}, "objectives": {"progress": {}}}
    judge = CausalJudge.from_config(described)
    judge.save(tmp_path / "causal")
    model = make_reward_model(config(judge=str(tmp_path / "causal"), reward_output="success"))
    expected = judge.score(read_episodes(root)[:1])[0].success_prob
    rewards = model.compute_reward(windows(root, model.config, [3, 7, 12]))
    np.testing.assert_allclose(rewards.numpy(), expected[[3, 7, 12]], atol=1e-5)
    # one frame is shown twice
    assert model.compute_reward(windows(root, model.config, [0])).shape == (1,)
    with pytest.raises(RewardError, match=r"observation.state must be \(1, 8, 'S'\), one a frame .* got \(1, 2\)"):
        model.compute_reward(windows(root, model.config, [3]) | {"observation.state": torch.zeros(1, 2)})
    assert not model.is_trainable
    with pytest.raises(ConfigError, match="only compact judges are fitted by lerobot-train"):
        model.forward(windows(root, model.config, [3]))
    model.save_pretrained(tmp_path / "kept")
    assert RoboJudgeRewardModel.from_pretrained(tmp_path / "kept").judge.model_id == judge.model_id


class Brightness:
    """A judge that says how bright the picture is, sees the state, and has no success head."""

    model_id = "brightness@1"

    def score(self, trajectories):
        return [
            RewardSignal(
                episode_id=one.episode_id,
                model_id=self.model_id,
                progress=(one.images["front"].mean((1, 2, 3)) / 255 + one.state.sum(1)).astype(np.float32),
            )
            for one in trajectories
        ]


def test_any_judge_is_shown_pictures_states_and_instructions(root):
    model = RoboJudgeRewardModel(config(), judge=Brightness())
    batch = windows(root, model.config, [3, 30])
    batch["observation.state"] = torch.arange(2 * 8 * 2.0).reshape(2, 8, 2)
    # the last of 8 states: 14 + 15, and 30 + 31
    expected = batch[KEY][:, -1].mean((1, 2, 3)) + torch.tensor([29.0, 61.0])
    torch.testing.assert_close(model.compute_reward(batch), expected, atol=1e-4, rtol=0)
    model.config.reward_output = "success"
    with pytest.raises(RewardError, match="brightness@1: this judge has no success head; use reward_output=progress"):
        model.compute_reward(batch)


def test_a_batch_that_cannot_be_judged(folder, root):
    model = make_reward_model(config(judge=str(folder)))
    batch = windows(root, model.config, [3, 4])
    with pytest.raises(RewardError, match="no picture of camera 'front'; it has wrist"):
        model.compute_reward({"observation.images.wrist": batch[KEY], "task": batch["task"]})
    with pytest.raises(RewardError, match=r"2 windows, but 3 instructions"):
        model.compute_reward(batch | {"task": ["a", "b", "c"]})
    with pytest.raises(RewardError, match=r"must be \(B, C, H, W\) or \(B, L, C, H, W\), got \(3, 32, 32\)"):
        model.compute_reward(batch | {KEY: batch[KEY][0, 0]})
    # one instruction is that of all windows
    same = model.compute_reward(batch | {"task": batch["task"][:1]})
    torch.testing.assert_close(same, model.compute_reward(batch))


# --- folders --------------------------------------------------------------------------------------------


def test_lerobots_factory_opens_our_folders_and_checkpoints(folder, root, meta, tmp_path):
    rows = [5, 20, 40]
    batch = windows(root, config(), rows)
    told = make_reward_model(config(judge=str(folder)))
    opened = make_reward_model(config(pretrained_path=str(folder)))
    expected = told.compute_reward(batch)
    torch.testing.assert_close(opened.compute_reward(batch), expected)
    opened.save_pretrained(tmp_path / "checkpoint")
    # as `--reward_model.path=` does: the configuration first, then the model
    again = RewardModelConfig.from_pretrained(tmp_path / "checkpoint")
    assert (again.type, again.frames, again.network) == ("robo_judge", 8, config().network)
    again.pretrained_path = str(tmp_path / "checkpoint")
    torch.testing.assert_close(
        make_reward_model(again, dataset_meta=meta).compute_reward(batch), expected, atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        RoboJudgeRewardModel.from_pretrained(tmp_path / "checkpoint").compute_reward(batch), expected
    )
    assert load_judge(tmp_path / "checkpoint" / "judge").model_id == load_judge(folder).model_id
    # a checkpoint is whole without the folder that it came from
    assert json.loads((tmp_path / "checkpoint" / "config.json").read_text())["judge"] == ""
    assert told.config.judge == str(folder)


def test_what_cannot_be_opened(folder, tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json: cannot be read"):
        RoboJudgeRewardModel.from_pretrained(tmp_path)
    config_of_sarm = make_reward_model_config("sarm", device="cpu")
    config_of_sarm._save_pretrained(tmp_path)
    with pytest.raises(DataError, match="a checkpoint of lerobot's sarm, not of robo_judge"):
        RoboJudgeRewardModel.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a new judge needs cameras"):
        make_reward_model(config())
    for option, message in (
        ({"reward_output": "value"}, "reward_output must be progress or success"),
        ({"frames": 0}, "frames and stride must be at least 1"),
        ({"target_rate": 0.0}, r"target_rate must lie in \(0, 1\]"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(**option)


def test_the_package_is_found_by_its_path():
    load_plugin("reward_models.lerobot_plugin")
    made = make_reward_model_config("robo_judge", device="cpu", frames=3, stride=2)
    assert made.observation_delta_indices == [-4, -2, 0]


# --- labels ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels(root) -> WindowLabels:
    return WindowLabels(root, ClipConfig(frames=8))


def test_labels_are_those_of_the_row(labels, root):
    episodes = read_episodes(root)
    # episode 0 is a success of 16 steps: its last row is 16, and row 17 begins episode 1
    assert (episodes[0].success, int(episodes.lengths[0])) == (True, 17)
    offsets = np.arange(-7, 1)
    batch = labels.clips(np.array([16, 5, 17, 19]), offsets, None)
    # progress of a success counts the steps to go: 1 - (16 - t) / n where n is the usual length, or its own if shorter
    usual = np.percentile([n - 1 for n, e in zip(episodes.lengths, episodes, strict=True) if e.success], 75)
    np.testing.assert_allclose(batch.progress[0], 1 - np.arange(7, -1, -1) / min(16, usual), atol=1e-6)
    assert batch.label[0, -1] == 1.0
    assert batch.label[0, :-1].isnan().all()
    # five steps in: frames 0 to 5, the padding before them is left out; no end, no label
    assert batch.length.tolist() == [8, 6, 1, 3]
    assert batch.rows[1, :6].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.label[1].isnan().all()
    assert batch.rows[2, 0] == 17  # a window of one frame, of the next episode
    assert batch.texts == tuple(episodes[e].instruction for e in (0, 0, 1, 1))


def test_rows_are_those_that_lerobot_shows(labels, root):
    made = config(stride=2, frames=4)
    rows = [0, 3, 17, 18, 30]
    batch = windows(root, made, rows)
    expected = labels.rows(np.array(rows), np.array(made.observation_delta_indices))
    dataset = LeRobotDataset("local/toy", root=root, video_backend="pyav")
    for window, numbers in zip(batch[KEY], expected, strict=True):
        torch.testing.assert_close(window, torch.stack([dataset[int(n)][KEY] for n in numbers]))


def test_changed_windows_stay_inside_the_window(labels):
    index, offsets = np.arange(30), np.arange(-7, 1)
    batch = labels.clips(index, offsets, np.random.default_rng(0))
    assert len(batch.texts) == 30 + round(0.3 / 0.7 * 30)  # as many copies as make 30 % of all
    shown = {int(row): set(rows) for row, rows in zip(index, labels.rows(index, offsets), strict=True)}
    for place, row in enumerate(index):
        assert set(batch.rows[place, : batch.length[place]]) <= shown[int(row)]
    wrong = batch.rows[30:]
    assert (batch.progress[30:][torch.from_numpy(wrong) >= 0].nan_to_num() == 0).all()
    for text, rows in zip(batch.texts[30:], wrong, strict=True):
        true = labels.instructions[int(labels.episode_of(rows[:1])[0])]
        assert text != true
    kept = labels.clips(index, offsets, None)
    changed = [not np.array_equal(a[:n], b[:n]) for a, b, n in zip(kept.rows, batch.rows, kept.length, strict=False)]
    assert 0.05 < np.mean(changed) < 0.6  # rewind .2, reverse .1, hold .15 of windows of at least 4 frames


def test_recordings_without_outcomes_can_be_demonstrations(tmp_path):
    root = tmp_path / "unknown"
    write_episodes(root, [replace(e, outcome=Outcome.UNKNOWN) for e in judge_toy.episodes(2)])
    with pytest.raises(
        DataError, match=re.escape("none of 2 is known to; if they are demonstrations, say --reward_model")
    ):
        WindowLabels(root, ClipConfig())
    assert WindowLabels(root, ClipConfig(), demonstrations=True).targets[0].outcome == 1.0
    with pytest.raises(DataError, match="row 999 is not in the dataset"):
        WindowLabels(root, ClipConfig(), demonstrations=True).rows(np.array([999]), np.zeros(1, int))
    with pytest.raises(DataError, match=r"info.json: labels are read from here, but it cannot be"):
        WindowLabels(tmp_path, ClipConfig())


# --- the loss -------------------------------------------------------------------------------------------


def test_the_loss_is_the_judges_loss_on_its_frames(root, meta, folder):
    # in evaluation nothing is random: frames of the dataset as windows, labels by row, the compact judge's own loss
    model = make_reward_model(config(judge=str(folder)), dataset_meta=meta).eval()
    rows = [16, 5, 40, meta.total_frames - 1]  # the last one ends an episode that failed
    loss, parts = model.forward(windows(root, model.config, rows))
    episodes, network = read_episodes(root), load_judge(folder).network.eval()
    batch = WindowLabels(root, ClipConfig(frames=8)).clips(np.array(rows), np.arange(-7, 1), None)
    images = episodes.gather("front", batch.rows.ravel())
    with torch.no_grad():
        maps = network.maps({"front": torch.from_numpy(images)}).unflatten(0, batch.rows.shape)
        outputs = network(maps, tokenize(batch.texts))
        expected, by_name = judge_loss(outputs, torch.sigmoid(outputs.success), batch, model.config.loss)
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert parts == pytest.approx({name: float(part) for name, part in by_name.items()}, rel=1e-4)
    assert all(value > 0 for value in parts.values())


def test_a_row_is_looked_at_once(root, meta, folder, monkeypatch):
    model = make_reward_model(config(judge=str(folder)), dataset_meta=meta).train()
    seen: list[torch.Tensor] = []
    real = model.network.maps
    monkeypatch.setattr(model.network, "maps", lambda frames: seen.append(frames["front"]) or real(frames))
    model.forward(windows(root, model.config, [7, 8, 9, 2]))
    (frames,) = seen
    # rows 0 to 9, in four windows of 8; lerobot's floats are the pictures' own numbers again
    np.testing.assert_array_equal(frames.numpy(), read_episodes(root).gather("front", np.arange(10)))


def test_training_is_random_only_by_torchs_generator(root, meta, folder):
    model = make_reward_model(config(judge=str(folder)), dataset_meta=meta).train()
    batch = windows(root, model.config, [13, 9, 30, 25, 50, 42])
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(model.forward(batch)[0].detach()))
    assert losses[0] == losses[1] != losses[2]


def test_the_slow_copy_follows(root, meta, folder):
    model = make_reward_model(config(judge=str(folder), target_rate=0.25), dataset_meta=meta).train()
    model.forward(windows(root, model.config, [5]))
    before = {name: p.detach().clone() for name, p in model.network.named_parameters()}
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(1.0)
    model.update()
    # a quarter of the way
    for name, parameter in model._slow[0].named_parameters():
        torch.testing.assert_close(parameter, before[name] + 0.25, atol=1e-5, rtol=1e-5)
    assert not any(name.startswith("_slow") for name, _ in model.named_parameters())


def test_training_needs_a_dataset_read_with_the_models_windows(root, meta, folder):
    model = make_reward_model(config(judge=str(folder)))
    with pytest.raises(ConfigError, match=r"pass dataset_meta=dataset.meta"):
        model.forward(windows(root, model.config, [5]))
    model = make_reward_model(config(judge=str(folder)), dataset_meta=meta)
    with pytest.raises(ConfigError, match="the batch has 2 frames, 8 are expected of 1 windows"):
        model.forward(windows(root, config(frames=2), [5]))


def test_a_new_judge_takes_the_datasets_cameras_and_is_measured_once(root, meta):
    model = make_reward_model(config(), dataset_meta=meta).train()
    assert model.network.cameras == ("front",)
    assert model.config.input_features[KEY].shape == (3, 32, 32)
    batch = windows(root, model.config, [13, 9, 30, 25])
    model.forward(batch)
    scale = model.network.map_scale.clone()
    assert scale[0] != 1.0
    maps = model.network.maps({"front": (batch[KEY].flatten(0, 1) * 255).round().byte().permute(0, 2, 3, 1)})
    # root mean square 1 on distinct rows: 13-6.., 9-2.., 30-23.. and 25-18.. share some
    rows = model._labels.rows(np.array([13, 9, 30, 25]), np.arange(-7, 1)).ravel()
    _, first = np.unique(rows, return_index=True)
    assert float(maps[first].square().mean().sqrt().detach()) == pytest.approx(1.0, abs=1e-4)
    model.forward(windows(root, model.config, [40]))
    torch.testing.assert_close(model.network.map_scale, scale)


# --- lerobot's trainer ----------------------------------------------------------------------------------


@pytest.fixture
def trainer(monkeypatch):
    """lerobot's train(), called as its command line would be; gives the losses of all steps."""
    from lerobot.scripts import lerobot_train

    root_logger = logging.getLogger()
    kept, level = list(root_logger.handlers), root_logger.level
    losses: list[float] = []
    real = RoboJudgeRewardModel.forward

    def recorded(self, batch):
        loss, parts = real(self, batch)
        losses.append(float(loss.detach()))
        return loss, parts

    monkeypatch.setattr(RoboJudgeRewardModel, "forward", recorded)

    def train(**options: object) -> list[float]:
        losses.clear()
        given = [f"--{name}={value}" for name, value in options.items()]
        monkeypatch.setattr(sys, "argv", ["lerobot-train", *given])
        lerobot_train.train()
        return list(losses)

    yield train
    root_logger.handlers[:] = kept
    root_logger.setLevel(level)


def test_lerobot_trains_a_judge_and_goes_on(trainer, root, tmp_path):
    out = tmp_path / "out"
    small = {f"reward_model.network.{name}": value for name, value in TINY.items()}
    losses = trainer(
        **{
            "reward_model.discover_packages_path": "reward_models.lerobot_plugin",
            "reward_model.type": "robo_judge",
            "reward_model.device": "cpu",
            "reward_model.frames": 8,
            "reward_model.learning_rate": 0.01,
            **{f"reward_model.clips.{change}": 0.0 for change in ("rewind", "reverse", "hold")},
            "dataset.repo_id": "local/toy",
            "dataset.root": root,
            "output_dir": out,
            "steps": 30,
            "batch_size": 8,
            "num_workers": 0,
            "log_freq": 10,
            "wandb.enable": "false",
        },
        **small,
    )
    assert len(losses) == 30
    assert np.isfinite(losses).all()
    assert np.mean(losses[-8:]) < 0.88 * np.mean(losses[:6])
    # the checkpoint opens in lerobot and here, and says the same
    checkpoint = out / "checkpoints" / "last" / "pretrained_model"
    saved = RewardModelConfig.from_pretrained(checkpoint)
    saved.pretrained_path = str(checkpoint)
    model = make_reward_model(saved)
    judge = load_judge(checkpoint / "judge")
    assert judge.trunk_ready
    rows = [0, 6, 13]
    said = judge.score(read_episodes(root)[:1])[0].progress[rows]
    np.testing.assert_allclose(model.compute_reward(windows(root, saved, rows)).numpy(), said, atol=1e-5)
    assert said.std() > 0
    # the same run, continued: from its parameters, optimiser and place in the data
    more = trainer(config_path=checkpoint / "train_config.json", resume="true", steps=33)
    assert len(more) == 3
    assert np.mean(more) < 0.9 * np.mean(losses[:6])
    assert (out / "checkpoints" / "000033" / "pretrained_model" / "judge" / "model.safetensors").exists()
