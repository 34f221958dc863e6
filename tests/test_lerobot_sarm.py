"""SARM as a judge: exactly what lerobot's own script computes, with fewer pictures encoded."""

import json
import logging
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from data_sample import episode
from tiny_models import tiny

from reward_models.lerobot_sarm import SARMJudge
from reward_models.registry import load_judge
from robo_rl.data import read_episodes, write_episodes
from robo_rl.errors import ConfigError, DataError, RewardError

STEPS = (21, 9)  # actions of the two episodes: longer and shorter than a window


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return tiny("clip", tmp_path_factory.getbasetemp() / "tiny")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("datasets") / "sarm"
    write_episodes(root, [episode(number, steps) for number, steps in enumerate(STEPS)])
    # lerobot wants the stages annotated even where it only judges
    (path,) = root.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path)
    for kind, names in (("sparse", ["first", "second"]), ("dense", ["reach", "grasp", "lift"])):
        starts = list(range(len(names)))
        columns = {"names": [names] * 2, "start_frames": [starts] * 2, "end_frames": [starts] * 2}
        for column, values in columns.items():
            table = table.append_column(f"{kind}_subtask_{column}", pa.array(values))
    pq.write_table(table, path)
    return root


@pytest.fixture(scope="module")
def theirs(clip):
    """lerobot's SARM, with CLIP from our folder and without its plots and its words for augmentation."""
    stubs = {"matplotlib": {"gridspec": 0, "pyplot": 0}, "matplotlib.gridspec": {}, "matplotlib.pyplot": {}}
    patch = pytest.MonkeyPatch()
    for name, content in stubs.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        patch.setitem(sys.modules, name, module)
    from lerobot.rewards.sarm import compute_rabc_weights, processor_sarm

    for name in ("CLIPModel", "CLIPProcessor"):
        real = getattr(processor_sarm, name)
        opened = types.SimpleNamespace(from_pretrained=lambda _, real=real, **options: real.from_pretrained(clip))
        patch.setattr(processor_sarm, name, opened)
    patch.setattr(processor_sarm, "Faker", lambda: None)
    patch.setattr(processor_sarm, "require_package", lambda *_, **__: None)
    yield compute_rabc_weights
    patch.undo()


MODES = {
    "single_stage": {},
    "dense_only": {
        "num_dense_stages": 3,
        "dense_subtask_names": ["reach", "grasp", "lift"],
        "dense_temporal_proportions": [0.2, 0.3, 0.5],
    },
    "dual": {
        "num_sparse_stages": 2,
        "sparse_subtask_names": ["first", "second"],
        "sparse_temporal_proportions": [0.7, 0.3],
        "num_dense_stages": 3,
        "dense_subtask_names": ["reach", "grasp", "lift"],
        "dense_temporal_proportions": [0.2, 0.3, 0.5],
    },
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, root, theirs):
    """A random SARM of one mode, saved as lerobot-train saves it: with its preprocessor."""
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
    from lerobot.rewards.sarm.configuration_sarm import SARMConfig
    from lerobot.rewards.sarm.modeling_sarm import SARMRewardModel
    from lerobot.rewards.sarm.processor_sarm import make_sarm_pre_post_processors

    made: dict[str, Path] = {}
    meta = LeRobotDatasetMetadata("local/x", root=root)

    def make(mode: str, **changes) -> Path:
        name = mode + "".join(f"-{key}{value}" for key, value in changes.items())
        if name not in made:
            sizes = {
                "image_dim": 24,
                "text_dim": 24,
                "hidden_dim": 32,
                "num_heads": 4,
                "num_layers": 2,
                "max_state_dim": 5,
                "frame_gap": 3,
                "image_key": "observation.images.wrist",
                "device": "cpu",
            }
            config = SARMConfig(annotation_mode=mode, **(sizes | MODES[mode] | changes))
            torch.manual_seed(3)
            model = SARMRewardModel(config)
            with torch.no_grad():
                # different windows shall be judged differently, and several stages occur
                for parameter in model.parameters():
                    parameter.mul_(3.0 if parameter.ndim >= 2 else 1.0)
                for head in model.stage_model.heads.values():
                    head.weight.mul_(3.0)
                    head.bias.copy_(-head.weight.sum(1) * 0.5)
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
            processor, _ = make_sarm_pre_post_processors(config, dataset_stats=meta.stats)
            processor.save_pretrained(made[name])
        return made[name]

    return make


