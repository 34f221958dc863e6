"""lerobot and our datasets: it reads and trains on what we write, and we read what it writes."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_sample import SIZE, episode, nearest, picture, sample_episodes

from robo_rl.data import read_episodes, read_reward_table, write_episodes, write_reward_table
from robo_rl.data import writer as writer_module
from robo_rl.types import Controller, Outcome, RewardSignal, Trajectory


@pytest.fixture(scope="module")
def originals() -> list[Trajectory]:
    return sample_episodes()


@pytest.fixture(scope="module")
def saved(originals, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("datasets") / "saved"
    write_episodes(root, originals)
    return root


@pytest.fixture(scope="module")
def lerobot_dataset():
    """`LeRobotDataset`, without its page of traceback about a decoder that this machine lacks."""
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset


# --- lerobot reads it ---------------------------------------------------------------------------------


def test_lerobot_opens_it_and_sees_the_same(originals, saved, lerobot_dataset):
    theirs = lerobot_dataset("local/x", root=saved, video_backend="pyav", delta_timestamps={"action": [0.0, 0.1, 0.2]})
    ours = read_episodes(saved)
    assert (len(theirs), theirs.num_episodes, theirs.fps) == (32, 4, 10)
    for index in range(32):
        item = theirs[index]
        number = ours.episode_of_frame[index]
        frame = index - ours.first_frame[number]
        image = item["observation.images.wrist"].numpy().transpose(1, 2, 0) * 255
        assert np.abs(image - ours[number].images["wrist"][frame]).max() < 0.01
        assert item["task"] == originals[number].instruction
        assert bool(item["robo.final"]) == bool(ours.is_final[index])
        # two steps ahead run over the last row, where lerobot repeats it
        ahead = np.minimum(frame + np.arange(3), ours.lengths[number] - 1) + ours.first_frame[number]
        np.testing.assert_array_equal(item["action"].numpy(), ours.flat_actions[ahead])


def test_statistics_have_lerobots_form_and_are_right(originals, saved, lerobot_dataset):
    stats = lerobot_dataset("local/x", root=saved, video_backend="pyav").meta.stats
    state = np.concatenate([e.state for e in originals]).astype(np.float64)
    for name, expected in (
        ("mean", state.mean(0)),
        ("std", state.std(0)),
        ("min", state.min(0)),
        ("max", state.max(0)),
        ("q10", np.quantile(state, 0.1, axis=0)),
    ):
        np.testing.assert_allclose(stats["observation.state"][name], expected, rtol=1e-6)
    assert stats["observation.state"]["count"].tolist() == [32]
    pixels = np.concatenate([e.images["front"] for e in originals]) / 255.0
    seen = stats["observation.images.front"]
    assert seen["mean"].shape == (3, 1, 1)
    np.testing.assert_allclose(seen["mean"].ravel(), pixels.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(seen["std"].ravel(), pixels.std((0, 1, 2)), rtol=1e-6)
    assert seen["max"].ravel().tolist() == [pixels[..., c].max() for c in range(3)]
    assert seen["count"].tolist() == [32]
    # half of the pixels of a channel are not above its median
    assert (pixels[..., 0] <= seen["q50"].ravel()[0]).mean() >= 0.5
    assert (pixels[..., 0] < seen["q50"].ravel()[0]).mean() < 0.5


def test_statistics_agree_with_lerobots_own(tmp_path, lerobot_dataset):
    steps = 399
    rng = np.random.default_rng(0)
    one = episode(0, steps, images={}, state=rng.normal(size=(400, 3)).astype(np.float32))
    write_episodes(tmp_path / "data", [one])
    ours = lerobot_dataset("local/x", root=tmp_path / "data", video_backend="pyav").meta.stats["observation.state"]
    from lerobot.datasets.compute_stats import get_feature_stats

    theirs = get_feature_stats(one.state, axis=0, keepdims=False)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert ours[name].shape == values.shape
        if not name.startswith("q"):  # theirs are estimated from histograms
            np.testing.assert_allclose(ours[name], values, rtol=1e-5, atol=1e-6)


def test_lerobots_act_trains_on_it(saved, lerobot_dataset):
    import torch
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.factory import make_policy, make_pre_post_processors

    config = ACTConfig(
        chunk_size=4,
        n_action_steps=4,
        pretrained_backbone_weights=None,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        device="cpu",
        push_to_hub=False,
    )
    meta = LeRobotDatasetMetadata("local/x", root=saved)
    data = lerobot_dataset(
        "local/x", root=saved, video_backend="pyav", delta_timestamps=resolve_delta_timestamps(config, meta)
    )
    policy = make_policy(config, ds_meta=meta)
    before, _ = make_pre_post_processors(config, dataset_stats=meta.stats)
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
    loss, _ = policy.forward(before(batch))
    loss.backward()
    assert torch.isfinite(loss)
    # what it predicts is what was recorded: none of our columns has become an input or an output
    assert set(config.output_features) == {"action"}
    assert set(config.input_features) == {
        "observation.images.front",
        "observation.images.wrist",
        "observation.state",
    }


@pytest.mark.slow
def test_the_command_of_lerobot_trains_on_it(saved, tmp_path):
    command = [
        str(Path(sys.executable).with_name("lerobot-train")),
        "--dataset.repo_id=local/x",
        f"--dataset.root={saved}",
        "--dataset.video_backend=pyav",
        "--policy.type=act",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.pretrained_backbone_weights=null",
        "--policy.dim_model=32",
        "--policy.n_heads=2",
        "--steps=2",
        "--batch_size=2",
        "--num_workers=0",
        "--save_freq=2",
        f"--output_dir={tmp_path / 'out'}",
    ]
    done = subprocess.run(
        command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert list((tmp_path / "out").rglob("model.safetensors"))


def test_one_number_an_action_and_no_proprioception(tmp_path, lerobot_dataset):
    bare = episode(0, state=np.zeros((7, 0), np.float32), actions=np.linspace(-1, 1, 6, dtype=np.float32)[:, None])
    write_episodes(tmp_path / "data", [bare])
    (after,) = read_episodes(tmp_path / "data")
    assert (after.state.shape, after.actions.shape) == ((7, 0), (6, 1))
    np.testing.assert_array_equal(after.actions, bare.actions)
    item = lerobot_dataset("local/x", root=tmp_path / "data", video_backend="pyav")[2]
    assert float(item["action"]) == pytest.approx(-0.2)


def test_lerobot_reads_several_files(originals, tmp_path, monkeypatch, lerobot_dataset):
    monkeypatch.setattr(writer_module, "FILE_FRAMES", 10)
    monkeypatch.setattr(writer_module.layout, "FILES_PER_CHUNK", 1)
    write_episodes(tmp_path / "data", originals)
    episodes = read_episodes(tmp_path / "data")
    theirs = lerobot_dataset("local/x", root=tmp_path / "data", video_backend="pyav")
    for index in (0, 16, 17, 31):
        image = theirs[index]["observation.images.front"].numpy().transpose(1, 2, 0) * 255
        assert np.abs(image - episodes.gather("front", [index])[0]).max() < 0.01


def test_lerobots_editing_keeps_what_it_can(originals, saved, tmp_path, lerobot_dataset):
    from lerobot.datasets.dataset_tools import delete_episodes, merge_datasets

    whole = lerobot_dataset("local/x", root=saved, video_backend="pyav")
    delete_episodes(whole, [1], output_dir=tmp_path / "fewer", repo_id="local/fewer")
    fewer = read_episodes(tmp_path / "fewer")
    assert [len(one) for one in fewer] == [6, 8, 5]
    np.testing.assert_array_equal(fewer[1].actions, originals[2].actions)
    np.testing.assert_array_equal(fewer[1].controller, originals[2].controller)
    known = np.linspace(0, 1, 7, dtype=np.float32)  # lerobot merges only datasets with the same columns
    write_episodes(tmp_path / "more", [episode(8, true_progress=known), episode(9)])
    more = lerobot_dataset("local/more", root=tmp_path / "more", video_backend="pyav")
    merge_datasets([whole, more], output_repo_id="local/both", output_dir=tmp_path / "both")
    both = read_episodes(tmp_path / "both")
    assert [len(one) for one in both] == [6, 9, 8, 5, 6, 6]
    for before, after in zip([*originals, episode(8), episode(9)], both, strict=True):
        found = [nearest(image, list(before.images["front"])) for image in after.images["front"]]
        assert found == list(range(len(before) + 1))


# --- reward tables ------------------------------------------------------------------------------------


def test_lerobots_sample_weighting_reads_our_table(saved, tmp_path):
    import torch
    from lerobot.rewards.sarm.rabc import RABCWeights

    episodes = read_episodes(saved)
    # progress rises by 0.1 a frame in episode 0, by 0 in the others
    signals = [
        RewardSignal(
            episode_id=one.episode_id,
            model_id="judge@1",
            progress=np.arange(len(one) + 1, dtype=np.float32) * (0.1 if number == 0 else 0.0),
        )
        for number, one in enumerate(episodes)
    ]
    write_reward_table(tmp_path / "table.parquet", episodes, signals, judge={"id": "judge@1"})
    weighter = RABCWeights(tmp_path / "table.parquet", chunk_size=2, device=torch.device("cpu"))
    weights, _ = weighter.compute_batch_weights({"index": torch.tensor([0, 1, 8])})
    # frames 0 and 1 gain 0.2 > kappa: full weight; frame 8 of episode 1 gains nothing: less
    assert float(weights[0]) == pytest.approx(float(weights[1]))
    assert float(weights[0]) > 1.5 * float(weights[2])
    assert read_reward_table(tmp_path / "table.parquet", episodes)[0].progress[-1] == np.float32(0.6)


# --- datasets of others -------------------------------------------------------------------------------


FOREIGN = {
    "observation.images.top": {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": None},
}
FLAG = {"dtype": "bool", "shape": (1,), "names": None}
NUMBER = {"dtype": "float32", "shape": (1,), "names": None}


def record(cls, root: Path, lengths: tuple[int, ...], video: bool = False, **extra) -> Path:
    """Record with lerobot's own writer. `extra`: column -> (feature, function of (episode, frame, length))."""
    features = FOREIGN | {key.replace("__", "."): feature for key, (feature, _) in extra.items()}
    if video:
        features["observation.images.top"] = features["observation.images.top"] | {"dtype": "video"}
    data = cls.create("local/foreign", fps=10, features=features, root=root, use_videos=video)
    for number, length in enumerate(lengths):
        for frame in range(length):
            columns = {
                "observation.images.top": picture(number, frame, 0),
                "observation.state": np.array([number, frame, 0], np.float32),
                "action": np.array([number, frame], np.float32),
                "task": "stack",
            }
            for key, (feature, value) in extra.items():
                columns[key.replace("__", ".")] = np.array([value(number, frame, length)], dtype=feature["dtype"])
            data.add_frame(columns)
        data.save_episode()
    data.finalize()
    return root


