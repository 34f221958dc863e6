"""A report as a real run would fill it, with drawn frames: for test_report.py and test_report_browser.py."""

from __future__ import annotations

import numpy as np

from robo_rl.report.model import (
    ArmResult,
    AuditRow,
    CalibrationBin,
    CreditRound,
    Curve,
    EpisodeView,
    JudgeQuality,
    JudgeRound,
    PairedTest,
    Provenance,
    ReportData,
    RoundResult,
    TaskResult,
)
from robo_rl.types import Outcome

TASKS = {
    "push_red": "push the red block to the corner",
    "lift_blue": "lift the blue block",
    "place_green": "put the green block into the tray",
    "drawer": "close the drawer",
}


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Textbook Wilson interval."""
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return centre - half, centre + half


def clock_width(frame: int, size: int) -> int:
    """White pixels of the clock strip along the top of every drawn frame: the frame can be read from the picture."""
    return 2 + frame * size // 64


def draw_frames(steps: int, size: int, reach: float, seed: int) -> np.ndarray:
    """A table, a block and a gripper that goes for it: uint8 (steps + 1, size, size, 3)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    base = np.stack([150 + 40 * rows, 128 + 30 * rows, 104 + 20 * columns], axis=-1)
    base[rows < 0.3] = (196, 203, 210)
    base += rng.normal(0, 2, base.shape)
    colour = ((200, 60, 50), (60, 90, 200), (60, 160, 90))[seed % 3]
    block = np.array([0.62, 0.35 + 0.3 * rng.random()])
    frames = []
    for t in range(steps + 1):
        image = base.copy()
        done = min(1.0, reach * t / (0.8 * steps))
        hand = np.array([0.1, 0.1]) + done * (block - np.array([0.14, 0.1]))
        held = np.array([0.0, 0.0]) if done < 0.95 else np.array([-0.25 * (t / steps - 0.76) / 0.24, 0.0])
        at = block + held * (reach >= 1.0)
        image[(abs(rows - at[0]) < 0.07) & (abs(columns - at[1]) < 0.07)] = colour
        grip = hand + held * (reach >= 1.0)
        image[(abs(columns - grip[1]) < 0.03) & (rows < grip[0])] = (60, 62, 68)
        image[(abs(columns - grip[1]) < 0.09) & (abs(rows - grip[0]) < 0.025)] = (40, 42, 46)
        strip = max(2, size // 16)
        image[:strip] = 0
        image[:strip, : clock_width(t, size)] = 255
        frames.append(image)
    return np.clip(frames, 0, 255).astype(np.uint8)


def sample_episode(number: int, *, steps: int = 40, size: int = 64, fps: float = 10.0) -> EpisodeView:
    """Episode `number`: 0, 3, 6, ... before, 1, 4, ... after, 2, 5, ... a demonstration."""
    group = ("before", "after", "demonstration")[number % 3]
    index = number // 3
    wins = group != "before" and number % 4 != 1
    reach = 1.0 if wins else 0.4 + 0.05 * (number % 7)
    rng = np.random.default_rng(number)
    time = np.arange(steps + 1) / steps
    true = np.clip(reach * time / 0.85, 0, 1) if wins else reach * np.sin(np.minimum(1.0, 1.4 * time) * np.pi / 2)
    progress = np.clip(true + rng.normal(0, 0.03, steps + 1), 0, 1)
    gain = np.diff(true, prepend=0.0)[1:] * steps
    logits = np.stack([2.5 * gain - 1, np.full(steps, 0.3), -2.0 * gain - 0.5], axis=1) + rng.normal(0, 0.3, (steps, 3))
    tri = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    task = list(TASKS)[index % len(TASKS)]
    return EpisodeView(
        key=f"{group}-{task}-{index}",
        title=f"{task} {index}",
        group=group,  # type: ignore[arg-type]
        instruction=TASKS[task],
        task=task,
        outcome=Outcome.SUCCESS if wins else (Outcome.TIMEOUT, Outcome.FAILURE)[number % 2],
        index=index,
        policy={"before": "imitation", "after": "improved", "demonstration": "scripted-expert"}[group],
        fps=fps,
        frames={
            "front": draw_frames(steps, size, reach, number),
            "wrist": draw_frames(steps, size, reach, number + 50)[:, ::-1],
        },
        progress=progress.astype(np.float32),
        success_prob=(1 / (1 + np.exp(-10 * (progress - 0.75)))).astype(np.float32),
        tri_state=tri.astype(np.float32),
        weight=None if group == "demonstration" else np.clip(1 + gain * 0.6 - 0.3, 0, 3).astype(np.float32),
        true_progress=true.astype(np.float32),
        note="" if wins else "The gripper closes too early and the block slips.",
    )


def _arm(
    name: str, label: str, wins: tuple[int, ...], *, rounds: tuple[int, ...] = (), steps: float | None
) -> ArmResult:
    n, total = 50, 50 * len(wins)
    low, high = wilson(sum(wins), total)
    tasks = [TaskResult(task=task, n=n, successes=w, **_bounds(w, n)) for task, w in zip(TASKS, wins, strict=True)]
    return ArmResult(
        name=name,
        label=label,
        n=total,
        successes=sum(wins),
        wilson_low=low,
        wilson_high=high,
        mean_success_steps=steps,
        seconds_per_episode=0.84,
        tasks=tasks,
        rounds=[RoundResult(round=i, n=total, successes=w, **_bounds(w, total)) for i, w in enumerate(rounds)],
        comparisons=[],
        undefined={} if steps is not None else {"mean_success_steps": "no episode succeeded"},
    )


def _bounds(wins: int, n: int) -> dict[str, float]:
    low, high = wilson(wins, n)
    return {"wilson_low": low, "wilson_high": high}


def _with_tests(arm: ArmResult, tests: list[PairedTest]) -> ArmResult:
    return ArmResult(**{name: getattr(arm, name) for name in arm.__slots__} | {"comparisons": tests})


def _arms() -> list[ArmResult]:
    improved = _arm("improved", "Improved by reward", (45, 38, 31, 42), rounds=(93, 131, 156), steps=41.2)
    tests = [
        PairedTest(other="imitation", difference=0.315, low=0.236, high=0.391, p=2.1e-9, wins=75, losses=12),
        PairedTest(other="bc_continued", difference=0.245, low=0.162, high=0.325, p=1.2e-6, wins=66, losses=17),
        PairedTest(other="filtered_bc", difference=0.035, low=-0.031, high=0.1, p=0.36, wins=28, losses=21),
    ]
    none = [
        PairedTest(
            other="imitation",
            difference=None,
            low=None,
            high=None,
            p=None,
            wins=0,
            losses=0,
            undefined={"difference": "no initial state was met by both"},
        )
    ]
    return [
        _arm("imitation", "Imitation", (30, 21, 12, 30), rounds=(), steps=48.0),
        _with_tests(improved, tests),
        _arm("bc_continued", "More imitation, same budget", (33, 24, 15, 35), rounds=(93, 101, 107), steps=47.1),
        _arm("filtered_bc", "Imitation of successes only", (44, 36, 28, 41), steps=43.0),
        _with_tests(_arm("random", "Random actions", (0, 0, 0, 0), steps=None), none),
    ]


def _curves() -> list[Curve]:
    rng = np.random.default_rng(0)
    curves = []
    for group, tail, last in (
        ("imitation", 0.05, 3000),
        ("improved round 1", 0.03, 1500),
        ("improved round 2", 0.02, 1500),
    ):
        x = np.arange(0, last, 5).astype(float)
        for name, lift in (("training", 0.0), ("held out", 0.012)):
            y = tail + lift + 0.5 * np.exp(-x / 300) + rng.normal(0, 0.006, len(x))
            curves.append(
                Curve(name=name, group=group, x_label="gradient step", y_label="flow loss", x=x.tolist(), y=y.tolist())
            )
    x = np.arange(0, 2000, 20).astype(float)
    for r in (1, 2):
        for name, scale in (("progress", 1.0), ("success", 0.7), ("tri-state", 1.1)):
            y = scale * (0.2 + np.exp(-x / 400)) + rng.normal(0, 0.02, len(x))
            curves.append(
                Curve(
                    name=name,
                    group=f"judge round {r}",
                    x_label="gradient step",
                    y_label="loss",
                    x=x.tolist(),
                    y=y.tolist(),
                )
            )
    return curves


def _audit() -> list[AuditRow]:
    return [
        AuditRow(
            control="static",
            what="One frame repeated: progress must not rise when nothing moves.",
            effect=0.02,
            low=0.0,
            high=0.05,
            rule="rise <= 0.1",
            verdict="pass",
        ),
        AuditRow(
            control="reversed",
            what="A success played backwards: progress must fall.",
            effect=-0.91,
            low=-0.95,
            high=-0.86,
            rule="VROC >= 0.5",
            verdict="pass",
        ),
        AuditRow(
            control="wrong instruction",
            what="A success of another task: the success probability must drop.",
            effect=0.21,
            low=0.12,
            high=0.29,
            rule="drop >= 0.3",
            verdict="warn",
        ),
        AuditRow(
            control="length-padded",
            what="The same video with pauses: its end must be judged the same.",
            effect=0.34,
            low=0.25,
            high=0.41,
            rule="change <= 0.15",
            verdict="fail",
        ),
        AuditRow(
            control="shuffled",
            what="Frames in random order: progress must lose its order.",
            effect=None,
            low=None,
            high=None,
            rule="VOC <= 0.3",
            verdict="warn",
            undefined={"effect": "constant prediction, so there is no correlation"},
        ),
    ]


def _judge() -> JudgeQuality:
    rounds = []
    for r, auroc in ((1, 0.874), (2, 0.931)):
        centres = np.linspace(0.05, 0.95, 10)
        observed = np.clip(centres + (0.12 - 0.05 * r) * np.sin(6 * centres), 0, 1)
        counts = (41, 22, 13, 9, 8, 7, 11, 15, 27, 47)
        bins = [
            CalibrationBin(confidence=float(c), observed=float(o), count=k)
            for c, o, k in zip(centres, observed, counts, strict=True)
        ]
        rounds.append(
            JudgeRound(
                round=r,
                auroc=auroc,
                auroc_low=auroc - 0.05,
                auroc_high=auroc + 0.04,
                voc=0.96,
                vroc=0.91 if r == 2 else None,
                ece=0.071 - 0.02 * r,
                brier=0.14 - 0.03 * r,
                num_episodes=200,
                calibration=bins,
                audit=_audit(),
                undefined={} if r == 2 else {"vroc": "no successful episode was held out"},
            )
        )
    return JudgeQuality(rounds=rounds)


def _credit() -> list[CreditRound]:
    rng = np.random.default_rng(3)
    edges = np.linspace(0, 2, 21)
    rounds = []
    for r in (1, 2):
        weights = {
            "demonstration": rng.normal(1.15, 0.2, 4000),
            "policy success": rng.normal(1.3, 0.3, 3000),
            "policy failure": rng.normal(0.5, 0.25, 5200),
        }
        histogram = {kind: np.histogram(np.clip(w, 0, 2), edges)[0].tolist() for kind, w in weights.items()}
        every = np.clip(np.concatenate(list(weights.values())), 0, 2)
        ess = float(every.sum() ** 2 / (every**2).sum())
        rounds.append(
            CreditRound(
                round=r,
                method="HABC gate",
                ess=ess,
                ess_share=ess / len(every),
                num_samples=len(every),
                histogram=histogram,
                bin_edges=edges.tolist(),
            )
        )
    return rounds


def sample_report(num_episodes: int = 9, *, steps: int = 40, size: int = 64) -> ReportData:
    """The whole report, two rounds of improvement on four tasks."""
    return ReportData(
        title="Tabletop, two rounds",
        created="2026-11-30T14:05:00+00:00",
        headline="Learned rewards raised success from 46.5 % to 78 % on initial states that no policy had seen.",
        details=[
            "Every policy met the same 200 initial states, 50 for each of four tasks.",
            "Two rounds: collect 300 episodes, refit the judge, weigh the data, train for 1,500 steps.",
            "Keeping successes only ties with it within the interval.",
        ],
        arms=_arms(),
        provenance=Provenance(
            config="seed: 7\npolicy:\n  type: compact_vla\nimprove:\n  rounds: 2\n  credit: {type: habc}\n",
            versions={"robo-rl": "0.1.0", "torch": "2.11.0", "lerobot": "0.6.1", "mujoco": "3.3.0"},
            commit="59cef90c3b1d",
            seeds={"training": 7, "evaluation": 1000},
            machine="2 cores, 8 GB, no GPU",
            seconds_per_stage={
                "demonstrations": 41.0,
                "imitation": 318.5,
                "collect, round 1": 122.0,
                "judge, round 1": 240.3,
                "improve, round 1": 171.0,
                "collect, round 2": 125.2,
                "judge, round 2": 244.9,
                "improve, round 2": 169.4,
                "evaluation": 402.7,
                "report": 4.2,
            },
            peak_rss_gb=2.37,
            fingerprints={"demonstrations": "9f2b6c1e", "round 1": "1d77a0b3"},
        ),
        curves=_curves(),
        judge=_judge(),
        credit=_credit(),
        episodes=[sample_episode(i, steps=steps, size=size) for i in range(num_episodes)],
        commands=[
            "pip install robo-rl==0.1.0",
            "robo-rl run configs/tabletop.yaml --seed=7 --out=runs/demo",
            "robo-rl report runs/demo",
        ],
    )
