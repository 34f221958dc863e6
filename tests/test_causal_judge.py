"""The family on one causal pass: objectives by hand, fitting, resuming, streaming, storage."""

from pathlib import Path
from typing import Any

import judge_toy as toy
import numpy as np
import pytest
import torch
from tiny_models import tiny

from reward_models.batches import ClipBatch, ClipBatches, ClipConfig
from reward_models.causal_fit import CausalFitConfig, fit_causal, parameter_groups
from reward_models.heads import UNKNOWN
from reward_models.hop import Hop, HopConfig, HopReader, draw_pairs, hop_targets
from reward_models.judge import CausalConfig, CausalJudge, looked_at, spread
from reward_models.progress import Progress, ProgressConfig, preferences
from reward_models.rating import Rating, RatingConfig, rating_targets
from reward_models.registry import load_judge
from reward_models.targets import UNLABELLED, HumanLabels, boundary_progress, episode_targets, thinned
from reward_models.td_success import TDSuccess, TDSuccessConfig
from reward_models.tri_state import TriState, TriStateConfig, focal_loss
from robo_rl.credit.shaping import fuse_backward, fuse_consistent, fuse_forward, fuse_incremental, fuse_mean, hop_label
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Outcome

NAN = float("nan")
ALL = {"progress": {}, "tri_state": {"readout": "running"}, "td_success": {}, "hop": {}, "rating": {}}
PLAIN = {"wrong_instruction": 0.0, "rewind": 0.0, "reverse": 0.0, "hold": 0.0, "part": 0.0, "max_stride": 1.0}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def judge_of(objectives: dict[str, Any], backbone: dict[str, Any] | None = None, **options: Any) -> CausalJudge:
    return CausalJudge(CausalConfig(backbone=backbone or {"type": "compact"}, objectives=objectives, **options))


def batch(progress: list[list[float]], **given: Any) -> ClipBatch:
    """A batch whose parts are named by the test; B clips of L frames, one instruction unless told otherwise."""
    values = torch.tensor(progress)
    count, length = values.shape
    nothing = torch.full_like(values, NAN)
    parts: dict[str, Any] = {
        "rows": np.arange(count * length).reshape(count, length),
        "instructions": torch.zeros(count, 4, dtype=torch.int64),
        "progress": values,
        "label": nothing.clone(),
        "outcome": nothing.clone(),
        "link": torch.full((count, length), -1),
        "weight": torch.ones_like(values),
        "incomplete": torch.zeros(count, length, dtype=torch.bool),
        "tri_state": torch.full((count, length - 1), -1),
        "texts": ("a",) * count,
        "length": torch.full((count,), length),
    }
    return ClipBatch(**(parts | given))


# --- objectives, by hand ------------------------------------------------------------------------------------------


def test_focal_loss_by_hand() -> None:
    """p = 0.8 for y = 1: 2 (0.2)^2 (-log 0.8) = 0.017851; p = 0.3 for y = 0: (0.3)^2 (-log 0.7) = 0.032101."""
    logits = torch.logit(torch.tensor([0.8, 0.3]))
    loss = focal_loss(logits, torch.tensor([1.0, 0.0]), gamma=2.0, alpha=2.0)
    assert float(loss) == pytest.approx((0.0178515 + 0.0321007) / 2, abs=1e-6)


def test_ratings_of_frames() -> None:
    """1 + round(4 progress), never 5 before the success is shown; a labelled success is a 5; NaN is unknown."""
    given = batch([[0.0, 0.3, 0.6, 0.95, NAN]], label=torch.tensor([[NAN, NAN, NAN, NAN, 1.0]]))
    assert rating_targets(given).tolist() == [[0, 1, 2, 3, 4]]
    assert rating_targets(batch([[NAN, 1.0]])).tolist() == [[-1, 3]]


def test_a_rating_s_loss_counts_ends_most() -> None:
    torch.manual_seed(0)
    rating = Rating(8, RatingConfig(every_frame=0.0)).eval()
    hidden = torch.randn(2, 3, 8)
    given = batch([[0.0, 0.5, 1.0], [0.0, 0.25, NAN]], length=torch.tensor([3, 2]))
    expected = [
        -torch.log_softmax(rating.rating(hidden[row, place]).detach(), -1)[level]
        for row, place, level in ((0, 2, 3), (1, 1, 1))
    ]
    assert float(rating.loss(hidden, given, None)["rating"].detach()) == pytest.approx(
        float(sum(expected)) / 2, abs=1e-5
    )


