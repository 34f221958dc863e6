"""The audit passes a sound judge and catches each kind of cheat, on toy videos whose truth is in the pixels."""

import dataclasses
import json
import math

import judge_toy as toy
import numpy as np
import pytest

from reward_models import controls
from reward_models.audit import AuditReport, audit
from reward_models.audit_rows import Mark
from robo_rl.errors import DataError, RewardError
from robo_rl.types import Outcome, RewardSignal, Trajectory

RNG = np.random.default_rng(0)


def shown_progress(episode: Trajectory) -> np.ndarray:
    """How near the asked square is to the goal in every picture; 0 where there is no such square."""
    colour = np.array(toy.COLOURS["red" if "red" in episode.instruction else "green"])
    out = []
    for frame in episode.images["front"]:
        rows, columns = np.nonzero((np.abs(frame.astype(int) - colour) < 90).all(-1))
        if not len(rows):
            out.append(0.0)
            continue
        way = np.hypot(rows.mean() - toy.GOAL[0] - 2, columns.mean() - toy.GOAL[1] - 2)
        out.append(1.0 - min(way / 18.0, 1.0))
    return np.array(out, np.float32)


class Judge:
    """progress(episode) -> (T+1,); success is certain above .95."""

    def __init__(self, progress, success=None, name="test"):
        self.model_id = f"{name}@0"
        self.progress = progress
        self.success = success or (lambda episode, p: np.where(p > 0.95, 0.95, 0.1 * p))

    def score(self, trajectories):
        out = []
        for episode in trajectories:
            p = np.asarray(self.progress(episode), np.float32)
            s = np.asarray(self.success(episode, p), np.float32)
            out.append(RewardSignal(episode_id=episode.episode_id, model_id=self.model_id, progress=p, success_prob=s))
        return out


class SilentJudge(Judge):
    """Gives progress only."""

    def score(self, trajectories):
        return [dataclasses.replace(signal, success_prob=None) for signal in super().score(trajectories)]


def clock(episode: Trajectory) -> np.ndarray:
    return np.minimum(np.arange(len(episode) + 1) / 14, 1.0)


def blind_to_words(episode: Trajectory) -> np.ndarray:
    either = [dataclasses.replace(episode, instruction=f"move the {colour} square") for colour in toy.COLOURS]
    return np.max([shown_progress(one) for one in either], axis=0)


@pytest.fixture(scope="module")
def episodes():
    return toy.episodes(40, first=300)


def rows(report: AuditReport) -> dict:
    return {row.control: row for row in report.rows}


def test_a_sound_judge_passes(episodes) -> None:
    report = audit(Judge(shown_progress), episodes, seed=0)
    assert report.failed == []
    # This one measures the way to a fixed place in the picture, so it cannot stand a camera that moved.
    assert [row.control for row in report.rows if row.verdict == "warn"] == ["cropped"], report.table()
    assert set(report.left_out) == {"one_camera", "swapped_cameras"}
    found = rows(report)
    assert found["auroc"].effect == 1.0
    assert found["success"].effect == pytest.approx(0.95)
    assert found["padded"].effect == pytest.approx(0.0)
    assert found["wrong_instruction"].effect > 0.8
    for row in report.rows:
        assert row.low <= row.effect <= row.high or math.isnan(row.low)


@pytest.mark.parametrize(
    ("judge", "caught"),
    [
        (Judge(clock), {"static", "reversed", "shuffled", "padded", "blank", "wrong_instruction", "auroc"}),
        (Judge(blind_to_words), {"wrong_instruction"}),
        (Judge(lambda e: np.maximum.accumulate(shown_progress(e))), {"reversed", "rewound"}),
        (Judge(shown_progress, lambda e, p: 0.5 * p), {"success"}),
        (Judge(shown_progress, lambda e, p: np.full(len(p), 0.9)), {"blank", "wrong_instruction", "rise", "auroc"}),
    ],
)
def test_each_cheat_is_caught_by_its_controls(judge, caught, episodes) -> None:
    report = audit(judge, episodes, seed=0)
    assert caught <= set(report.failed), report.table()
    assert report.verdict == "fail"