def judged_by_lerobot(theirs, checkpoint: Path, root: Path, out: Path, monkeypatch) -> dict[str, np.ndarray]:
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)  # a page about a missing decoder
    opened = theirs.LeRobotDataset
    monkeypatch.setattr(
        theirs, "LeRobotDataset", lambda name, download_videos=True, **options: opened(name, root=root, **options)
    )
    theirs.compute_sarm_progress(
        "local/x", str(checkpoint), str(out), head_mode="both", device="cpu", num_visualizations=0
    )
    table = pq.read_table(out)
    return {name: table[name].to_numpy() for name in table.column_names}


@pytest.mark.parametrize("mode", MODES)
def test_progress_is_that_of_lerobots_script(mode, checkpoint, theirs, clip, root, tmp_path, monkeypatch):
    folder = checkpoint(mode)
    expected = judged_by_lerobot(theirs, folder, root, tmp_path / "sarm_progress.parquet", monkeypatch)
    head = "sparse" if mode == "single_stage" else "both"
    judge = SARMJudge.from_config({"path": str(folder), "clip": str(clip), "head": head, "stats": str(root)})
    signals = judge.score(read_episodes(root))
    found = np.concatenate([signal.progress for signal in signals])
    np.testing.assert_allclose(found, expected["progress_sparse"], atol=1e-5)
    assert found.std() > 0.01  # not a comparison of constants
    if mode != "single_stage":
        dense = np.concatenate([signal.extra["progress_dense"] for signal in signals])
        np.testing.assert_allclose(dense, expected["progress_dense"], atol=1e-5)
        assert len(set(np.concatenate([s.extra["stage_dense"] for s in signals]))) > 1, "several stages occur"


def build(checkpoint: Path, clip: Path, **options) -> SARMJudge:
    return SARMJudge.from_config({"path": str(checkpoint), "clip": str(clip), **options})


def test_one_window_is_what_lerobots_processor_and_model_make_of_it(checkpoint, theirs, clip, root):
    # directly, without the script: frame 4 of episode 0, whose window of 3 x 4 frames to each side leaves the episode
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = checkpoint("dual")
    judge = build(folder, clip, head="both")
    config = judge.config
    times = [offset / 10 for offset in config.observation_delta_indices]
    keys = ("observation.images.wrist", "observation.state")
    item = LeRobotDataset("local/x", root=root, delta_timestamps=dict.fromkeys(keys, times), video_backend="pyav")[4]
    stats = json.loads((root / "meta" / "stats.json").read_text())
    stats = {key: {name: np.array(v) for name, v in values.items()} for key, values in stats.items()}
    before, _ = theirs.make_sarm_pre_post_processors(config, dataset_stats=stats)
    before.steps[3].eval()
    seen = before({**{key: item[key] for key in keys}, "task": "push the cube", "index": 4, "episode_index": 0})
    rewards, stages, sure = judge.model.calculate_rewards(
        seen["text_features"],
        seen["video_features"],
        seen["state_features"],
        seen["lengths"],
        return_all_frames=True,
        return_stages=True,
        return_confidence=True,
        head_mode="dense",
    )
    (signal,) = judge.score(read_episodes(root)[:1])
    assert signal.extra["progress_dense"][4] == pytest.approx(rewards[0, 4], abs=1e-5)
    assert signal.extra["stage_dense"][4] == stages[0, 4].argmax()
    assert signal.extra["stage_confidence_dense"][4] == pytest.approx(sure[0, 4], abs=1e-5)


