"""The compact judge on toy videos: it learns what it should, and its outputs obey their laws."""

import dataclasses

import judge_toy as toy
import numpy as np
import pytest
import torch

from reward_models.compact import CompactJudge, CompactJudgeConfig
from reward_models.fit import FitConfig, fit, held_out_episodes
from reward_models.maps import MapCache
from reward_models.score import score
from reward_models.wording import certainly_different
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import ConvTrunk
from robo_rl.statistics import auroc
from robo_rl.types import Outcome, RewardModel, RewardSignal

SMALL = CompactJudgeConfig(channels=16, dim=48, queries=8, values=8, text_dim=32, precision="fp32")
QUICK = FitConfig(steps=3, trunk_steps=2, batch_size=4, trunk_batch_size=4, precision="fp32")


@pytest.fixture(scope="module")
def held_out():
    return toy.episodes(40, first=1000)


@pytest.fixture(scope="module")
def judge(toy_judge_fit):
    return toy_judge_fit[0]


@pytest.fixture(scope="module")
def toy_judge_fit():
    judge = CompactJudge(SMALL, seed=0)
    config = FitConfig(steps=170, trunk_steps=80, batch_size=16, trunk_batch_size=16)
    return judge, fit(judge, toy.episodes(96), config, seed=0)


@pytest.fixture(scope="module")
def opinions(judge, held_out):
    return judge.score(held_out)


# --- what it learns --------------------------------------------------------------------------------------------


def test_it_tells_successes_from_failures(opinions, held_out) -> None:
    final = np.array([signal.success_prob[-1] for signal in opinions])
    label = np.array([episode.success for episode in held_out])
    assert auroc(final, label).value > 0.9
    assert final[label].mean() > 0.8  # a success head that never reaches 1 would fail here
    assert final[~label].mean() < 0.3


def test_progress_follows_the_truth(opinions, held_out) -> None:
    rows = [(s.progress, e.true_progress) for s, e in zip(opinions, held_out, strict=True) if e.success]
    assert np.mean([np.corrcoef(a, b)[0, 1] for a, b in rows]) > 0.8
    assert np.mean([a[-1] for a, _ in rows]) > 0.75


def test_the_wrong_instruction_lowers_the_score(judge, opinions, held_out) -> None:
    rows = [n for n, episode in enumerate(held_out) if episode.success]
    texts = sorted({episode.instruction for episode in held_out})
    swapped = [
        dataclasses.replace(
            held_out[n], instruction=next(t for t in texts if certainly_different(t, held_out[n].instruction))
        )
        for n in rows
    ]
    before = np.array([opinions[n].success_prob[-1] for n in rows])
    after = np.array([signal.success_prob[-1] for signal in judge.score(swapped)])
    assert before.mean() - after.mean() > 0.4


def test_a_still_picture_does_not_rise(judge, held_out) -> None:
    episode = held_out[0]
    frames = np.repeat(episode.images["front"][:1], len(episode) + 1, 0)
    (signal,) = judge.score([dataclasses.replace(episode, images={"front": frames})])
    assert signal.progress[-1] - signal.progress[0] < 0.1
    assert signal.success_prob[-1] - signal.success_prob[0] < 0.1


def test_losses_fall_and_the_calibration_was_made(toy_judge_fit) -> None:
    _, result = toy_judge_fit
    assert len(result.curves["total"]) == 250
    for name in ("progress", "success"):
        assert np.mean(result.curves[name][-20:]) < 0.8 * np.mean(result.curves[name][:20])
    assert result.calibration.num_episodes > 0
    assert result.calibration.reason == ""
    assert set(result.seconds) == {"trunk", "maps", "head", "calibration"}


# --- laws ------------------------------------------------------------------------------------------------------


def test_shapes_and_protocol(judge, opinions, held_out) -> None:
    assert isinstance(judge, RewardModel)
    for signal, hidden, episode in zip(opinions, judge.embed(held_out), held_out, strict=True):
        steps = len(episode)
        assert (signal.episode_id, signal.model_id) == (episode.episode_id, judge.model_id)
        assert signal.progress.shape == signal.success_prob.shape == signal.uncertainty.shape == (steps + 1,)
        assert signal.tri_state.shape == (steps, 3)
        assert signal.tri_state.sum(1) == pytest.approx(np.ones(steps), abs=1e-5)
        assert hidden.shape == (steps + 1, 48)
        assert hidden.dtype == signal.progress.dtype == np.float32


def test_later_frames_change_nothing_before_them(judge, held_out) -> None:
    episode, cut = held_out[0], 6
    frames = episode.images["front"].copy()
    frames[cut:] = 255 - frames[cut:]
    (before,), (after,) = judge.score([episode]), judge.score([dataclasses.replace(episode, images={"front": frames})])
    for name in ("progress", "success_prob"):
        assert getattr(after, name)[:cut] == pytest.approx(getattr(before, name)[:cut], abs=1e-5)
    assert after.tri_state[: cut - 1] == pytest.approx(before.tri_state[: cut - 1], abs=1e-5)
    assert abs(after.progress[cut:] - before.progress[cut:]).max() > 1e-3