def test_who_is_preferred() -> None:
    """Ends: 1.0, 0.9 (too near), 0.5, bad with 0.95; the last clip has another instruction."""
    given = batch(
        [[0.0, 1.0], [0.0, 0.9], [0.0, 0.5], [0.0, 0.95], [0.0, 0.0]],
        incomplete=torch.tensor([[False, False], [False, False], [False, False], [True, True], [False, False]]),
        texts=("a", "a", "a", "a", "b"),
    )
    better, worse = preferences(given, 0.2)
    pairs = set(zip(better.tolist(), worse.tolist(), strict=True))
    assert pairs == {(0, 2), (1, 2), (0, 3), (1, 3), (2, 3)}
    told = batch([[0.0, 0.5], [0.0, 0.5]], preferred=torch.tensor([[1, 0]]))
    assert [part.tolist() for part in preferences(told, 0.2)] == [[1], [0]]


def test_preference_probability_is_bradley_terry() -> None:
    progress = Progress(8, ProgressConfig()).eval()
    one, two = torch.randn(1, 8), torch.randn(1, 8)
    forward, backward = progress.prefer(one, two), progress.prefer(two, one)
    assert float((forward + backward).detach()) == pytest.approx(1.0, abs=1e-6)
    assert float(progress.prefer(one, one).detach()) == pytest.approx(0.5)


def test_success_of_failures_is_negative_everywhere() -> None:
    """Positive: the labelled frame. Negative: below half of the way, and all of a failure. The rest teaches nothing."""
    progress = Progress(4, ProgressConfig()).eval()
    hidden = torch.randn(2, 3, 4)
    given = batch(
        [[0.0, 0.7, 1.0], [NAN, NAN, NAN]],
        label=torch.tensor([[NAN, NAN, 1.0], [NAN, NAN, 0.0]]),
        incomplete=torch.tensor([[False] * 3, [True] * 3]),
    )
    z = progress.success_logits(hidden).detach()
    plus = torch.nn.functional.softplus
    expected = (plus(z[0, 0]) + plus(-z[0, 2]) + plus(z[1]).sum()) / 5
    assert float(progress._success_loss(hidden, given).detach()) == pytest.approx(float(expected), abs=1e-5)


def test_td_loss_by_hand() -> None:
    """mse: (p - y)^2 with y = slow p of the linked frame, and the label at the end, weighted 1 and 3."""
    td = TDSuccess(4, TDSuccessConfig())
    hidden = torch.randn(1, 3, 4)
    given = batch(
        [[NAN] * 3],
        label=torch.tensor([[NAN, NAN, 1.0]]),
        outcome=torch.tensor([[1.0, 1.0, 1.0]]),
        link=torch.tensor([[2, -1, -1]]),
        weight=torch.tensor([[1.0, 1.0, 3.0]]),
    )
    slow = torch.tensor([[0.1, 0.2, 0.6]])
    p = torch.sigmoid(td.success_logits(hidden))[0].detach()
    expected = ((p[0] - 0.6) ** 2 + 3 * (p[2] - 1.0) ** 2) / 4
    assert float(td.loss(hidden, given, slow)["td_success"].detach()) == pytest.approx(float(expected), abs=1e-6)


def test_hop_targets_are_the_credit_s() -> None:
    a, b = torch.tensor([0.2, 0.5, 1.0, 0.0]), torch.tensor([0.6, 0.1, 1.0, 0.0])
    assert torch.allclose(hop_targets(a, b), torch.tensor([0.5, -0.8, 0.0, 0.0]))  # .4/.8, -.4/.5
    assert np.allclose(hop_targets(a, b).numpy(), hop_label(a.numpy(), b.numpy()))


def test_hop_pairs_stay_within_an_instruction() -> None:
    given = batch([[0.0, 0.5, 1.0, NAN]] * 4, texts=("a", "b", "a", "b"), length=torch.tensor([4, 4, 3, 3]))
    pairs = draw_pairs(given, HopConfig(pairs=400, other_clip=1.0))
    rows, places = pairs // 4, pairs % 4
    assert torch.equal(rows[:, 0] % 2, rows[:, 1] % 2)
    assert (rows[:, 0] != rows[:, 1]).any()
    assert places.max() == 2  # NaN and padding are never drawn
    assert torch.equal(pairs, draw_pairs(given, HopConfig(pairs=400, other_clip=1.0)))


