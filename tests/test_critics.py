"""The critics: what they converge to, what they must not see, and that held-out episodes decide."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robo_rl.credit.critic_targets import CriticArrays, assign_folds, steps_to_success
from robo_rl.critics import CriticConfig, Critics, cross_fit, fit_critics
from robo_rl.errors import ConfigError, DataError

torch.set_num_threads(1)
FAST = CriticConfig(hidden=(32,), steps=200, batch_size=64, learning_rate=5e-3)


def arrays_of(lengths, success, **changes):
    """Policy episodes of so many steps; a success ends at its last step."""
    lengths, success = np.asarray(lengths), np.asarray(success, dtype=bool)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = np.append(episode[1:] != episode[:-1], True)
    won = success[episode]
    masks = {
        "label": won.astype(float),
        "outcome_ok": np.ones(len(episode), dtype=bool),
        "ve_ok": won,
        "terminal_success": won & last,
        "next_index": np.where(last, -1, np.arange(len(episode)) + 1),
    }
    return CriticArrays(**(masks | changes))


def owners(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


def countdown_features(lengths, rng):
    """Smooth functions of the steps to go, and noise that means nothing."""
    to_go = np.concatenate([np.arange(n - 1, -1, -1) for n in lengths]) / 40.0
    waves = np.stack([to_go, np.sin(2 * to_go), np.cos(2 * to_go), np.exp(-3 * to_go)], axis=1)
    return np.concatenate([waves, 0.1 * rng.normal(size=(len(waves), 4))], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def chain():
    rng = np.random.default_rng(0)
    lengths = rng.integers(15, 41, 40)
    return countdown_features(lengths, rng), arrays_of(lengths, np.ones(40)), owners(lengths)


@pytest.mark.parametrize("change", [{}, {"counted_start": 0.0}, {"counted_start": 0.0, "target_tau": 0.1}])
def test_efficiency_converges_to_minus_the_steps_to_go(chain, change):
    features, arrays, episode = chain
    critics = fit_critics(features, arrays, episode, replace(CriticConfig(steps=500, batch_size=64), **change), seed=1)
    _, v_e = critics.predict(features)
    error = np.abs(v_e + steps_to_success(arrays))
    # of up to 39 steps; a constant guess is off by 9 on average
    assert error.mean() < 1.5
    assert np.abs(v_e[arrays.terminal_success]).mean() < 1.5


def test_efficiency_is_temporal_difference_not_counting():
    # A -> X -> 1 more step -> end, and B -> X -> 9 more steps -> end, equally often. TD(0) knows only X:
    # V(X) = -(1 + 9) / 2 = -5, so V(A) = V(B) = -6. Counting whole episodes says V(A) = -2, V(B) = -10.
    # Drawing episodes alike would count X 1/3 in the short and 1/11 in the long: V(X) = -(11 + 27) / 14 = -2.7.
    states = [["A", "X", "s0"], ["B", "X", *(f"s{i}" for i in range(8, -1, -1))]] * 10
    names = sorted({name for path in states for name in path})
    features = np.concatenate([np.eye(len(names), dtype=np.float32)[[names.index(s) for s in p]] for p in states])
    episode = owners([len(p) for p in states])
    arrays = arrays_of([len(p) for p in states], np.ones(len(states)))
    config = CriticConfig(
        steps=1200, batch_size=64, weight_decay=0.0, counted_start=0.2, hidden=(32,), learning_rate=1e-2
    )
    _, v_e = fit_critics(features, arrays, episode, config, seed=0).predict(np.eye(len(names), dtype=np.float32))
    value = dict(zip(names, v_e, strict=True))
    assert value["X"] == pytest.approx(-5, abs=0.6)
    assert value["A"] == pytest.approx(-6, abs=0.8)
    assert value["B"] == pytest.approx(-6, abs=0.8)
    # without TD, the counts: the two ways of learning are told apart
    _, counted = fit_critics(features, arrays, episode, replace(config, counted_start=1.0, steps=400), seed=0).predict(
        np.eye(len(names), dtype=np.float32)
    )
    assert counted[names.index("A")] == pytest.approx(-2, abs=0.8)
    assert counted[names.index("B")] == pytest.approx(-10, abs=0.8)


def test_viability_converges_to_the_empirical_success_rate():
    # state 0: 3 of 4 episodes succeed; state 1: 1 of 4
    state = np.repeat([0, 1], 40)
    success = np.tile([1, 1, 1, 0], 20) ^ state
    lengths = np.full(80, 5)
    features = np.eye(2, dtype=np.float32)[np.repeat(state, lengths)]
    z_v, _ = fit_critics(features, arrays_of(lengths, success), owners(lengths), FAST).predict(
        np.eye(2, dtype=np.float32)
    )
    np.testing.assert_allclose(1 / (1 + np.exp(-z_v)), [0.75, 0.25], atol=0.05)


def test_long_failures_do_not_drown_short_successes():
    # half of the episodes succeed in 10 steps, half fail in 40; features that say nothing.
    # Episodes alike: p = 1/2. Frames alike: 10 of 50 frames carry a 1: p = 1/5.
    lengths, success = np.tile([10, 40], 20), np.tile([1, 0], 20)
    features, arrays = np.ones((1000, 3), dtype=np.float32), arrays_of(lengths, success)
    for balance, expected in (("episode", 0.5), ("frame", 0.2)):
        z_v, _ = fit_critics(features, arrays, owners(lengths), replace(FAST, balance=balance)).predict(features[:1])
        assert 1 / (1 + np.exp(-z_v[0])) == pytest.approx(expected, abs=0.04)


def test_masked_frames_teach_nothing():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(200, 6)).astype(np.float32)
    masked = np.repeat(np.arange(20) % 4 == 0, 10)  # whole episodes: before an intervention, say
    arrays = arrays_of(np.full(20, 10), np.arange(20) % 2)
    arrays = replace(arrays, outcome_ok=~masked, ve_ok=arrays.ve_ok & ~masked)
    episode = owners(np.full(20, 10))
    before = fit_critics(features, arrays, episode, FAST, seed=3).predict(features)
    # other labels, none at all, and other features on masked frames: bit for bit the same critics
    nothing = np.where(masked, np.nan, arrays.label)
    flipped = np.where(masked, 1 - arrays.label, arrays.label)
    other = np.where(masked[:, None], 100.0, features).astype(np.float32)
    for changed, shown in ((nothing, features), (flipped, features), (nothing, other)):
        after = fit_critics(shown, replace(arrays, label=changed), episode, FAST, seed=3).predict(features)
        np.testing.assert_array_equal(before, after)
    # the same labels on frames that count do change them: the comparison can fail
    opened = replace(arrays, label=flipped, outcome_ok=np.ones(200, dtype=bool))
    assert np.abs(fit_critics(features, opened, episode, FAST, seed=3).predict(features)[0] - before[0]).max() > 0.01


def test_the_units_of_features_do_not_matter(chain):
    # standardised inputs: metres or millimetres, the critics say the same (up to float32 rounding)
    features, arrays, episode = chain
    config = replace(FAST, steps=20)
    _, plain = fit_critics(features, arrays, episode, config).predict(features)
    other = (features * 1000 + 3).astype(np.float32)
    _, rescaled = fit_critics(other, arrays, episode, config).predict(other)
    np.testing.assert_allclose(plain, rescaled, atol=0.05)
    assert plain.std() > 1


def test_same_seed_same_critics(chain):
    features, arrays, episode = chain
    first, again, other = (fit_critics(features, arrays, episode, FAST, seed=s).predict(features) for s in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first[1] - other[1]).max() > 0


def test_held_out_ranking_of_a_real_signal():
    rng = np.random.default_rng(4)
    lengths, success = rng.integers(10, 20, 60), np.arange(60) % 2
    per_frame = np.repeat(success, lengths)
    noise = rng.normal(size=(len(per_frame), 8))
    noise[:, 0] += 2.0 * per_frame
    # two unit normals 2 apart: AUROC = Phi(2 / sqrt 2) = .921 for the best score there is
    fit = cross_fit(noise.astype(np.float32), arrays_of(lengths, success), owners(lengths), 3, FAST)
    assert 0.86 < fit.metrics["auroc"] < 0.945
    assert fit.metrics["brier"] < 0.18
    assert fit.metrics["brier_constant"] == pytest.approx(0.25)
    assert min(fit.metrics[f"auroc_{at}"] for at in ("first", "middle", "last")) > 0.75
    assert fit.undefined == {}


def test_memorised_episodes_decide_no_credit():
    # every episode has its own mark and the outcome is a coin: in sample the critic knows it all,
    # held out it knows nothing
    rng = np.random.default_rng(5)
    success = rng.permutation(np.arange(40) % 2)
    marks = np.repeat(rng.normal(size=(40, 64)), 8, axis=0).astype(np.float32)
    arrays = arrays_of(np.full(40, 8), success)
    z_v, _ = fit_critics(marks, arrays, owners(np.full(40, 8)), FAST).predict(marks)
    won = arrays.label == 1
    assert z_v[won].min() > z_v[~won].max()
    assert 0.2 < cross_fit(marks, arrays, owners(np.full(40, 8)), 2, FAST).metrics["auroc"] < 0.8


def test_folds_keep_episodes_whole_and_give_each_a_success():
    arrays = arrays_of(np.full(23, 4), np.arange(23) < 5)
    episode = owners(np.full(23, 4))
    fold = assign_folds(arrays, episode, 5, np.random.default_rng(0))
    assert (fold.reshape(23, 4) == fold[::4, None]).all()
    # 5 successes, one in each fold; 23 episodes: 4 or 5 in each
    assert sorted(fold[::4][:5]) == [0, 1, 2, 3, 4]
    assert set(np.bincount(fold[::4])) == {4, 5}
    with pytest.raises(DataError, match="at least 5 successful episodes, got 4"):
        assign_folds(arrays_of(np.full(23, 4), np.arange(23) < 4), episode, 5, np.random.default_rng(0))


def test_counted_steps_by_hand():
    # success of 3 steps: 2, 1, 0; a failure: never; a success whose first frame was cut off
    arrays = arrays_of([3, 2, 3], [1, 0, 1])
    arrays = replace(arrays, next_index=np.array([1, 2, -1, 4, -1, -1, 7, -1]))
    np.testing.assert_array_equal(steps_to_success(arrays), [2, 1, 0, np.nan, np.nan, np.nan, 1, 0])


def test_smoothing_stays_within_an_episode(chain):
    features, arrays, episode = chain
    plain, smooth = (cross_fit(features, arrays, episode, 2, replace(FAST, smooth_frames=k)) for k in (1, 5))
    ends = np.append(True, episode[1:] != episode[:-1])
    np.testing.assert_array_equal(plain.v_e[ends], smooth.v_e[ends])
    inside = np.flatnonzero(ends)[0] + 7
    assert smooth.v_e[inside] == pytest.approx(plain.v_e[inside - 2 : inside + 3].mean(), rel=1e-5)
    # nothing failed here: the ranking is not defined, and says so
    assert np.isnan(smooth.metrics["auroc"])
    assert smooth.undefined["auroc"] == f"{len(episode)} successes and 0 failures"


def test_a_mapping_of_the_fields_will_do_and_a_frame_may_follow_itself(chain):
    features, arrays, episode = chain
    itself = np.where(arrays.next_index < 0, np.arange(len(episode)), arrays.next_index)
    mapping = {name: getattr(arrays, name) for name in ("label", "outcome_ok", "ve_ok", "terminal_success")}
    config = replace(FAST, steps=5)
    expected = fit_critics(features, arrays, episode, config).predict(features)
    given = fit_critics(features, mapping | {"next_index": itself}, episode, config).predict(features)
    np.testing.assert_array_equal(expected, given)


def test_save_and_load(tmp_path, chain):
    features, arrays, episode = chain
    critics = fit_critics(features, arrays, episode, replace(FAST, steps=5))
    critics.save(tmp_path / "critics")
    loaded = Critics.load(tmp_path / "critics")
    np.testing.assert_array_equal(critics.predict(features), loaded.predict(features))
    assert [p.name for p in (tmp_path / "critics").iterdir()] == ["critics.safetensors"]
    with pytest.raises(DataError, match="no critics there"):
        Critics.load(tmp_path)
    (tmp_path / "critics.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(DataError, match="not a critics checkpoint"):
        Critics.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome_ok": np.zeros(6, dtype=bool)}, "no frame carries an outcome"),
        ({"ve_ok": np.zeros(6, dtype=bool)}, "no successful episode ends"),
        ({"label": np.array([1.0, 1, 2, 0, 0, 0])}, "0 or 1"),
        ({"next_index": np.array([1, 2, 3, 4, 5, -1])}, "frame after 2 lies in another episode"),
        ({"next_index": np.array([1, 0, -1, 4, 5, -1])}, "next_index of frame 1 must be"),
        ({"next_index": np.array([1, 2, 9, 4, 5, -1])}, "below 6, got 9"),
        ({"ve_ok": np.ones(5, dtype=bool)}, r"ve_ok must be \(6,\)"),
    ],
)
def test_arrays_that_cannot_teach(change, words):
    with pytest.raises(DataError, match=words):
        fit_critics(np.zeros((6, 2), dtype=np.float32), arrays_of([3, 3], [1, 0], **change), owners([3, 3]), FAST)


def test_features_and_settings_that_do_not_fit():
    arrays, episode = arrays_of([3, 3], [1, 0]), owners([3, 3])
    bad = np.zeros((6, 2), dtype=np.float32)
    bad[4, 1] = np.inf
    for features, words in (
        (np.zeros((6, 2)), "float64"),
        (np.zeros((5, 2), dtype=np.float32), "5 rows of features, 6 of labels"),
        (bad, "frame 4"),
    ):
        with pytest.raises(DataError, match=words):
            fit_critics(features, arrays, episode, FAST)
    critics = fit_critics(np.zeros((6, 2), dtype=np.float32), arrays, episode, replace(FAST, steps=1))
    with pytest.raises(DataError, match="trained on 2 features, got 3"):
        critics.predict(np.zeros((6, 3), dtype=np.float32))
    for change in ({"balance": "x"}, {"steps": 0}, {"counted_start": 2.0}, {"target_tau": 0.0}, {"smooth_frames": 2}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            CriticConfig(**change)
    with pytest.raises(DataError, match="lie together"):
        fit_critics(
            np.zeros((6, 2), dtype=np.float32),
            replace(arrays, next_index=np.full(6, -1)),
            np.array([0, 0, 0, 1, 1, 0]),
            FAST,
        )
    with pytest.raises(ConfigError, match="folds"):
        cross_fit(np.zeros((6, 2), dtype=np.float32), arrays, episode, 6, FAST)
