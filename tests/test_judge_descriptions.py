"""The zero-shot files in configs/judges: each is understood, complete, and makes a judge that scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from data_sample import episode
from tiny_models import tiny

from reward_models.registry import TYPES, Judge, load_judge
from reward_models.score import score

FOLDER = Path(__file__).parents[1] / "configs" / "judges"
MODELS = {"gvl": "qwen3_vl", "rating": "qwen3_vl", "topreward": "qwen3_vl", "similarity": "clip"}
ON_A_CPU = {"device": "cpu", "dtype": "fp32", "attention": "sdpa"}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def described(name: str, models: Path) -> dict[str, Any]:
    """The file with a tiny model in the place of the real one."""
    facts = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    known = {key: value for key, value in ON_A_CPU.items() if key in facts}
    return facts | known | {"path": str(tiny(MODELS[name], models))}


def test_every_file_names_a_known_type() -> None:
    for path in sorted(FOLDER.glob("*.yaml")):
        assert yaml.safe_load(path.read_text())["type"] in TYPES, path


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_file_makes_a_judge(name: str, models: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(described(name, models)))
    judge = load_judge(file)
    assert isinstance(judge, Judge)
    made = episode(0, 6, cameras=("front",))
    (signal,) = score(judge, [made])
    assert signal.model_id == judge.model_id
    assert np.ptp(signal.progress) > 0
    facts = judge.provenance()
    assert all(isinstance(value, str) for value in facts.values())
    judge.save(tmp_path / "judge")
    np.testing.assert_array_equal(score(load_judge(tmp_path / "judge"), [made])[0].progress, signal.progress)


def test_the_ensembles_members_are_files_here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = yaml.safe_load((FOLDER / "ensemble.yaml").read_text())
    for member in facts["members"]:
        assert (FOLDER.parents[1] / member).is_file()
        copy = tmp_path / member
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(yaml.safe_dump(described(copy.stem, models)))
    (tmp_path / "ensemble.yaml").write_text(yaml.safe_dump(facts))
    monkeypatch.chdir(tmp_path)
    judge = load_judge("ensemble.yaml")
    one, other = judge.members
    assert one.asker.model is other.asker.model  # held once
    made = episode(0, 6, cameras=("front",))
    (signal,) = score(judge, [made])
    parts = np.stack([member.score([made])[0].progress for member in judge.members])
    np.testing.assert_allclose(signal.progress, np.maximum(parts.mean(0) - parts.std(0), 0), atol=1e-6)