def test_a_stream_equals_one_pass(judge, held_out) -> None:
    episode = held_out[1]
    (whole,), (hidden,) = judge.score([episode]), judge.embed([episode])
    stream = judge.stream(episode.instruction)
    said = [stream.append({"front": frame}) for frame in episode.images["front"]]
    assert [x.progress for x in said] == pytest.approx(whole.progress, abs=1e-4)
    assert [x.success_prob for x in said] == pytest.approx(whole.success_prob, abs=1e-4)
    assert [x.uncertainty for x in said] == pytest.approx(whole.uncertainty, abs=1e-4)
    assert np.stack([x.hidden for x in said]) == pytest.approx(hidden, abs=1e-3)
    assert said[0].tri_state is None
    assert np.stack([x.tri_state for x in said[1:]]) == pytest.approx(whole.tri_state, abs=1e-4)


def test_long_videos_are_judged_in_blocks_that_fit_together(judge, held_out, monkeypatch) -> None:
    (whole,) = judge.score([held_out[2]])
    monkeypatch.setattr("reward_models.compact.BLOCK", 5)
    (blocks,) = judge.score([held_out[2]])
    assert blocks.progress == pytest.approx(whole.progress, abs=1e-5)


def test_the_start_is_forgotten(judge, held_out) -> None:
    # two layers that look back window - 1 frames each: the first frames are out of sight of the last one
    network, reach = judge.network, 2 * (judge.config.window - 1)
    tokens = torch.randn(1, reach + 4, 48, generator=torch.Generator().manual_seed(0))
    text = torch.zeros(1, 32)
    with torch.inference_mode():
        a, _ = network.judge(tokens, text)
        b, _ = network.judge(tokens[:, 3:], text)
    assert torch.allclose(a.hidden[:, -1], b.hidden[:, -1], atol=1e-5)


def test_any_batch_gives_the_same_scores(judge, opinions, held_out) -> None:
    for number in (3, 0):
        (alone,) = judge.score([held_out[number]])
        assert alone.progress == pytest.approx(opinions[number].progress, abs=1e-5)


def test_saved_and_loaded_it_is_the_same(judge, opinions, held_out, tmp_path) -> None:
    judge.save(tmp_path / "judge")
    judge.save(tmp_path / "judge")  # over the old one
    loaded = CompactJudge.load(tmp_path / "judge")
    assert loaded.model_id == judge.model_id
    assert loaded.config == judge.config
    assert loaded.trunk_ready
    (signal,) = loaded.score(held_out[:1])
    assert np.array_equal(signal.progress, opinions[0].progress)
    assert np.array_equal(signal.success_prob, opinions[0].success_prob)
    assert [path.name for path in tmp_path.iterdir()] == ["judge"]


