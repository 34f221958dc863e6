"""lerobot's reward classifier as a judge: exactly its probabilities, frames batched."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from data_sample import episode

from reward_models.lerobot_classifier import ClassifierJudge
from reward_models.registry import load_judge
from robo_rl.data import read_episodes, write_episodes
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import Trajectory

KEYS = ("observation.images.front", "observation.images.wrist")
SIZE = 128  # lerobot's pooling wants maps of 4 x 4


def long_episode(number: int, steps: int = 6) -> Trajectory:
    """The sample's episodes, four times as large."""
    small = episode(number, steps)
    return replace(small, images={c: f.repeat(4, 1).repeat(4, 2) for c, f in small.images.items()})


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)  # a page about a missing decoder
    root = tmp_path_factory.mktemp("datasets") / "classifier"
    write_episodes(root, [long_episode(0, 6), long_episode(1, 9)])
    return root


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Path]:
    """A tiny convolutional network and a tiny vision transformer."""
    base = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(0)
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, layer_type="basic"
    )
    transformers.ResNetModel(resnet).save_pretrained(base / "cnn")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    vit = transformers.ViTConfig(image_size=SIZE, patch_size=32, **sizes)
    transformers.ViTModel(vit).save_pretrained(base / "transformer")
    return {name: base / name for name in ("cnn", "transformer")}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, encoders, root):
    """A random classifier, saved as lerobot-train saves it: with its preprocessor."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata
    from lerobot.rewards.classifier.configuration_classifier import RewardClassifierConfig
    from lerobot.rewards.classifier.modeling_classifier import Classifier
    from lerobot.rewards.classifier.processor_classifier import make_classifier_processor

    made: dict[tuple, Path] = {}

    def make(kind: str, classes: int = 2) -> Path:
        if (kind, classes) not in made:
            config = RewardClassifierConfig(
                input_features={key: PolicyFeature(type=FeatureType.VISUAL, shape=(3, SIZE, SIZE)) for key in KEYS},
                num_classes=classes,
                hidden_dim=16,
                latent_dim=16,
                model_type=kind,
                model_name=str(encoders[kind]),
                device="cpu",
            )
            torch.manual_seed(1)
            model = Classifier(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(3.0 if parameter.ndim >= 2 else 1.0)
            made[kind, classes] = tmp_path_factory.mktemp(f"{kind}{classes}")
            model.save_pretrained(made[kind, classes])
            stats = LeRobotDatasetMetadata("local/x", root=root).stats
            make_classifier_processor(config, dataset_stats=stats)[0].save_pretrained(made[kind, classes])
        return made[kind, classes]

    return make


def judged_by_lerobot(folder: Path, root: Path, *, normalised: bool = True) -> np.ndarray:
    """Probabilities of every row, one at a time: (N,) or (N, classes)."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.rewards.classifier.modeling_classifier import Classifier
    from lerobot.rewards.classifier.processor_classifier import make_classifier_processor

    dataset = LeRobotDataset("local/x", root=root, video_backend="pyav")
    model = Classifier.from_pretrained(folder).eval()
    before, _ = make_classifier_processor(model.config, dataset_stats=dataset.meta.stats)
    found = []
    for row in range(len(dataset)):
        batch = {key: dataset[row][key][None] for key in KEYS}
        batch = before(batch) if normalised else batch
        with torch.no_grad():
            found.append(model.predict([batch[key] for key in KEYS]).probabilities[0])
    return torch.stack(found).numpy()


def build(folder: Path, **options) -> ClassifierJudge:
    return ClassifierJudge.from_config({"path": str(folder), **options})


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_success_is_lerobots_probability(kind, checkpoint, root):
    expected = judged_by_lerobot(checkpoint(kind), root)
    signals = build(checkpoint(kind), batch=4).score(read_episodes(root))
    found = np.concatenate([signal.success_prob for signal in signals])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.std() > 1e-3  # not a comparison of constants
    for signal in signals:
        np.testing.assert_array_equal(signal.progress, signal.success_prob)
    assert [len(signal.progress) for signal in signals] == [7, 10]


def test_more_classes_are_rewards_0_to_k_minus_1(checkpoint, root):
    expected = judged_by_lerobot(checkpoint("cnn", 3), root)
    signals = build(checkpoint("cnn", 3)).score(read_episodes(root))
    # E[reward] / 2 of rewards 0, 1, 2; the highest is success
    progress = expected @ np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(np.concatenate([s.progress for s in signals]), progress, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([s.success_prob for s in signals]), expected[:, 2], atol=1e-5)