@pytest.mark.parametrize("fusion", ["mean", "consistent"])
@torch.inference_mode()
def test_hop_readout_is_the_credit_s_fusion(fusion: str) -> None:
    """Frame by frame, in blocks of any size, the reader gives what the formulas give on the whole."""
    torch.manual_seed(1)
    hop = Hop(6, HopConfig(fusion=fusion, alpha=0.7)).eval()
    hidden, goal = 2.0 * torch.randn(9, 6), torch.randn(2, 6)
    reader = HopReader(hop, goal)
    parts = [reader.append(part)["progress"] for part in hidden.split([1, 3, 5])]
    hops = hop.between(hidden[:-1], hidden[1:]).numpy()
    forward = fuse_forward(hop.between(hidden[:1].expand(9, -1), hidden).numpy())
    backward = fuse_backward(torch.stack([hop.between(g.expand(9, -1), hidden) for g in goal]).mean(0).numpy())
    if fusion == "mean":
        expected = fuse_mean(fuse_incremental(hops), forward, backward)
    else:
        expected = fuse_consistent(forward, backward, hops, alpha=0.7)
    assert np.allclose(np.concatenate(parts), expected, atol=1e-5)


@torch.inference_mode()
def test_a_hop_judge_without_a_goal_uses_two_perspectives() -> None:
    hop = Hop(6, HopConfig()).eval()
    hop.set_goals({"known": torch.zeros(1, 6)})
    hidden = torch.randn(4, 6)
    read = hop.reader("unknown").append(hidden)
    hops = hop.between(hidden[:-1], hidden[1:]).numpy()
    forward = fuse_forward(hop.between(hidden[:1].expand(4, -1), hidden).numpy())
    assert np.allclose(read["progress"], (fuse_incremental(hops) + forward) / 2, atol=1e-6)
    assert hop.goal("known") is not None


class Steps(TriState):
    """A head that says what the test wants: hidden state 0 is the step's class, 1 the completion logit."""

    def steps(self, hidden: torch.Tensor) -> torch.Tensor:
        return 40.0 * torch.nn.functional.one_hot(hidden[..., 1:, 0].long(), 3).float()

    def success_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[..., 1]


@torch.inference_mode()
def test_tri_state_progress_is_anchored_at_the_completion() -> None:
    """Steps + + 0 - + +, complete at the last frame: net 3, so progress is 0 1 2 2 1 2 3 thirds."""
    reader = Steps(2, TriStateConfig()).reader("a")
    classes, done = [0, 0, 0, 1, 2, 0, 0], [-9.0] * 6 + [9.0]
    hidden = torch.tensor(list(zip(map(float, classes), done, strict=True)))
    parts = [reader.append(part) for part in hidden.split([2, 5])]
    read = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    assert read["tri_state"].shape == (6, 3)
    assert np.allclose(read["progress"], 0.05 * np.array([0, 1, 2, 2, 1, 2, 3]))  # running: 0.05 a step
    assert np.allclose(reader.whole(read)["progress"], np.array([0, 1, 2, 2, 1, 2, 3]) / 3, atol=1e-6)
    hidden[:, 1] = -9.0  # never complete: a fragment
    fragment = Steps(2, TriStateConfig()).reader("a")
    read = fragment.append(hidden)
    assert np.allclose(fragment.whole(read)["progress"], read["progress"])


# --- labels that people give --------------------------------------------------------------------------------------


def test_progress_from_boundaries() -> None:
    """Two sub-tasks, 1 to 3 and 3 to 7: half way at 3, three quarters at 5."""
    assert boundary_progress(np.array([1, 3, 7]), 9).tolist() == [0, 0, 0.25, 0.5, 0.625, 0.75, 0.875, 1, 1]


