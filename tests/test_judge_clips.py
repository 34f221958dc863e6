"""What episodes teach a judge: wording, targets, clips and their changes, batches, the success target."""

import dataclasses

import judge_toy as toy
import numpy as np
import pytest
import torch

from reward_models import augment
from reward_models.batches import ClipBatches, ClipConfig
from reward_models.heads import expected_progress, incomplete_loss, two_bin_targets
from reward_models.losses import success_targets
from reward_models.targets import EpisodeTargets, episode_targets, remaining_progress, still_steps
from reward_models.wording import certainly_different, likeness
from robo_rl.credit.td import td_success_targets
from robo_rl.errors import ConfigError
from robo_rl.nets import tokenize
from robo_rl.types import Controller, Outcome

NAN = float("nan")


def targets(length: int = 10, outcome: float = 1.0, taught: bool = True, progress: bool = True) -> EpisodeTargets:
    return EpisodeTargets(
        progress=np.linspace(0, 1, length, dtype=np.float32) if progress else np.full(length, NAN, np.float32),
        still=np.zeros(length - 1, bool),
        outcome=outcome,
        by_policy=np.full(length, taught),
        incomplete=outcome == 0.0,
    )


def clip(length: int = 10, hop: int = 2, **kwargs) -> augment.Clip:
    return augment.make_clip(targets(length, **kwargs), np.arange(length), hop, end_weight=4.0)


# --- wording -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "different"),
    [
        ("put the red cube in the bowl", "put the blue cube in the bowl", True),
        ("put the red cube in the bowl", "put the red cube on the yellow pad", True),
        ("stack the red cube on the blue cube", "stack the blue cube on the red cube", True),
        ("push the red cube left", "slide the red cube to the right edge", True),
        ("put the red cube in the bowl", "place the red cube into the bowl", False),  # a paraphrase
        ("push the red cube left", "slide the red cube to the left edge", False),
        ("move the cube to the bowl", "move the red cube to the bowl", False),  # says more, but may be the same
        ("put the red cube on the blue cube", "on the blue cube put the red cube", False),  # another order of words
        ("Put it there", " put it there", False),
    ],
)
def test_only_what_is_certain_counts_as_different(a: str, b: str, different: bool) -> None:
    assert certainly_different(a, b) is different
    assert certainly_different(b, a) is different


def test_other_tasks_are_different_and_likeness_counts_shared_words() -> None:
    assert certainly_different("open it", "close it now", "door-open", "door-close")
    # red, cube, bowl against blue, cube, bowl: 2 of 4 words
    assert likeness("put the red cube in the bowl", "put the blue cube in the bowl") == pytest.approx(0.5)


# --- targets ---------------------------------------------------------------------------------------------------


def test_progress_counts_back_from_the_end_and_pauses_do_not_count() -> None:
    # four steps, the second stands still: to go 3, 2, 2, 1, 0; scale min(3, 4) = 3
    still = np.array([False, True, False, False])
    assert remaining_progress(still, 4.0).tolist() == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 1])
    # an episode longer than usual (scale 2) starts with zeros: 1 - (3, 2, 2, 1, 0) / 2
    assert remaining_progress(still, 2.0).tolist() == pytest.approx([0, 0, 0, 0.5, 1])


def test_a_still_step_is_a_fifth_of_the_median_step() -> None:
    assert still_steps(np.array([1.0, 0.1, 1.0, 0.3, 5.0])).tolist() == [False, True, False, False, False]
    assert not still_steps(np.zeros(3)).any()  # nothing ever moves: no step is stiller than the others


def test_what_each_kind_of_episode_teaches() -> None:
    success, failure = toy.episode(0), toy.episode(1, moved="green")
    aborted = dataclasses.replace(toy.episode(2), outcome=Outcome.ABORT)
    demo = toy.episode(3, controller=Controller.SCRIPT)
    good, bad, none, shown = episode_targets([success, failure, aborted, demo])
    assert good.progress[-1] == 1.0
    assert good.by_policy.all()
    assert np.isnan(bad.progress).all()
    assert (bad.outcome, bad.incomplete) == (0.0, True)
    assert np.isnan(none.outcome)
    assert not none.incomplete
    assert shown.outcome == 1.0  # a demonstration's last frame is a success
    assert not shown.by_policy.any()  # but it says nothing of the policy's chances


def test_only_the_last_segment_of_the_policy_sees_the_outcome() -> None:
    episode = toy.episode(0)
    controller = episode.controller.copy()
    controller[3:5] = Controller.HUMAN
    (found,) = episode_targets([dataclasses.replace(episode, controller=controller)])
    assert found.by_policy.tolist() == [False] * 5 + [True] * (len(episode) + 1 - 5)
    controller[-1] = Controller.HUMAN  # the human finishes
    (found,) = episode_targets([dataclasses.replace(episode, controller=controller)])
    assert not found.by_policy.any()


def test_without_any_policy_whoever_acts_is_judged() -> None:
    (found,) = episode_targets([toy.episode(0, controller=Controller.SCRIPT)])
    assert found.by_policy.all()