@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
def test_a_dataset_of_lerobot_is_read(tmp_path, lerobot_dataset, video):
    episodes = read_episodes(record(lerobot_dataset, tmp_path / "foreign", (5, 4), video=video))
    # the last frame is the final observation and its action is dropped: T = 4 and 3
    assert [len(e) for e in episodes] == [4, 3]
    assert episodes.cameras == ("top",)
    theirs = lerobot_dataset("local/foreign", root=tmp_path / "foreign", video_backend="pyav")
    for number, one in enumerate(episodes):
        for frame, image in enumerate(one.images["top"]):
            same = theirs[5 * number + frame]["observation.images.top"].numpy().transpose(1, 2, 0) * 255
            assert np.abs(same - image).max() < 0.01
        candidates = [picture(n, f, 0) for n in range(2) for f in range(5)]
        found = [nearest(image, candidates) for image in one.images["top"]]
        # lerobot's video of so small a frame is too coarse to tell neighbours apart
        assert video or found == [5 * number + frame for frame in range(len(one) + 1)]
        assert one.actions[:, 1].tolist() == list(range(len(one)))
        assert one.state[-1].tolist() == [number, len(one), 0]
        assert set(one.controller) == {Controller.HUMAN}
        assert (one.outcome, one.instruction, one.reward) == (Outcome.UNKNOWN, "stack", None)
        assert one.episode_id == f"foreign-{number:06d}"