def test_labels_of_people_go_before_what_time_says() -> None:
    episodes = [toy.episode(0), toy.episode(1, reach=0.5)]
    unknown = [toy.episode(2).__class__(**{**_fields(toy.episode(2)), "outcome": Outcome.UNKNOWN})]
    length = len(episodes[0])
    direction = np.full(length, UNLABELLED, np.int8)
    direction[2:5] = -1
    labels = HumanLabels(
        direction={0: direction},
        boundaries={1: np.array([0, len(episodes[1])])},
        success={2: True},
        preferences=[((0, 0, -1), (1, 2, 5))],
    )
    made = episode_targets([*episodes, *unknown], labels)
    assert made[0].direction is direction
    assert np.allclose(made[1].progress, np.linspace(0, 1, len(episodes[1]) + 1))
    assert (made[2].outcome, made[2].incomplete) == (1.0, False)
    assert made[2].progress[-1] == 1.0
    fewer = labels.select(np.array([1, 0]))
    assert fewer.direction.keys() == {1}
    assert fewer.preferences == [((1, 0, -1), (0, 2, 5))]


def _fields(episode: Any) -> dict[str, Any]:
    return {name: getattr(episode, name) for name in episode.__slots__}


def test_directions_reach_the_batch_forwards_and_backwards() -> None:
    episodes = [toy.episode(0)]
    length = len(episodes[0])
    labels = HumanLabels(direction={0: np.full(length, -1, np.int8)})
    batches = ClipBatches(
        episodes, episode_targets(episodes, labels), np.array([0]), ClipConfig(**PLAIN), batch_size=2, seed=0
    )
    assert set(batches(0).tri_state.flatten().tolist()) == {2, UNKNOWN}  # regressive, and padding
    backwards = ClipBatches(
        episodes,
        episode_targets(episodes, labels),
        np.array([0]),
        ClipConfig(**(PLAIN | {"reverse": 1.0})),
        batch_size=2,
        seed=0,
    )
    assert set(backwards(0).tri_state.flatten().tolist()) == {0, UNKNOWN}


def test_thinned_targets() -> None:
    targets = episode_targets([toy.episode(0)], HumanLabels(direction={0: np.zeros(len(toy.episode(0)), np.int8)}))[0]
    frames = looked_at(len(targets.progress), 4)
    few = thinned(targets, frames)
    assert np.array_equal(few.progress, targets.progress[frames])
    assert few.still.shape == (len(frames) - 1,)
    assert not few.still[0]
    assert few.direction is not None
    assert few.direction.tolist() == [0] * (len(frames) - 1)
    assert few.outcome == targets.outcome


def test_compared_episodes_are_in_every_batch() -> None:
    episodes = toy.episodes(4)
    batches = ClipBatches(
        episodes,
        episode_targets(episodes),
        np.cumsum([0] + [len(e) + 1 for e in episodes[:-1]]),
        ClipConfig(),
        batch_size=16,
        seed=0,
        preferences=[((1, 0, -1), (3, 2, 5))],
    )
    made = batches(0)
    assert made.preferred.shape == (2, 2)
    better = made.preferred[0, 0]
    first = sum(len(e) + 1 for e in episodes[:1])
    assert made.rows[better, 0] == first  # episode 1 from its start
    worse, start = made.preferred[0, 1], sum(len(e) + 1 for e in episodes[:3])
    inside = made.rows[worse, : made.length[worse]] - start
    assert (inside[0], inside[-1]) == (2, 5)


# --- sampling ---------------------------------------------------------------------------------------------------


def test_frames_looked_at_and_what_lies_between() -> None:
    assert looked_at(8, 3).tolist() == [0, 3, 6, 7]
    assert looked_at(7, 3).tolist() == [0, 3, 6]
    read = {
        "progress": np.array([0.0, 0.3, 0.6, 1.0], np.float32),
        "tri_state": np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32),
    }
    wide = spread(read, looked_at(8, 3))
    assert np.allclose(wide["progress"], [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0])
    assert wide["tri_state"].argmax(1).tolist() == [0, 0, 0, 1, 1, 1, 2]


# --- the whole judge ----------------------------------------------------------------------------------------------


def fit_options(**options: Any) -> CausalFitConfig:
    return CausalFitConfig(**({"steps": 30, "batch_size": 4, "held_out": 0.0, "checkpoint_every": 4} | options))