def test_a_damaged_folder_is_refused_in_one_line(judge, tmp_path) -> None:
    with pytest.raises(DataError, match=r"config\.json is missing"):
        CompactJudge.load(tmp_path / "nothing")
    folder = tmp_path / "judge"
    judge.save(folder)
    (folder / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(DataError, match="damaged judge"):
        CompactJudge.load(folder)
    other = CompactJudge(judge.config, seed=1)
    other.save(tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(DataError, match="exchanged"):
        CompactJudge.load(folder)


# --- fitting ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_judge_and_leaves_torch_alone() -> None:
    episodes = toy.episodes(12)
    judges = []
    for noise, seed in enumerate((0, 0, 1)):
        torch.manual_seed(noise)  # what others draw must not matter
        state = torch.get_rng_state()
        judge = CompactJudge(SMALL, seed=0)
        fit(judge, episodes, QUICK, seed=seed)
        judges.append(judge.model_id)
        assert torch.equal(state, torch.get_rng_state())
    assert judges[0] == judges[1] != judges[2]


def test_the_simulators_truth_is_never_used() -> None:
    names = []
    for lie in (False, True):
        episodes = toy.episodes(12)
        if lie:
            episodes = [dataclasses.replace(e, true_progress=1 - e.true_progress) for e in episodes]
        judge = CompactJudge(SMALL, seed=0)
        fit(judge, episodes, QUICK, seed=0)
        names.append(judge.model_id)
    assert names[0] == names[1]


def test_a_policys_trunk_is_copied_and_kept() -> None:
    torch.manual_seed(3)
    trunk = ConvTrunk(16).state_dict()
    judge = CompactJudge(SMALL, seed=0)
    judge.init_trunk({"front": trunk})
    result = fit(judge, toy.episodes(12), QUICK, seed=0)
    assert "trunk" not in result.seconds
    assert len(result.curves["total"]) == QUICK.steps
    kept = judge.network.trunks[0].state_dict()
    assert all(torch.equal(kept[name], value) for name, value in trunk.items())


def test_a_trunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        CompactJudge(SMALL).init_trunk({"front": ConvTrunk(8).state_dict()})
    judge = CompactJudge(dataclasses.replace(SMALL, cameras=("front", "wrist")))
    with pytest.raises(ConfigError, match="no trunk for camera 'wrist'"):
        judge.init_trunk({"front": ConvTrunk(16).state_dict()})


def test_a_warm_start_goes_on_from_the_round_before(judge, held_out, tmp_path) -> None:
    judge.save(tmp_path / "judge")
    warm = CompactJudge.load(tmp_path / "judge")
    scale = warm.network.map_scale.clone()
    steps = []
    result = fit(
        warm,
        held_out,
        dataclasses.replace(QUICK, steps=4),
        seed=1,
        warm_start=True,
        progress_callback=lambda done, total: steps.append((done, total)),
    )
    assert result.curves["total"][0] < 2.0  # from scratch it starts near log 10 + log 2
    assert torch.equal(scale, warm.network.map_scale)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert warm.model_id != judge.model_id


def test_held_out_episodes_keep_the_balance() -> None:
    episodes = toy.episodes(80)  # half of them successes
    held = held_out_episodes(episodes, 0.2, seed=0)
    assert len(held) == 16
    assert sum(episodes[n].success for n in held) == 8
    aborted = [dataclasses.replace(e, outcome=Outcome.ABORT) for e in episodes]
    assert len(held_out_episodes(aborted, 0.2, seed=0)) == 0


def test_maps_on_disk_are_those_in_memory(judge, held_out) -> None:
    memory = MapCache(judge.network, held_out[:3])
    disk = MapCache(judge.network, held_out[:3], memory_gb=0.0)
    rows = np.array([[0, 5], [memory.first[2], 1]])
    assert torch.equal(memory.gather(rows), disk.gather(rows))


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "none of 0"),
        ([toy.episode(1, moved="green")], "none of 1"),
        (
            [toy.episode(0), dataclasses.replace(toy.episode(1), images={"top": toy.episode(1).images["front"]})],
            "toy-1'.* needs camera 'front'; there are: top",
        ),
    ],
)
def test_episodes_that_cannot_teach_are_refused(episodes, message) -> None:
    with pytest.raises(DataError, match=message):
        fit(CompactJudge(SMALL), episodes, QUICK, seed=0)


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"held_out": 0.7}, {"precision": "fp8"}, {"loss": {"sucess": 1.0}}, {"clips": {"hop": 0}}]
)
def test_bad_settings_name_themselves(bad) -> None:
    with pytest.raises(ConfigError, match=r"judge\.fit"):
        FitConfig(**bad)
    with pytest.raises(ConfigError, match="judge"):
        CompactJudgeConfig(dim=50, heads=4)


def test_nested_settings_may_be_plain_mappings() -> None:
    assert FitConfig(loss={"mc_mix": 0.0}, clips={"hop": 2}).clips.hop == 2


# --- scoring ---------------------------------------------------------------------------------------------------


def test_damaged_parameters_name_the_episode(held_out) -> None:
    judge = CompactJudge(dataclasses.replace(SMALL, cameras=("front",)))
    with torch.no_grad():
        judge.network.asked.bias[0] = float("nan")
    with pytest.raises(RewardError, match="toy-1000"):
        judge.score(held_out[:1])


def test_an_unfitted_judge_says_so(held_out) -> None:
    with pytest.raises(RewardError, match="not been fitted"):
        CompactJudge(SMALL).score(held_out)


def test_score_keeps_order_in_batches_and_reports(judge, opinions, held_out) -> None:
    seen = []
    signals = score(judge, held_out[:7], batch_size=3, progress_callback=lambda done, total: seen.append((done, total)))
    assert [s.episode_id for s in signals] == [e.episode_id for e in held_out[:7]]
    assert seen == [(3, 7), (6, 7), (7, 7)]
    assert signals[4].progress == pytest.approx(opinions[4].progress, abs=1e-5)


class Broken:
    """A judge that answers what it is told to."""

    model_id = "broken@0"

    def __init__(self, answer):
        self.answer = answer

    def score(self, trajectories):
        return self.answer(trajectories)


def opinion(episode, length=None, probability=0.5, name=None) -> RewardSignal:
    n = length or len(episode) + 1
    return RewardSignal(
        episode_id=name or episode.episode_id,
        model_id="broken@0",
        progress=np.zeros(n, np.float32),
        success_prob=np.full(n, probability, np.float32),
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda batch: [], "0 opinions"),
        (lambda batch: [opinion(e, length=3) for e in batch], "toy-1000'.*but 3 opinions"),
        (lambda batch: [opinion(e, name="x") for e in batch], "about 'x'"),
        (lambda batch: [opinion(e, probability=1.5) for e in batch], r"toy-1000'.*\[0, 1\]"),
        (lambda batch: [opinion(e, probability=np.nan) for e in batch], "toy-1000.*not finite at frame 0"),
    ],
)
def test_score_checks_what_a_judge_says(answer, message, held_out) -> None:
    with pytest.raises(RewardError, match=message):
        score(Broken(answer), held_out[:1])