def test_every_frame_is_encoded_once_and_few_at_a_time(checkpoint, clip, monkeypatch):
    judge = build(checkpoint("single_stage"), clip, clip_batch=8)
    sizes = []
    real = judge.clip.model.get_image_features
    monkeypatch.setattr(
        judge.clip.model,
        "get_image_features",
        lambda **inputs: sizes.append(len(inputs["pixel_values"])) or real(**inputs),
    )
    judge.score([episode(0, 21), episode(1, 9)])
    # 22 + 10 frames; lerobot encodes 13 for each of the 32
    assert sizes == [8, 8, 6, 8, 2]


def test_how_much_goes_together_changes_nothing(checkpoint, clip):
    together = build(checkpoint("dual"), clip).score([episode(0, 21)])[0]
    apart = build(checkpoint("dual"), clip, clip_batch=3, batch=5).score([episode(0, 21)])[0]
    np.testing.assert_allclose(apart.progress, together.progress, atol=1e-6)


def test_the_window_reaches_into_the_future(checkpoint, clip):
    # SARM is not causal: the picture 12 frames ahead counts, the one 13 ahead does not
    judge, whole = build(checkpoint("single_stage"), clip), episode(0, 40)
    before = judge.score([whole])[0].progress

    def changed(frame: int) -> np.ndarray:
        images = {camera: frames.copy() for camera, frames in whole.images.items()}
        images["wrist"][frame] = 0
        return np.flatnonzero(judge.score([replace(whole, images=images)])[0].progress != before)

    assert changed(20).tolist() == list(range(8, 33, 3))


@pytest.mark.parametrize("odd", [3])
def test_an_odd_number_of_steps_takes_the_frames_that_lerobot_takes(
    odd, checkpoint, theirs, clip, root, tmp_path, monkeypatch
):
    # then 1 + n_obs_steps frames are one more than the symmetric window, and lerobot lets the first frame of
    # rewinding fill the place
    folder = checkpoint("single_stage", n_obs_steps=odd, max_rewind_steps=2)
    expected = judged_by_lerobot(theirs, folder, root, tmp_path / "p.parquet", monkeypatch)["progress_sparse"]
    signals = build(folder, clip).score(read_episodes(root))
    np.testing.assert_allclose(np.concatenate([s.progress for s in signals]), expected, atol=1e-5)


def test_the_state_is_normalised_as_in_training_unless_told_otherwise(checkpoint, clip, root, tmp_path):
    folder, one = checkpoint("single_stage"), episode(0, 21)
    kept = build(folder, clip).score([one])[0].progress
    np.testing.assert_array_equal(build(folder, clip, stats=str(root)).score([one])[0].progress, kept)
    # (x - mean) / std by hand, and then no normalisation
    stats = json.loads((root / "meta" / "stats.json").read_text())["observation.state"]
    mean, std = (np.array(stats[name], np.float32) for name in ("mean", "std"))
    by_hand = replace(one, state=(one.state - mean) / std)
    raw = build(folder, clip, stats="none")
    np.testing.assert_allclose(raw.score([by_hand])[0].progress, kept, atol=1e-5)
    assert np.abs(raw.score([one])[0].progress - kept).max() > 1e-3
    assert raw.model_id != build(folder, clip).model_id
    bare = shutil.copytree(folder, tmp_path / "bare")
    for file in bare.glob("*preprocessor*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"no statistics of its training data.*stats: the dataset's folder"):
        build(bare, clip)
    (tmp_path / "stats.json").write_text(json.dumps({"action": {"mean": [0.0]}}))
    with pytest.raises(ConfigError, match=r"the statistics have no 'observation.state'; they have action"):
        build(folder, clip, stats=str(tmp_path / "stats.json"))


def test_a_judge_is_kept_as_a_description(checkpoint, clip, tmp_path, monkeypatch):
    folder = shutil.copytree(checkpoint("dual"), tmp_path / "sarm")
    monkeypatch.chdir(tmp_path)
    judge = build(Path("sarm"), clip, head="dense", name="ours")
    judge.save(tmp_path / "judge")
    monkeypatch.chdir("/")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == judge.model_id
    assert again.model_id.startswith("ours@")
    one = episode(0, 21)
    np.testing.assert_array_equal(again.score([one])[0].progress, judge.score([one])[0].progress)
    assert again.provenance()["head"] == "dense"
    # the same words, another model
    (folder / "model.safetensors").write_bytes((checkpoint("dual", frame_gap=2) / "model.safetensors").read_bytes())
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"frame_gap": 2}))
    with pytest.raises(DataError, match="its models are now those of ours@"):
        load_judge(tmp_path / "judge")
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="no such checkpoint folder"):
        load_judge(tmp_path / "judge")


