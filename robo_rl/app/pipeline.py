"""The main loop as a list of stages: imitate, then rounds of roll out, judge, weigh, update, evaluate.

Arms (all start from the same imitation policy, with the same number of rollouts and gradient steps):
`improved` learns with judged credit; `filtered_bc` keeps its successful episodes, whole;
`bc_continued` goes on with demonstrations alone. Round 1's rollouts are shared, as all arms start equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from robo_rl import __version__
from robo_rl.app import steps
from robo_rl.app.config import RunConfig, dump_config
from robo_rl.app.showcase import show_episodes
from robo_rl.loops.stages import Stage


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stages in order, and the evaluation stages of every arm, round by round (round 0 is imitation)."""

    stages: list[Stage]
    evaluations: Mapping[str, list[str]]


class _Planner:
    def __init__(self, config: RunConfig, root: Path) -> None:
        self.config, self.root = config, root
        self.tree = dump_config(config)
        self.stages: list[Stage] = []
        self.evaluations: dict[str, list[str]] = {}

    def at(self, stage: str, part: str) -> Path:
        return self.root / "stages" / stage / part

    def add(self, name: str, work: Any, after: tuple[str, ...], keys: tuple[str, ...], slots: int = 1) -> str:
        inputs: dict[str, Any] = {key: self.tree[key] for key in ("seed", "device", *keys)}
        inputs["version"] = __version__
        self.stages.append(Stage(name=name, work=work, inputs=inputs, after=after, slots=slots))
        return name

    def evaluate(self, arm: str, trained: str, slots: int) -> None:
        work = partial(steps.evaluate_policy, config=self.config, policy=self.at(trained, steps.POLICY), workers=slots)
        keys = ("sim", "evaluation", "group_size")
        name = self.add(f"evaluate-{trained}", work, (trained,), keys, slots)
        self.evaluations.setdefault(arm, []).append(name)

    def roll_out(self, name: str, trained: str, number: int, slots: int) -> str:
        work = partial(
            steps.collect_rollouts,
            config=self.config,
            policy=self.at(trained, steps.POLICY),
            number=number,
            workers=slots,
        )
        return self.add(name, work, (trained,), ("sim", "rollouts", "group_size"), slots)

    def improve(self, name: str, start: str, rollouts: list[str], weights: str | None, number: int) -> str:
        work = partial(
            steps.improve_policy,
            config=self.config,
            policy=self.at(start, steps.POLICY),
            demos=self.at("demos", steps.DATASET),
            rollouts=[self.at(r, steps.DATASET) for r in rollouts],
            weights=None if weights is None else self.root / "stages" / weights,
            number=number,
        )
        after = ("demos", start, *rollouts, *((weights,) if weights else ()))
        return self.add(name, work, after, ("update",))


def plan(config: RunConfig, root: Path) -> Plan:
    """All stages of a run in `root`. Fingerprints cover the parts of the config that each stage uses."""
    todo = _Planner(config, root)
    every = config.processes
    demos = todo.add(
        "demos",
        partial(steps.collect_demos, config=config, workers=every),
        (),
        ("sim", "demos", "group_size"),
        every,
    )
    todo.add(
        "imitation",
        partial(steps.train_imitation, config=config, demos=todo.at(demos, steps.DATASET)),
        (demos,),
        ("policy", "imitation"),
    )
    first = todo.roll_out("rollouts-1", "imitation", 1, every)
    todo.evaluate("imitation", "imitation", every)
    arms = {"improved": _improved, "filtered_bc": _filtered, "bc_continued": _continued}
    wanted = ["improved", *(arm for arm in ("filtered_bc", "bc_continued") if arm in config.arms)]
    starts = dict.fromkeys(wanted, "imitation")
    gathered: dict[str, list[str]] = {arm: [] for arm in wanted}
    for number in range(1, config.rounds + 1):
        for arm in wanted:
            if arm != "bc_continued":
                name = first if number == 1 else todo.roll_out(f"rollouts-{number}-{arm}", starts[arm], number, 1)
                gathered[arm].append(name)
            starts[arm] = arms[arm](todo, starts[arm], gathered[arm], number)
            todo.evaluate(arm, starts[arm], 1)
    _showcase(todo, starts["improved"])
    return Plan(stages=todo.stages, evaluations=todo.evaluations)


def _showcase(todo: _Planner, improved: str) -> None:
    judge, credit = f"judge-{todo.config.rounds}", f"credit-{todo.config.rounds}"
    evaluations = {"before": "evaluate-imitation", "after": f"evaluate-{improved}"}
    work = partial(
        show_episodes,
        config=todo.config,
        policies={"before": todo.at("imitation", steps.POLICY), "after": todo.at(improved, steps.POLICY)},
        evaluations={key: todo.at(name, "evaluation.json") for key, name in evaluations.items()},
        judge=todo.at(judge, steps.JUDGE),
        critics=todo.at(credit, "critics"),
        workers=todo.config.processes,
    )
    after = ("imitation", improved, judge, credit, *evaluations.values())
    todo.add("showcase", work, after, ("sim", "report", "evaluation", "group_size", "credit"), todo.config.processes)


def _improved(todo: _Planner, start: str, rollouts: list[str], number: int) -> str:
    config, demos = todo.config, todo.at("demos", steps.DATASET)
    data = [todo.at(r, steps.DATASET) for r in rollouts]
    previous = f"judge-{number - 1}" if number > 1 else None
    fit = partial(
        steps.fit_judge,
        config=config,
        demos=demos,
        rollouts=data,
        policy=todo.at("imitation", steps.POLICY),
        previous=todo.at(previous, steps.JUDGE) if previous else None,
        number=number,
    )
    after = ("demos", "imitation", *rollouts, *((previous,) if previous else ()))
    judge = todo.add(f"judge-{number}", fit, after, ("judge",))
    weigh = partial(
        steps.score_and_weigh,
        config=config,
        demos=demos,
        rollouts=data,
        judge=todo.at(judge, steps.JUDGE),
        policy=todo.at("imitation", steps.POLICY),
        number=number,
    )
    credit = todo.add(
        f"credit-{number}", weigh, ("demos", "imitation", *rollouts, judge), ("credit", "accept_failed_audit")
    )
    return todo.improve(f"improved-{number}", start, rollouts, credit, number)


def _filtered(todo: _Planner, start: str, rollouts: list[str], number: int) -> str:
    data = [todo.at(r, steps.DATASET) for r in rollouts]
    work = partial(steps.weigh_outcomes, config=todo.config, demos=todo.at("demos", steps.DATASET), rollouts=data)
    credit = todo.add(f"outcomes-{number}", work, ("demos", *rollouts), ())
    return todo.improve(f"filtered_bc-{number}", start, rollouts, credit, number)


def _continued(todo: _Planner, start: str, rollouts: list[str], number: int) -> str:
    return todo.improve(f"bc_continued-{number}", start, [], None, number)