def test_a_judge_without_probabilities_is_judged_by_its_progress(episodes) -> None:
    report = audit(SilentJudge(shown_progress), episodes, seed=0)
    assert rows(report)["auroc"].effect == 1.0
    assert "success" not in report.failed


def test_the_same_seed_gives_the_same_audit_and_json_keeps_it(episodes) -> None:
    report = audit(Judge(shown_progress), episodes, seed=3)
    assert audit(Judge(shown_progress), episodes, seed=3) == report
    text = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert AuditReport.from_json(text) == report
    assert text["verdict"] == "warn"
    with pytest.raises(DataError, match="not an audit"):
        AuditReport.from_json({"rows": [{"control": "static"}]})


def test_what_cannot_be_measured_is_neither_passed_nor_failed() -> None:
    # one instruction only: there is no wrong one; two successes: too few for any control
    some = [toy.episode(0), toy.episode(1), toy.episode(2, moved="green"), toy.episode(3, reach=0.5)]
    report = audit(Judge(shown_progress), some, seed=0)
    row = rows(report)["wrong_instruction"]
    assert math.isnan(row.effect)
    assert row.verdict == "warn"
    assert row.reason == "0 episodes; needs 4"
    assert [r["effect"] for r in report.to_json()["rows"] if r["control"] == "wrong_instruction"] == [None]
    assert rows(report)["static"].verdict == "warn"
    with pytest.raises(RewardError, match="needs episodes that ended"):
        audit(Judge(shown_progress), [dataclasses.replace(some[0], outcome=Outcome.ABORT)], seed=0)


def test_marks() -> None:
    up, down = Mark(good=0.4, bad=0.2), Mark(good=0.1, bad=0.25, below=True)
    assert [up.verdict(x) for x in (0.4, 0.3, 0.1)] == ["pass", "warn", "fail"]
    assert [down.verdict(x) for x in (-0.5, 0.1, 0.2, 0.3)] == ["pass", "pass", "warn", "fail"]
    assert up.verdict(float("nan")) == "warn"
    assert down.rule == "effect <= 0.1 (fails above 0.25)"


# --- the changed videos ---------------------------------------------------------------------------------------


def numbered(length: int) -> Trajectory:
    """A video whose frame n is filled with n."""
    episode = toy.episode(0)
    frames = np.arange(length, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), np.uint8)
    return dataclasses.replace(
        episode,
        images={"front": frames},
        state=np.zeros((length, 2), np.float32),
        actions=np.zeros((length - 1, 2), np.float32),
        controller=np.zeros(length - 1, np.int8),
        true_progress=None,
    )


def order(episode: Trajectory) -> list[int]:
    return episode.images["front"][:, 0, 0, 0].tolist()


def test_each_control_shows_what_it_says() -> None:
    video = numbered(11)  # 10 steps
    assert order(controls.static(video, RNG)) == [0] * 11
    assert order(controls.backwards(video, RNG)) == list(range(10, -1, -1))
    assert sorted(order(controls.shuffled(video, RNG))) == list(range(11))
    assert order(controls.rewound(video, RNG)) == [*range(10), *range(8, 1, -1)]
    assert order(controls.truncated(0.5)(video, RNG)) == [0, 1, 2, 3, 4]
    assert order(controls.padded(video, RNG)) == [0, 1, 2, 3, 4, *[4] * 17]
    assert not controls.blank(video, RNG).images["front"].any()
    assert order(video) == list(range(11))