def test_true_progress_is_never_looked_at() -> None:
    episode = toy.episode(0)
    lied = dataclasses.replace(episode, true_progress=1.0 - episode.true_progress)
    a, b = episode_targets([episode])[0], episode_targets([lied])[0]
    assert np.array_equal(a.progress, b.progress)


# --- clips -----------------------------------------------------------------------------------------------------


def test_a_whole_clip_links_hop_frames_ahead_and_labels_its_end() -> None:
    made = clip(6, hop=2)
    assert made.link.tolist() == [2, 3, 4, 5, 5, -1]
    assert np.isnan(made.label[:-1]).all()
    assert (made.label[-1], made.weight[-1]) == (1.0, 4.0)
    # at double speed the hop is still two frames of the episode: one place
    fast = augment.make_clip(targets(7), np.array([0, 2, 4, 6]), 2)
    assert fast.link.tolist() == [1, 2, 3, -1]


def test_a_part_that_does_not_reach_the_end_has_no_label() -> None:
    part = augment.make_clip(targets(10), np.arange(2, 7), 2)
    assert np.isnan(part.label).all()
    assert part.link[-1] == -1
    assert part.progress[-1] < 1.0


def test_frames_of_others_have_no_success_target_but_their_end_has() -> None:
    made = clip(5, taught=False)
    assert (made.link == -1).all()
    assert np.isnan(made.outcome).all()
    assert made.label[-1] == 1.0


def test_reverse_mirrors_frames_and_progress_and_ends_badly() -> None:
    made = augment.reverse(clip(9))
    assert made.frames.tolist() == list(range(8, -1, -1))
    assert made.progress.tolist() == pytest.approx(np.linspace(1, 0, 9).tolist())
    assert made.label[0] == 1.0  # it begins with the success in sight
    assert made.label[-1] == 0.0
    assert made.link.tolist() == [-1, -1, -1, 4, 5, 6, 7, 8, -1]


def test_rewind_goes_back_and_nothing_is_bootstrapped_across_the_turn() -> None:
    made = augment.rewind(clip(10, hop=3), turn=5, back=3)
    assert made.frames.tolist() == [0, 1, 2, 3, 4, 5, 4, 3, 2]
    assert made.progress.tolist() == pytest.approx((made.frames / 9).tolist())
    assert made.link.tolist() == [3, 4, 5, 5, 5, -1, 7, 8, -1]
    assert made.label[-1] == 0.0
    assert np.isnan(made.outcome[6:]).all()


def test_rewinding_a_success_keeps_the_success_that_was_seen() -> None:
    made = augment.rewind(clip(6), turn=5, back=4)
    assert made.label[5] == 1.0
    assert made.label[-1] == 0.0


def test_hold_a_success_and_it_stays_one_hold_anything_else_and_it_fails() -> None:
    made = augment.hold(clip(6), at=5, count=3)
    assert made.frames.tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5]
    assert made.label[5:].tolist() == [1.0] * 4
    stuck = augment.hold(clip(6), at=3, count=3)
    assert stuck.frames.tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert stuck.progress[3:].tolist() == pytest.approx([0.6] * 4)
    assert stuck.label[-1] == 0.0
    assert stuck.link.tolist() == [2, 3, 3, -1, 5, 6, -1]


def test_a_wrong_instruction_is_worth_nothing_from_first_to_last() -> None:
    made = augment.wrong_instruction(clip(5))
    assert made.progress.tolist() == [0.0] * 5
    assert made.label.tolist() == [0.0] * 5
    assert made.weight.tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert made.incomplete.all()


def test_tri_state_follows_the_direction_of_time_where_progress_is_known() -> None:
    still = np.zeros(9, bool)
    still[1] = True
    made = augment.rewind(clip(10), turn=3, back=2)  # frames 0 1 2 3 2 1
    assert augment.tri_state_targets(made, still).tolist() == [0, 1, 0, 2, 1]
    failed = augment.hold(clip(6, outcome=0.0, progress=False), at=2, count=2)  # frames 0 1 2 2 2
    assert augment.tri_state_targets(failed, still).tolist() == [-1, -1, 1, 1]
    wrong = augment.wrong_instruction(clip(4))
    assert augment.tri_state_targets(wrong, still).tolist() == [1, 1, 1]


def test_speed_rises_keeps_both_ends_and_its_count() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        last = int(rng.integers(1, 90))
        frames = augment.speed(3, 3 + last, 12, rng)
        assert frames[0] == 3
        assert frames[-1] == 3 + last
        assert len(frames) <= 12
        assert (np.diff(frames) > 0).all()


def test_changes_leave_the_clip_they_were_given_as_it_was() -> None:
    made = clip(8)
    before = {name: getattr(made, name).copy() for name in augment.Clip.__dataclass_fields__}
    augment.rewind(made, 5, 3)
    augment.hold(made, 7, 3)
    augment.hold(made, 3, 3)
    augment.reverse(made)
    augment.wrong_instruction(made)
    for name, array in before.items():
        assert np.array_equal(getattr(made, name), array, equal_nan=array.dtype.kind == "f"), name