@pytest.mark.parametrize("objective", sorted(ALL))
@pytest.mark.parametrize("family", ["compact", "qwen3_vl", "smolvlm"])
def test_members_fit_stream_and_reload(models: Path, tmp_path: Path, family: str, objective: str) -> None:
    """The loss falls on a toy set; a stream says what `score` says; a reloaded judge says exactly the same."""
    episodes = [toy.episode(n, asked=colour, moved=colour) for n in range(2) for colour in ("red", "green")]
    backbone = {"type": "compact"} if family == "compact" else {"type": "vlm", "path": str(tiny(family, models))}
    window = 1 if objective == "hop" else 4
    judge = judge_of({objective: ALL[objective]}, backbone | {"window": window}, stride=2)
    options = {"trunk_steps": 30} if family == "compact" else {"language_learning_rate": 3e-3}
    result = fit_causal(judge, episodes, fit_options(clips=PLAIN, learning_rate=4e-3, **options), seed=1)
    curve = result.curves["total"]
    assert np.mean(curve[-5:]) < 0.9 * np.mean(curve[:5])

    signals = judge.score(episodes[:2])
    stream = judge.stream([episode.instruction for episode in episodes[:2]])
    for frame in range(max(len(e) for e in episodes[:2]) + 1):
        images = [{c: v[frame] for c, v in e.images.items()} if frame <= len(e) else None for e in episodes[:2]]
        opinions = stream.append(images)
        for opinion, signal, episode in zip(opinions, signals, episodes[:2], strict=True):
            if frame <= len(episode) and frame % 2 == 0:
                assert opinion["progress"][0] == pytest.approx(signal.progress[frame], abs=1e-4)
    judge.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert again.model_id == judge.model_id
    for one, other in zip(signals, again.score(episodes[:2]), strict=True):
        assert np.array_equal(one.progress, other.progress)
        assert all(np.array_equal(one.extra[name], other.extra[name]) for name in one.extra)


@pytest.mark.parametrize("family", ["paligemma", "gemma3", "internvl", "llava_onevision", "qwen2_5_vl"])
def test_other_families_take_a_step_and_reload(models: Path, tmp_path: Path, family: str) -> None:
    episodes = toy.episodes(4)
    judge = judge_of({"progress": {}, "rating": {}}, {"type": "vlm", "path": str(tiny(family, models))}, stride=6)
    options = fit_options(steps=16, clips=PLAIN, learning_rate=4e-3, language_learning_rate=3e-3)
    curve = fit_causal(judge, episodes, options, seed=1).curves["total"]
    assert np.mean(curve[-4:]) < np.mean(curve[:4])
    judge.save(tmp_path / "judge")
    one, other = judge.score(episodes[:1])[0], load_judge(tmp_path / "judge").score(episodes[:1])[0]
    assert np.array_equal(one.progress, other.progress)
    assert one.uncertainty is not None


class Stop(Exception):
    """The process was killed here."""


@pytest.mark.parametrize("stop", [3, 9, 13, 20])
@pytest.mark.parametrize("family", ["compact", "smolvlm"])
def test_a_fit_that_was_stopped_goes_on_exactly(models: Path, tmp_path: Path, family: str, stop: int) -> None:
    episodes = toy.episodes(8)
    backbone = {"type": "compact"} if family == "compact" else {"type": "vlm", "path": str(tiny(family, models))}
    options = fit_options(steps=14, trunk_steps=7 if family == "compact" else 0)
    objectives = {"progress": {}, "td_success": {}}
    steps = 14 + options.trunk_steps
    if stop > steps:
        return  # this family is through by then

    def quiet(step: int, _: int) -> None:
        if step == stop:
            raise Stop

    reference = judge_of(objectives, backbone, stride=3)
    whole = fit_causal(reference, episodes, options, seed=2)
    stopped = judge_of(objectives, backbone, stride=3)
    with pytest.raises(Stop):
        fit_causal(stopped, episodes, options, seed=2, workdir=tmp_path, progress_callback=quiet)
    resumed = judge_of(objectives, backbone, stride=3)
    rest: list[int] = []
    result = fit_causal(
        resumed, episodes, options, seed=2, workdir=tmp_path, progress_callback=lambda step, _: rest.append(step)
    )
    assert resumed.model_id == reference.model_id
    assert result.curves == whole.curves
    assert len(rest) < steps or stop < 4  # it did not start over