def test_further_controls_show_what_they_say() -> None:
    video = numbered(11)
    assert order(controls.static_last(video, RNG)) == [10] * 11
    assert order(controls.truncated(0.25)(video, RNG)) == [0, 1]
    assert order(controls.faster(video, RNG)) == [0, 2, 4, 6, 8, 10]
    assert order(controls.faster(numbered(4), RNG)) == [0, 2, 3]
    assert order(controls.slower(numbered(3), RNG)) == [0, 0, 1, 1, 2, 2]
    assert controls.empty_instruction(video, RNG).instruction == ""
    assert controls.one_camera(video, RNG) is None
    two = dataclasses.replace(video, images={"a": video.images["front"], "b": video.images["front"] + 100})
    assert order_of(controls.one_camera(two, RNG), "b") == list(range(11))
    assert order_of(controls.swapped_cameras(two, RNG), "a") == list(range(100, 111))
    assert order_of(controls.swapped_cameras(two, RNG), "b") == list(range(11))
    bright = dataclasses.replace(video, images={"front": np.full((11, 4, 4, 3), 200, np.uint8)})
    levels = {int(controls.brightness(bright, np.random.default_rng(n)).images["front"][0, 0, 0, 0]) for n in range(8)}
    assert levels == {150, 250}
    grain = controls.noise(bright, np.random.default_rng(0)).images["front"].astype(float)
    assert 7 < grain.std() < 13
    wide = dataclasses.replace(
        video, images={"front": np.arange(32, dtype=np.uint8)[None, None, :, None] * np.ones((11, 32, 1, 3), np.uint8)}
    )
    shifted = {tuple(controls.cropped(wide, np.random.default_rng(n)).images["front"][0, 0, :4, 0]) for n in range(8)}
    assert shifted == {(2, 3, 4, 5), (0, 0, 0, 1)}


def order_of(episode: Trajectory | None, camera: str) -> list[int]:
    assert episode is not None
    return episode.images[camera][:, 0, 0, 0].tolist()


def test_words_of_a_paraphrase() -> None:
    said = dataclasses.replace(toy.episode(0), instruction="Put the red cube into the bowl, then push it")
    changed = controls.paraphrase(said, RNG)
    assert changed is not None
    assert changed.instruction == "place the red block in the dish, then slide it"
    assert controls.paraphrase(dataclasses.replace(said, instruction="wave"), RNG) is None


def test_another_task_s_video_under_this_instruction(episodes) -> None:
    red = next(episode for episode in episodes if "red" in episode.instruction)
    other = controls.other_video(episodes)(red, RNG)
    assert other is not None
    assert other.instruction == red.instruction
    shown = next(episode for episode in episodes if episode.images is other.images)
    assert "green" in shown.instruction
    assert shown.success
    assert controls.other_video([red])(red, RNG) is None


def test_views_are_tried_on_failures(episodes) -> None:
    """A judge that takes any second camera that shows a success for one is warned about."""
    two = [
        dataclasses.replace(e, images={"front": e.images["front"], "other": e.images["front"][::-1]}) for e in episodes
    ]

    def fooled(episode: Trajectory) -> np.ndarray:
        same = np.array_equal(episode.images["front"], episode.images["other"])
        return np.full(len(episode) + 1, 1.0, np.float32) if same else shown_progress(episode)

    found = rows(audit(Judge(fooled), two, seed=0))
    assert found["one_camera"].verdict == "warn"
    assert found["one_camera"].effect > 0.8
    assert found["swapped_cameras"].verdict == "pass"


def test_short_videos_can_be_shown_too() -> None:
    video = numbered(2)
    for control in (controls.static, controls.backwards, controls.rewound, controls.truncated(0.25), controls.padded):
        assert len(control(video, RNG).images["front"]) >= 2


def test_the_wrong_instruction_is_one_of_the_most_alike() -> None:
    episodes = [
        dataclasses.replace(toy.episode(n), instruction=text, task="place")
        for n, text in enumerate(
            (
                "put the red cube in the bowl",
                "place the red cube into the bowl",
                "put the blue cube in the bowl",
                "put the blue cube on the yellow pad",
            )
        )
    ]
    changed = controls.wrong_instruction(episodes)(episodes[0], RNG)
    assert changed is not None
    assert changed.instruction == "put the blue cube in the bowl"
    assert changed.images is episodes[0].images
    assert controls.wrong_instruction(episodes[:2])(episodes[0], RNG) is None
