"""CompactVLA: a real lerobot policy whose loss, text and storage obey their laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from robo_rl.errors import DataError
from robo_rl.nets import tokenize
from robo_rl.policies.compact_vla import CompactVLAConfig, CompactVLAPolicy, make_compact_vla_pre_post_processors
from robo_rl.policies.compact_vla.configuration_compact_vla import features_for
from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS
from robo_rl.policies.storage import Normaliser, load_policy, measure, save_policy


def make_policy(seed: int = 0, **settings) -> CompactVLAPolicy:
    torch.manual_seed(seed)
    features = features_for({"front": (32, 32), "wrist": (32, 32)}, state_dim=5, action_dim=4)
    sizes = {"channels": 8, "queries": 4, "context_dim": 16, "head_width": 24, "head_blocks": 1, "text_dim": 8}
    return CompactVLAPolicy(CompactVLAConfig(device="cpu", push_to_hub=False, **sizes, **settings, **features))


def make_batch(count: int = 6, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation.images.front": torch.rand(count, 3, 32, 32, generator=generator),
        "observation.images.wrist": torch.rand(count, 3, 32, 32, generator=generator),
        "observation.state": torch.randn(count, 5, generator=generator),
        "action": torch.randn(count, 8, 4, generator=generator),
        "action_is_pad": torch.zeros(count, 8, dtype=torch.bool),
        TOKENS: tokenize(["put the red cube in the bowl"] * count),
    }


def draws(count: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "noise": torch.randn(count, 3, 8, 4, generator=generator),
        "time": torch.rand(count, 3, generator=generator),
    }


@pytest.fixture
def normaliser() -> Normaliser:
    rng = np.random.default_rng(0)
    return measure(rng.normal(2.0, 3.0, (50, 5)).astype(np.float32), rng.normal(-1.0, 0.5, (50, 4)).astype(np.float32))


def test_unit_weights_are_plain_behaviour_cloning_also_on_padded_chunks():
    policy, batch = make_policy(), make_batch()
    batch["action_is_pad"][2, 3:] = True
    batch["action_is_pad"][4, 1:] = True
    each, _ = policy(batch, reduction="none", **draws())
    mean, _ = policy(batch, **draws())
    assert each.shape == (6,)
    # every valid action counts the same, so the plain loss is the mean of the per-sample losses
    torch.testing.assert_close(each.mean(), mean)


def test_padded_actions_do_not_matter():
    policy, batch = make_policy(), make_batch()
    batch["action_is_pad"][:, 5:] = True
    before, _ = policy(batch, reduction="none", **draws())
    valid = batch["action"].clone()
    valid[:, 5:] = 0.0
    # the noisy chunk the network sees contains padded entries too, so hold the noise such that they agree
    policy.head.enter.weight.data[:, 5 * 4 :] = 0.0
    one, _ = policy(batch, reduction="none", **draws())
    two, _ = policy(batch | {"action": valid}, reduction="none", **draws())
    torch.testing.assert_close(one, two)
    assert not torch.allclose(before, torch.zeros_like(before))


def test_a_perfect_velocity_has_no_flow_loss():
    policy, batch = make_policy(regression_weight=0.0), make_batch(count=2)
    fixed = draws(count=2)
    target = batch["action"].reshape(2, 1, -1) - fixed["noise"].reshape(2, 3, -1)  # velocity = action - noise
    policy.head.forward = lambda noisy, time, context: target  # type: ignore[method-assign]
    loss, _ = policy(batch, **fixed)
    assert loss.item() == 0.0


def test_integrating_the_exact_velocity_reaches_the_action():
    policy, batch = make_policy(), make_batch(count=2)
    goal = batch["action"].reshape(2, 1, -1)
    # towards one action the velocity along the straight path is (action - x_t) / (1 - t)
    policy.head.forward = lambda noisy, time, context: (goal - noisy) / (1 - time)  # type: ignore[method-assign]
    chunk = policy.predict_action_chunk(batch, noise=torch.randn(2, 8, 4))
    torch.testing.assert_close(chunk, batch["action"], atol=1e-5, rtol=1e-5)


def test_the_instruction_changes_the_actions_and_any_text_is_valid():
    policy, batch = make_policy(), make_batch(count=1)
    for block in policy.head.blocks:  # a fresh head starts as if it had no context
        torch.nn.init.normal_(block.inner[2].weight)
    noise = torch.zeros(1, 8, 4)
    one = policy.predict_action_chunk(batch, noise=noise)
    for text in ("put the blue cube in the bowl", "лекция 🤖", "", "x" * 500):
        other = policy.predict_action_chunk(batch | {TOKENS: tokenize([text])}, noise=noise)
        assert torch.isfinite(other).all()
        assert not torch.allclose(one, other)


def test_same_noise_same_chunk_and_each_sample_has_its_own():
    policy, batch = make_policy(), make_batch(count=2)
    batch = {key: value[:1].repeat(2, *[1] * (value.ndim - 1)) for key, value in batch.items()}
    noise = torch.randn(1, 8, 4).repeat(2, 1, 1)
    chunk = policy.predict_action_chunk(batch, noise=noise)
    torch.testing.assert_close(chunk[0], chunk[1])
    noise[1] += 1.0
    chunk = policy.predict_action_chunk(batch, noise=noise)
    assert not torch.allclose(chunk[0], chunk[1])


def test_select_action_executes_only_the_first_actions_of_a_chunk():
    policy, batch = make_policy(n_action_steps=2), make_batch(count=1)
    chunks = []
    predict = policy.predict_action_chunk
    policy.predict_action_chunk = lambda *a, **k: chunks.append(predict(*a, **k)) or chunks[-1]  # type: ignore
    actions = [policy.select_action(batch) for _ in range(4)]
    assert len(chunks) == 2
    torch.testing.assert_close(actions[1], chunks[0][:, 1])
    torch.testing.assert_close(actions[2], chunks[1][:, 0])


def test_saved_and_opened_by_lerobot_alone(tmp_path, normaliser):
    policy, batch = make_policy(), make_batch()
    save_policy(tmp_path / "policy", policy, normaliser)
    opened = get_policy_class("compact_vla").from_pretrained(tmp_path / "policy")
    noise = torch.randn(6, 8, 4)
    torch.testing.assert_close(
        opened.predict_action_chunk(batch, noise=noise), policy.eval().predict_action_chunk(batch, noise=noise)
    )
    before, after = make_pre_post_processors(opened.config, pretrained_path=str(tmp_path / "policy"))
    raw = {
        "observation.images.front": torch.rand(3, 32, 32),
        "observation.images.wrist": torch.rand(3, 32, 32),
        "observation.state": torch.arange(5.0),
        "task": "stack it",
    }
    ready = before(raw)
    # our arrays and lerobot's pipeline must be the same arithmetic
    expected = torch.from_numpy(normaliser.state(np.arange(5, dtype=np.float32)))
    torch.testing.assert_close(ready["observation.state"][0], expected)
    assert ready[TOKENS].shape == (1, 96)
    action = torch.randn(1, 4)
    torch.testing.assert_close(after(action), torch.from_numpy(normaliser.raw_action(action.numpy())))


def test_loading_back_gives_the_same_policy_and_statistics(tmp_path, normaliser):
    policy = make_policy()
    save_policy(tmp_path / "policy", policy, normaliser)
    loaded = load_policy(tmp_path / "policy")
    np.testing.assert_allclose(loaded.normaliser.state_std, normaliser.state_std)
    for key, value in policy.state_dict().items():
        torch.testing.assert_close(loaded.policy.state_dict()[key], value)
    assert list(loaded.policy.trunk_parameters()) == ["front", "wrist"]


def test_a_folder_that_is_no_policy_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: not a policy folder, config\.json is missing"):
        load_policy(tmp_path / "nowhere")


def test_a_constant_entry_is_normalised_to_zero():
    states = np.ones((10, 5), np.float32) * 7
    actions = np.zeros((10, 4), np.float32)
    constant = measure(states, actions)
    np.testing.assert_allclose(constant.state(states), 0.0)
    np.testing.assert_allclose(constant.raw_action(np.zeros(4, np.float32)), 0.0)


def test_processors_refuse_a_batch_without_instruction(normaliser):
    before, _ = make_compact_vla_pre_post_processors(make_policy().config, normaliser.as_stats())
    with pytest.raises(ValueError, match="instruction"):
        before({"observation.state": torch.zeros(5)})


def test_the_policy_needs_a_camera():
    with pytest.raises(ValueError, match="camera"):
        CompactVLAPolicy(CompactVLAConfig(device="cpu", **features_for({}, 5, 4)))