# --- batches ---------------------------------------------------------------------------------------------------


def batches(episodes, **kwargs) -> ClipBatches:
    first = np.cumsum([0] + [len(e) + 1 for e in episodes[:-1]])
    return ClipBatches(episodes, episode_targets(episodes), first, ClipConfig(**kwargs), batch_size=16, seed=5)


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    episodes = toy.episodes(24)
    a, b, other = batches(episodes)(3), batches(episodes)(3), batches(episodes)(4)
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name in ("texts", "dropped"):
            assert x == y
            continue
        assert torch.equal(torch.as_tensor(x).nan_to_num(9.0), torch.as_tensor(y).nan_to_num(9.0)), field.name
    assert not np.array_equal(a.rows, other.rows)


def test_wrong_instructions_are_copies_of_successes_and_cost_them_everything() -> None:
    episodes = toy.episodes(24)
    made = batches(episodes, wrong_instruction=0.25, rewind=0.0, reverse=0.0, hold=0.0)
    owner = np.repeat(np.arange(24), [len(e) + 1 for e in episodes])
    for step in range(10):
        batch = made(step)
        for row in range(16):
            episode = episodes[owner[batch.rows[row, 0]]]
            own = torch.equal(batch.instructions[row], tokenize([episode.instruction])[0])
            if own:
                continue
            assert episode.success
            assert row >= 12
            known = ~batch.progress[row].isnan()
            assert float(batch.progress[row][known].abs().sum()) == 0.0
            assert float(batch.label[row].nan_to_num(0.0).sum()) == 0.0
            break
        else:
            pytest.fail("a batch without a wrong instruction")


def test_links_and_rows_stay_inside_the_clip_and_its_episode() -> None:
    episodes = toy.episodes(16)
    made = batches(episodes, frames=8, rewind=0.3, reverse=0.2, hold=0.5)
    owner = np.repeat(np.arange(16), [len(e) + 1 for e in episodes])
    for step in range(40):
        batch = made(step)
        length = batch.rows.shape[1]
        assert length <= 8
        place = torch.arange(length).expand_as(batch.link)
        linked = batch.link >= 0
        assert (batch.link[linked] > place[linked]).all()
        assert (batch.link < length).all()
        assert (owner[batch.rows] == owner[batch.rows[:, :1]]).all()


def test_nothing_is_made_up_about_aborted_episodes() -> None:
    aborted = [dataclasses.replace(e, outcome=Outcome.ABORT) for e in toy.episodes(8)]
    made = batches(aborted, rewind=0.4, reverse=0.3, hold=0.3)
    for step in range(10):
        batch = made(step)
        assert batch.label.isnan().all()
        assert (batch.link == -1).all()


@pytest.mark.parametrize("bad", [{"frames": 3}, {"hop": 0}, {"hold": 0.9, "rewind": 0.2}, {"wrong_instruction": 1.0}])
def test_impossible_clips_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=r"judge\.fit\.clips"):
        ClipConfig(**bad)


# --- losses ----------------------------------------------------------------------------------------------------


def test_success_targets_agree_with_the_formula_in_credit() -> None:
    # a clip of every frame is the episode, so both implementations of METHODS 2.7 must give the same
    p = np.random.default_rng(0).uniform(0.1, 0.9, 9)
    for outcome, kind in ((1.0, Outcome.SUCCESS), (0.0, Outcome.FAILURE)):
        made = augment.make_clip(targets(9, outcome=outcome), np.arange(9), 2)
        y, mask = success_targets(
            torch.tensor(p)[None],
            torch.tensor(made.label)[None].double(),
            torch.tensor(made.outcome)[None].double(),
            torch.tensor(made.link)[None],
            0.3,
        )
        expected, _ = td_success_targets(p, kind, hop=2, mc_mix=0.3)
        assert mask.all()
        assert y[0].numpy() == pytest.approx(expected)


def test_two_bins_keep_the_expectation() -> None:
    # .25 of 10 bins lies at 2.25: .75 on centre 2/9 and .25 on 3/9
    soft = two_bin_targets(torch.tensor([0.25]), 10)[0]
    assert soft[2].item() == pytest.approx(0.75)
    assert soft[3].item() == pytest.approx(0.25)
    values = torch.rand(50, generator=torch.Generator().manual_seed(0))
    mean, _ = expected_progress((two_bin_targets(values, 10) + 1e-9).log())
    assert torch.allclose(mean, values, atol=1e-4)


def test_not_complete_penalises_the_top_bin_alone() -> None:
    # uniform over 10 bins: -log(9/10)
    assert incomplete_loss(torch.zeros(1, 10)).item() == pytest.approx(-np.log(0.9), abs=1e-6)
    sure = torch.full((1, 10), -20.0)
    sure[0, 4] = 20.0
    assert incomplete_loss(sure).item() == pytest.approx(0.0, abs=1e-6)