def test_as_a_running_robot_is_rewarded(checkpoint, root):
    # lerobot's RewardClassifierProcessorStep hands over pictures as they are
    from lerobot.lerobot_types import TransitionKey
    from lerobot.processor.hil_processor import RewardClassifierProcessorStep

    folder = checkpoint("cnn")
    judge = build(folder, stats="none")
    episodes = read_episodes(root)
    found = np.concatenate([signal.success_prob for signal in judge.score(episodes)])
    np.testing.assert_allclose(found, judged_by_lerobot(folder, root, normalised=False), atol=1e-5)
    assert np.abs(found - judged_by_lerobot(folder, root)).max() > 1e-3, "the two ways differ"
    threshold = float(np.median(found))
    step = RewardClassifierProcessorStep(pretrained_path=str(folder), success_threshold=threshold)
    for frame in range(7):
        pictures = {
            f"observation.images.{c}": torch.from_numpy(f[frame : frame + 1].copy())
            for c, f in episodes[0].images.items()
        }
        pictures = {key: picture.permute(0, 3, 1, 2).float() / 255 for key, picture in pictures.items()}
        transition = {TransitionKey.OBSERVATION: pictures, TransitionKey.REWARD: 0.0, TransitionKey.INFO: {}}
        assert step(transition)[TransitionKey.REWARD] == float(found[frame] > threshold)


def test_frames_go_through_in_batches(checkpoint, monkeypatch):
    judge, sizes = build(checkpoint("cnn"), batch=4), []
    real = judge.model.predict
    monkeypatch.setattr(judge.model, "predict", lambda xs: sizes.append([len(x) for x in xs]) or real(xs))
    judge.score([long_episode(0, 6), long_episode(1, 4)])
    assert sizes == [[4, 4], [3, 3], [4, 4], [1, 1]]  # 7 and 5 frames of two cameras


def test_cameras_are_not_exchanged(checkpoint):
    one = long_episode(0)
    swapped = replace(one, images={"front": one.images["wrist"], "wrist": one.images["front"]})
    again = replace(one, images={"wrist": one.images["wrist"], "front": one.images["front"]})  # another order
    judge = build(checkpoint("cnn"))
    here, there, same = judge.score([one, swapped, again])
    assert np.abs(here.progress - there.progress).max() > 1e-4
    np.testing.assert_allclose(same.progress, here.progress, atol=1e-7)


def test_a_judge_is_kept_as_a_description(checkpoint, encoders, tmp_path):
    folder = shutil.copytree(checkpoint("cnn"), tmp_path / "classifier")
    encoder = shutil.copytree(encoders["cnn"], tmp_path / "encoder")
    judge = build(folder, encoder=str(encoder))
    judge.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == judge.model_id != build(folder, stats="none").model_id
    np.testing.assert_array_equal(
        again.score([long_episode(0)])[0].progress, judge.score([long_episode(0)])[0].progress
    )
    assert again.provenance()["encoder"] == str(encoder)
    for file in folder.glob("*preprocessor*"):  # what training normalised with is kept in the judge, too
        file.unlink()
    with pytest.raises(DataError, match="its models are now those of"):
        load_judge(tmp_path / "judge")
    file = tmp_path / "judge" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"type": "lerobot_sarm"}))
    with pytest.raises(DataError, match="holds no lerobot_classifier judge"):
        ClassifierJudge.load(tmp_path / "judge")
    file.write_text('{"type": "lerobot_classifier"}')
    with pytest.raises(DataError, match="damaged judge"):
        load_judge(tmp_path / "judge")


def test_code_of_a_stranger_is_not_run_unasked(checkpoint, encoders, tmp_path):
    folder = shutil.copytree(checkpoint("cnn"), tmp_path / "classifier")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"model_name": "someone/resnet10"}))
    with pytest.raises(ConfigError, match=r"'someone/resnet10' with code from that repository; say allow_code: true"):
        build(folder)
    with pytest.raises(ConfigError, match="no such folder of a vision model"):
        build(folder, encoder="someone/resnet10")
    assert build(folder, encoder=str(encoders["cnn"])).score([long_episode(0)])[0].progress.shape == (7,)


def test_what_does_not_fit_is_said_in_a_line(checkpoint, encoders, tmp_path):
    judge = build(checkpoint("cnn"))
    with pytest.raises(
        RewardError, match=r"episode 'e0': frames of camera 'front' are \(32, 32\), but .* \(128, 128\)"
    ):
        judge.score([episode(0)])
    with pytest.raises(DataError, match="episode 'e0': the judge needs camera 'wrist'"):
        judge.score([replace(long_episode(0), images={"front": long_episode(0).images["front"]})])
    with pytest.raises(ConfigError, match="batch must be positive"):
        build(checkpoint("cnn"), batch=0)
    with pytest.raises(ConfigError, match=r"lerobot cannot build the model \(Unsupported CNN architecture\)"):
        build(checkpoint("cnn"), encoder=str(encoders["transformer"]))
    folder = shutil.copytree(checkpoint("cnn"), tmp_path / "classifier")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | {"num_cameras": 3}))
    with pytest.raises(ConfigError, match="num_cameras=3, but names 2 pictures"):
        build(folder)