def test_a_yaml_file_describes_a_judge(checkpoint, clip, tmp_path):
    file = tmp_path / "sarm.yaml"
    file.write_text(yaml.safe_dump({"type": "lerobot_sarm", "path": str(checkpoint("dual")), "clip": str(clip)}))
    assert load_judge(file).provenance()["window"] == "9 frames, 3 apart"
    file.write_text(file.read_text() + "clipp: x\n")
    with pytest.raises(ConfigError, match=r"sarm.yaml: .*clipp"):
        load_judge(file)


def test_a_step_of_lerobot_train_is_a_checkpoint(checkpoint, clip, tmp_path):
    shutil.copytree(checkpoint("dual"), tmp_path / "000100" / "pretrained_model")
    assert build(tmp_path / "000100", clip).model_id == build(checkpoint("dual"), clip).model_id


def test_what_cannot_be_opened_is_said_in_a_line(checkpoint, clip, tmp_path):
    folder = checkpoint("single_stage")
    for options, error, message in (
        ({"path": str(tmp_path / "none")}, ConfigError, "no such checkpoint folder"),
        ({"path": "someone/sarm"}, ConfigError, "someone/sarm: no such folder, and the hub does not give it"),
        ({"path": str(tmp_path)}, ConfigError, "config.json is missing"),
        ({"path": str(clip)}, DataError, "not a sarm of lerobot, config.json says type None"),
        ({"path": str(folder), "revision": "main"}, ConfigError, "a folder has no revision"),
        ({"path": str(folder), "head": "dense"}, ConfigError, "without a dense head"),
        ({"path": str(folder), "head": "both!"}, ConfigError, "head must be one of sparse, dense, both"),
        ({"path": str(folder), "batch": 0}, ConfigError, "must be positive"),
        ({"path": str(folder), "device": "cuda:7"}, ConfigError, "'cuda:7' is not available"),
        ({"path": str(folder), "clip": str(tmp_path / "none")}, ConfigError, "no such model folder"),
    ):
        if "cuda" in str(options.get("device")) and torch.cuda.is_available():
            continue
        with pytest.raises(error, match=message) as caught:
            SARMJudge.from_config({"clip": str(clip), **options})
        assert "\n" not in str(caught.value)


def test_a_damaged_checkpoint_is_refused(checkpoint, clip, tmp_path):
    folder = shutil.copytree(checkpoint("single_stage"), tmp_path / "sarm")
    facts = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"hidden_dim": 64}, "model.safetensors: the parameters do not fit config.json: .* of another size"),
        ({"image_dim": 512}, "its features have 24 numbers, but .* was trained with 512"),
        ({"nonsense": 1}, "lerobot cannot read it"),
    ):
        (folder / "config.json").write_text(json.dumps(facts | change))
        with pytest.raises((DataError, ConfigError), match=message):
            build(folder, clip)
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json: cannot be read"):
        build(folder, clip)
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model.safetensors: no such file"):
        build(folder, clip)


def test_an_episode_that_cannot_be_judged_is_named(checkpoint, clip):
    judge = build(checkpoint("single_stage"), clip)
    with pytest.raises(DataError, match=r"episode 'e0': the judge needs camera 'wrist'"):
        judge.score([episode(0, cameras=("front",))])
    for width in (0, 2):
        with pytest.raises(RewardError, match=rf"episode 'e0': the state has {width} numbers, but .* trained with 3"):
            judge.score([episode(0, state=np.zeros((7, width), np.float32))])