def test_equal_seeds_equal_judges() -> None:
    episodes = toy.episodes(6)
    made = []
    for seed in (3, 3, 4):
        judge = judge_of({"progress": {}, "hop": {}})
        fit_causal(judge, episodes, fit_options(steps=5, trunk_steps=3), seed=seed)
        made.append(judge.model_id)
    assert made[0] == made[1] != made[2]


def test_learning_rates_by_what_a_parameter_belongs_to(models: Path) -> None:
    path = str(tiny("qwen3_vl", models))
    judge = judge_of({"progress": {}}, {"type": "vlm", "path": path, "cameras": ["front"], "vision_layers": 1})
    config = CausalFitConfig(learning_rate=1.0, language_learning_rate=2.0, vision_learning_rate=3.0)
    rates = {id(p): group["lr"] for group in parameter_groups(judge.network, config) for p in group["params"]}
    backbone = judge.network.backbone
    assert rates[id(backbone.reward_token)] == 1.0
    named = dict(backbone.named_parameters())
    assert {rates[id(p)] for name, p in named.items() if "lora_" in name} == {2.0}
    assert {rates[id(p)] for name, p in named.items() if name.startswith("model.visual.") and p.requires_grad} == {3.0}
    assert {rates[id(p)] for p in judge.network.objectives.parameters()} == {1.0}


def test_memory_does_not_grow_with_an_episode_under_a_window() -> None:
    judge = judge_of({"progress": {}}, {"type": "compact", "cameras": ["front"], "window": 3}, block=5)
    long = toy.episode(0)
    one = judge.score([long])[0]
    other = judge_of({"progress": {}}, {"type": "compact", "cameras": ["front"], "window": 3}, block=500).score([long])[
        0
    ]
    assert np.allclose(one.progress, other.progress, atol=1e-5)  # block size changes nothing


@pytest.mark.parametrize("family", ["compact", "qwen3_vl"])
def test_episodes_side_by_side_do_not_disturb_each_other(models: Path, family: str) -> None:
    """Of different lengths and instructions, in blocks: the same as one by one."""
    episodes = toy.episodes(5)
    backbone = {"type": "compact"} if family == "compact" else {"type": "vlm", "path": str(tiny(family, models))}
    made = []
    for options in ({"together": 1}, {"together": 3, "block": 4}):
        judge = judge_of({"hop": {}, "tri_state": {}}, backbone | {"cameras": ["front"], "window": 3}, **options)
        made.append(judge.score(episodes))
    for alone, beside, episode in zip(*made, episodes, strict=True):
        assert len(beside.progress) == len(episode) + 1
        assert np.allclose(alone.progress, beside.progress, atol=1e-4)
        assert alone.tri_state is not None
        assert beside.tri_state is not None
        assert np.allclose(alone.tri_state, beside.tri_state, atol=1e-4)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"objectives": {}}, "name at least one of"),
        ({"objectives": {"guess": {}}}, "objectives.guess: not known"),
        ({"backbone": {"type": "big"}}, "backbone.type must be one of compact, vlm"),
        ({"backbone": {"type": "compact", "widow": 3}}, "backbone.widow: unknown key"),
        ({"objectives": {"hop": {"fusion": "max"}}}, "fusion must be mean or consistent"),
        ({"stride": 0}, "stride and together must be at least 1"),
        ({"name": "a@b"}, "a word without '@'"),
        ({"backbone": {"type": "vlm"}}, "backbone"),
    ],
)
def test_bad_configurations(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CausalConfig(**({"backbone": {"type": "compact"}, "objectives": {"progress": {}}} | change))


def test_a_fit_needs_something_to_learn_from() -> None:
    nothing = [toy.episode(0).__class__(**{**_fields(toy.episode(0)), "outcome": Outcome.ABORT})]
    with pytest.raises(DataError, match="nothing can be learned"):
        fit_causal(judge_of({"progress": {}}), nothing, seed=0)
    with pytest.raises(DataError, match="there are none"):
        fit_causal(judge_of({"progress": {}}), [], seed=0)


def test_a_judge_whose_model_changed_is_refused(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in tiny("smolvlm", models).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    judge = judge_of({"progress": {}}, {"type": "vlm", "path": str(folder), "cameras": ["front"], "language": "none"})
    judge.save(tmp_path / "judge")
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(DataError, match="is there now"):
        CausalJudge.load(tmp_path / "judge")
    config.unlink()
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        CausalJudge.load(tmp_path / "judge")