def test_a_dataset_of_lerobot_may_say_who_and_how(tmp_path, lerobot_dataset):
    root = record(
        lerobot_dataset,
        tmp_path / "foreign",
        (5, 5, 5),
        intervention=(FLAG, lambda number, frame, length: number == 1 and frame >= 2),
        next__success=(FLAG, lambda number, frame, length: number == 0 and frame == length - 1),
        next__done=(FLAG, lambda number, frame, length: number == 1 and frame == length - 1),
    )
    one, two, three = read_episodes(root)
    assert [e.outcome for e in (one, two, three)] == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT]
    assert two.controller.tolist() == [0, 0, 1, 1]
    assert set(one.controller) == {Controller.POLICY}


def test_a_sparse_reward_tells_the_outcome_and_is_not_lost(tmp_path, lerobot_dataset):
    # the only reward belongs to the last action, which is dropped: it goes to the action before
    root = record(
        lerobot_dataset,
        tmp_path / "foreign",
        (5, 5),
        next__reward=(NUMBER, lambda number, frame, length: float(number == 1 and frame == length - 1)),
    )
    lost, won = read_episodes(root)
    assert (lost.outcome, won.outcome) == (Outcome.TIMEOUT, Outcome.SUCCESS)
    assert lost.reward.tolist() == [0, 0, 0, 0]
    assert won.reward.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("value", [0.0, 0.4])
def test_a_reward_that_is_not_sparse_tells_no_outcome(tmp_path, lerobot_dataset, value):
    root = record(lerobot_dataset, tmp_path / "foreign", (4,), next__reward=(NUMBER, lambda *_: value))
    assert read_episodes(root)[0].outcome is Outcome.UNKNOWN
