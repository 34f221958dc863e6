"""Batches of action chunks: a function of (seed, step), never across episodes, in fixed shares, with their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robo_rl.batches import Anchors, ChunkBatches, shift_frames
from robo_rl.data import EpisodeSet, concat, read_episodes, write_episodes
from robo_rl.errors import DataError
from robo_rl.nets import tokenize
from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS
from robo_rl.policies.storage import Normaliser
from robo_rl.types import Controller, Outcome, Trajectory

CHUNK = 4
LENGTHS = (3, 6, 1, 9)  # actions of each episode
NEUTRAL = Normaliser(
    state_mean=np.zeros(2, np.float32),
    state_std=np.ones(2, np.float32),
    action_mean=np.zeros(1, np.float32),
    action_std=np.ones(1, np.float32),
)


def make_trajectory(number: int, steps: int) -> Trajectory:
    """Action t of episode e is 100 e + t, state is (e, t), and the picture has one grey for each episode."""
    return Trajectory(
        episode_id=f"episode-{number}",
        instruction=f"go to place {number}",
        images={"front": np.full((steps + 1, 16, 16, 3), 40 * (number + 1), np.uint8)},
        state=np.stack([np.full(steps + 1, number), np.arange(steps + 1)], 1).astype(np.float32),
        actions=(100 * number + np.arange(steps, dtype=np.float32))[:, None],
        controller=np.full(steps, Controller.POLICY, np.int8),
        outcome=Outcome.SUCCESS,
        fps=10.0,
    )


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSet:
    """Two datasets seen as one: an episode must not leak into the next, nor a dataset into the other."""
    root = tmp_path_factory.mktemp("batches")
    parts = []
    for place, numbers in enumerate(((0, 1), (2, 3))):
        write_episodes(root / str(place), (make_trajectory(n, LENGTHS[n]) for n in numbers))
        parts.append(read_episodes(root / str(place)))
    return concat(parts)


def anchors_of(frames: np.ndarray, weights: np.ndarray | None = None) -> Anchors:
    weights = np.ones(len(frames), np.float32) if weights is None else weights.astype(np.float32)
    return Anchors(frames=frames, weights=weights)


def all_anchors(episodes: EpisodeSet) -> Anchors:
    return anchors_of(np.flatnonzero(~episodes.is_final))


def make_batches(episodes: EpisodeSet, sources=None, **settings) -> ChunkBatches:
    sources = sources or [(1.0, all_anchors(episodes))]
    chosen = {"chunk": CHUNK, "batch_size": 64, "seed": 5} | settings
    return ChunkBatches(episodes, sources, NEUTRAL, **chosen)


def equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_a_batch_is_a_function_of_seed_and_step(episodes):
    batches, again = make_batches(episodes), make_batches(episodes)
    late = batches(9)  # asked for out of order: nothing is remembered between calls
    assert equal(batches(3), again(3))
    assert equal(again(9), late)
    assert not torch.equal(batches(3)["index"], batches(4)["index"])
    assert not torch.equal(make_batches(episodes, seed=6)(3)["index"], batches(3)["index"])


def test_chunks_stay_in_their_episode_and_repeat_its_last_action(episodes):
    batches = make_batches(episodes)
    seen = set()
    for step in range(20):
        batch = batches(step)
        for row, frame in enumerate(batch["index"].tolist()):
            number = int(episodes.episode_of_frame[frame])
            start, steps = frame - int(episodes.first_frame[number]), LENGTHS[number]
            seen.add(frame)
            # at t of T actions the chunk is a_t ... a_{T-1} and then a_{T-1} again, marked as padding
            wanted = [100 * number + min(start + k, steps - 1) for k in range(CHUNK)]
            np.testing.assert_allclose(batch["action"][row, :, 0].numpy(), wanted)
            assert batch["action_is_pad"][row].tolist() == [start + k > steps - 1 for k in range(CHUNK)]
            np.testing.assert_allclose(batch["observation.state"][row].numpy(), [number, start])
            assert torch.equal(batch[TOKENS][row], tokenize([f"go to place {number}"])[0])
            grey = batch["observation.images.front"][row]
            assert grey.shape == (3, 16, 16)
            # video is lossy: within 4 of 255 of the episode's grey, neighbours are 40 apart
            np.testing.assert_allclose(grey.numpy(), 40 * (number + 1) / 255.0, atol=4 / 255)
    assert seen == set(np.flatnonzero(~episodes.is_final).tolist())  # 20 x 64 draws of 19 frames leave none out


def test_states_and_actions_are_normalised(episodes):
    scaled = Normaliser(
        state_mean=np.array([1.0, 2.0], np.float32),
        state_std=np.array([2.0, 4.0], np.float32),
        action_mean=np.array([50.0], np.float32),
        action_std=np.array([10.0], np.float32),
    )
    plain = make_batches(episodes)(0)
    batch = ChunkBatches(episodes, [(1.0, all_anchors(episodes))], scaled, chunk=CHUNK, batch_size=64, seed=5)(0)
    torch.testing.assert_close(batch["action"], (plain["action"] - 50.0) / 10.0)
    torch.testing.assert_close(
        batch["observation.state"], (plain["observation.state"] - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])
    )


@pytest.mark.parametrize("share", [0.25, 0.3, 1.0])
def test_sources_have_their_shares_in_every_batch(episodes, share):
    # frames of episode 3 are 13..21; the others come first
    few, many = anchors_of(np.array([0, 1])), anchors_of(np.arange(13, 22))
    batches = make_batches(episodes, [(share, few), (1.0 - share, many)], batch_size=40)
    for step in range(5):
        index = batches(step)["index"].numpy()
        # 0.25, 0.3 and 1 of 40 samples are exactly 10, 12 and 40, however many frames a source has
        assert (index <= 1).sum() == round(40 * share)
        assert ((index >= 13) & (index < 22)).sum() == 40 - round(40 * share)


def test_shares_need_not_sum_to_one(episodes):
    # 2 : 6 is the same mixture as 0.25 : 0.75
    few, many = anchors_of(np.array([0, 1])), anchors_of(np.arange(13, 22))
    one = make_batches(episodes, [(2.0, few), (6.0, many)], batch_size=40)
    two = make_batches(episodes, [(0.25, few), (0.75, many)], batch_size=40)
    assert equal(one(1), two(1))


def test_weights_go_with_their_frames(episodes):
    frames = np.array([0, 2, 4, 13, 20])
    weights = np.array([0.5, 1.5, 0.25, 2.0, 0.75])
    batch = make_batches(episodes, [(1.0, anchors_of(frames, weights))])(0)
    expected = dict(zip(frames.tolist(), weights.tolist(), strict=True))
    assert set(batch["index"].tolist()) == set(expected)
    for frame, weight in zip(batch["index"].tolist(), batch["sample_weight"].tolist(), strict=True):
        assert weight == expected[frame]


def test_weights_do_not_change_what_is_drawn(episodes):
    frames = np.array([0, 2, 4, 13, 20])
    weighted = make_batches(episodes, [(1.0, anchors_of(frames, np.array([9.0, 0.1, 0.1, 0.1, 0.1])))])
    plain = make_batches(episodes, [(1.0, anchors_of(frames))])
    assert torch.equal(weighted(7)["index"], plain(7)["index"])


def test_weights_are_one_while_warming_up(episodes):
    frames = np.flatnonzero(~episodes.is_final)
    weighted = [(1.0, anchors_of(frames, np.linspace(0.1, 1.9, len(frames))))]
    warming = make_batches(episodes, weighted, warmup_steps=3)
    # METHODS 1.3: gate 1 for the first N steps; step N is the first that sees the weights
    assert torch.equal(warming(2)["sample_weight"], torch.ones(64))
    assert torch.equal(warming(3)["sample_weight"], make_batches(episodes, weighted)(3)["sample_weight"])


def test_nothing_to_learn_from_is_said():
    with pytest.raises(DataError, match="no frame to learn from"):
        Anchors(frames=np.array([], np.int64), weights=np.array([], np.float32))


def test_shifted_frames_keep_their_content():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (40, 12, 10, 3), dtype=np.uint8)
    moved = shift_frames(frames, 3, np.random.default_rng(1))
    assert moved.shape == frames.shape
    assert moved.dtype == np.uint8
    offsets = set()
    for frame, shifted in zip(frames, moved, strict=True):
        # some (dy, dx) within 3 pixels explains all of it: pixel (y, x) is the old (y + dy, x + dx), edges repeated
        rows, columns = np.arange(12)[:, None], np.arange(10)[None, :]
        fits = [
            (dy, dx)
            for dy in range(-3, 4)
            for dx in range(-3, 4)
            if np.array_equal(shifted, frame[np.clip(rows + dy, 0, 11), np.clip(columns + dx, 0, 9)])
        ]
        assert len(fits) == 1
        offsets.add(fits[0])
    assert len(offsets) > 10  # of the 49 possible, 40 draws hit many
    assert shift_frames(frames, 0, rng) is frames


def test_pictures_are_augmented_and_not_the_datasets_own(tmp_path: Path):
    # a single bright row would be found in many places if it moves, in one place without shifts
    base = make_trajectory(0, 2)
    images = np.zeros((3, 16, 16, 3), np.uint8)
    images[:, 8] = 255
    write_episodes(
        tmp_path / "one",
        [
            Trajectory(
                episode_id="line",
                instruction="look",
                images={"front": images},
                state=base.state,
                actions=base.actions,
                controller=base.controller,
                outcome=Outcome.SUCCESS,
                fps=10.0,
            )
        ],
    )
    episodes = read_episodes(tmp_path / "one")

    def places(shift: int) -> set[int]:
        batch = make_batches(episodes, shift=shift)(0)["observation.images.front"]
        return set(batch[:, 0, :, 8].argmax(1).tolist())

    assert places(0) == {8}
    assert places(2) == {6, 7, 8, 9, 10}
