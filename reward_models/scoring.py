"""Score a whole dataset into a reward table: bounded memory, and nothing is lost when the process is killed.

Episodes are scored in groups, whose division depends on the dataset alone. Every group is kept in a journal as soon as
it is done (`reward_models.journal`), so a run that was killed goes on and gives the same bytes as one that was not; so
do several processes, and several machines that take every n-th group each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.journal import Journal, Say
from reward_models.score import score
from reward_models.score_summary import (
    GroupReport,
    ScoreSummary,
    counts,
    is_done,
    merge_when_complete,
    peak_memory,
    skipped_of,
    tidy,
)
from robo_rl.data.damage import BadEpisode, instruction_fault
from robo_rl.data.dataset import EpisodeSet, Whole
from robo_rl.data.reward_parts import assemble, frames_hash, part_path
from robo_rl.data.reward_table import episode_rows, table_facts
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.types import RewardModel, RewardSignal, Trajectory

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """How a dataset is scored. Raises ConfigError."""

    group_episodes: int = 16  # at most so many episodes are handed to the judge together,
    group_frames: int = 1024  # of at most so many frames in all, or a single longer one
    skip_bad: bool = False  # leave episodes out that cannot be scored, and list them
    shard: tuple[int, int] = (1, 1)  # (i, n): groups i, i + n, i + 2 n, ...

    def __post_init__(self) -> None:
        number, count = self.shard
        if not 1 <= number <= count:
            raise ConfigError(f"shard must be i/n with i from 1 to n, got {number}/{count}")
        if self.group_episodes < 1 or self.group_frames < 1:
            raise ConfigError(f"a group needs an episode and a frame, got {self.group_episodes}, {self.group_frames}")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything about a scoring job but the judge; goes to other processes."""

    episodes: EpisodeSet  # those that can be used, of one dataset
    out: Path
    bad: tuple[BadEpisode, ...] = ()  # those that cannot
    config: ScoreConfig = field(default_factory=ScoreConfig)

    @property
    def target(self) -> Path:
        number, count = self.config.shard
        return self.out if count == 1 else part_path(self.out, number, count)

    @property
    def journal(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")


def score_dataset(
    judge: RewardModel,
    work: Work,
    *,
    progress_callback: Progress | None = None,
    say: Say = print,
) -> ScoreSummary:
    """Score the episodes of one dataset into a reward table; goes on with what an earlier run left.

    The progress callback gets (frames scored, all frames); `say` gets a line when unfinished scores are continued or
    dropped.

    Raises DataError or RewardError naming the episode that cannot be scored, or where unfinished scores are another
    judge's; what was scored before is kept.
    """
    facts, division = judge_facts(judge), divide(work)

    def each(groups: Sequence[int]) -> Iterator[GroupReport]:
        return (score_group(judge, work, division, group, facts) for group in groups)

    return run(work, facts, each, progress_callback, say)


def judge_facts(judge: Any) -> dict[str, str]:
    """The judge's id, and what it says of itself: revision, prompt, sampling of frames."""
    told = judge.provenance() if hasattr(judge, "provenance") else {}
    return {**{str(key): str(value) for key, value in told.items()}, "id": str(judge.model_id)}


def divide(work: Work) -> list[list[int]]:
    """All groups of the dataset, by episode number. Bad episodes count, so mending one changes no other group."""
    groups: list[list[int]] = []
    frames = 0
    for episode, length in enumerate(work.episodes.whole().lengths):
        full = not groups or len(groups[-1]) >= work.config.group_episodes
        if full or frames + length > work.config.group_frames:
            groups.append([])
            frames = 0
        groups[-1].append(episode)
        frames += int(length)
    return groups


# --- one group ----------------------------------------------------------------------------------------------


def score_group(
    judge: RewardModel, work: Work, division: Sequence[Sequence[int]], group: int, facts: Mapping[str, str]
) -> GroupReport:
    """Score one group and keep it in the journal. Raises as `score_dataset` does."""
    whole, place = work.episodes.whole(), {int(n): p for p, n in enumerate(work.episodes.numbers)}
    wanted = [episode for episode in division[group] if episode in place]
    skipped = {one.number: one for one in work.bad if one.number in division[group]}
    batch = {}
    for number in wanted:
        episode = work.episodes[place[number]]
        if why := instruction_fault(episode.instruction):
            skipped[number] = _fault(work, number, episode, why)
        else:
            batch[number] = episode
    started = time.perf_counter()
    given = _opinions(judge, batch)
    seconds = time.perf_counter() - started
    rows, seen = {}, {}
    for number, opinion in given.items():
        if isinstance(opinion, str):
            skipped[number] = _fault(work, number, batch[number], opinion)
        else:
            rows[number] = episode_rows(opinion, episode=number, first=int(whole.first[number]))
            seen[number] = frames_hash(batch[number])
    journal = Journal(work.journal, {}, print)
    journal.put(group, rows, table_facts(whole, facts), seen=seen, skipped=[skipped[n] for n in sorted(skipped)])
    work.episodes.forget_frames()
    return GroupReport(
        group=group,
        frames=sum(len(part["index"]) for part in rows.values()),
        seconds=seconds,
        abstained=sum(int(part["abstained"].sum()) for part in rows.values() if "abstained" in part),
        peak_memory=peak_memory(),
    )


def _fault(work: Work, number: int, episode: Trajectory, why: str) -> BadEpisode:
    """An episode that cannot be scored: noted where that is allowed, raised elsewhere."""
    one = BadEpisode(number=number, episode_id=episode.episode_id, why=why)
    if not work.config.skip_bad:
        raise RewardError(f"{work.episodes.root}: {one}; mend it and go on, or leave such episodes out with --skip-bad")
    return one


def _opinions(judge: RewardModel, batch: Mapping[int, Trajectory]) -> dict[int, RewardSignal | str]:
    """A signal of every episode, or why there is none. An episode that fails does not take the others with it."""
    if not batch:
        return {}
    try:
        return dict(zip(batch, score(judge, list(batch.values()), batch_size=len(batch)), strict=True))
    except (DataError, RewardError) as error:
        if len(batch) == 1:
            return dict.fromkeys(batch, str(error))
    alone: dict[int, RewardSignal | str] = {}
    for number, episode in batch.items():
        alone |= _opinions(judge, {number: episode})
    return alone


# --- all groups ---------------------------------------------------------------------------------------------


def run(
    work: Work,
    judge: Mapping[str, str],
    each: Callable[[Sequence[int]], Iterable[GroupReport]],
    progress_callback: Progress | None,
    say: Say,
    processes: int = 1,
) -> ScoreSummary:
    """Do what is left of a scoring job and write its table; `each` scores groups and reports of them in any order."""
    whole = work.episodes.whole()
    if done := _done_before(work, judge, processes):
        return done
    division = divide(work)
    number, count = work.config.shard
    mine = range(number - 1, len(division), count)
    lengths = [sum(int(whole.lengths[episode]) for episode in division[group]) for group in range(len(division))]
    with Journal(work.journal, _head(work, whole, judge), say) as journal:
        left = _left(journal, work, division, mine)
        done_frames, total = sum(lengths[group] for group in mine if group not in left), sum(lengths[g] for g in mine)
        if done_frames:
            say(f"{work.target}: {done_frames} of {total} frames are scored already; going on")
        started, reports = time.perf_counter(), []
        if progress_callback is not None:
            progress_callback(done_frames, total)
        for report in each(left):
            reports.append(report)
            done_frames += lengths[report.group]
            if progress_callback is not None:
                progress_callback(done_frames, total)
        seconds = time.perf_counter() - started
        _finish(journal, work, division, mine, judge)
    return _merged(work, judge, reports, seconds, processes)


def _head(work: Work, whole: Whole, judge: Mapping[str, str]) -> dict[str, Any]:
    settings = work.config
    shard = "/".join(map(str, settings.shard))
    return {
        "judge": dict(judge),
        "division": {"episodes": settings.group_episodes, "frames": settings.group_frames, "part": shard},
        "dataset": {
            "root": str(whole.root.resolve()),
            "fingerprint": whole.fingerprint,
            "lengths": whole.lengths.tolist(),
        },
    }


def _left(journal: Journal, work: Work, division: Sequence[Sequence[int]], mine: Iterable[int]) -> list[int]:
    """Groups that must be scored; those of a dataset that has changed are compared first."""
    known = journal.known_head()
    if known is None:
        journal.begin()
        return list(mine)
    journal.require_same_judge(known)
    then, now = known["dataset"], journal.head["dataset"]
    changed = then["fingerprint"] != now["fingerprint"]
    if changed and then["root"] != now["root"]:
        raise DataError(
            f"{journal.folder}: unfinished scores of another dataset, {then['root']}; finish them with the same "
            "command, remove the folder, or choose another --out"
        )
    same_division = then["lengths"] == now["lengths"]
    left = []
    for group in mine:
        piece = journal.get(group, division[group]) if same_division else None
        fresh = piece is not None and (work.config.skip_bad or not piece.skipped)
        if piece is not None and fresh and changed:
            fresh = not piece.skipped and _unchanged(work, piece.seen)
        if not fresh:
            journal.drop(group)
            left.append(group)
    if changed:
        kept = len(list(mine)) - len(left)
        journal.say(f"{journal.folder}: the dataset has changed since; {kept} groups are as they were, {len(left)} not")
        journal.begin()
    return left


def _unchanged(work: Work, seen: Mapping[int, str]) -> bool:
    place = {int(number): p for p, number in enumerate(work.episodes.numbers)}
    same = all(n in place and frames_hash(work.episodes[place[n]]) == mark for n, mark in seen.items())
    work.episodes.forget_frames()
    return same


def _finish(
    journal: Journal, work: Work, division: Sequence[Sequence[int]], mine: Iterable[int], judge: Mapping[str, str]
) -> None:
    whole = work.episodes.whole()
    pieces = []
    for group in mine:
        piece = journal.get(group, division[group])
        if piece is None:
            raise DataError(f"{journal.path(group)}: vanished while the table was made; the same command goes on")
        pieces.append(piece)
    facts = table_facts(whole, judge)
    number, count = work.config.shard
    if count > 1:
        facts |= {"shard": f"{number}/{count}", "lengths": json.dumps(whole.lengths.tolist())}
        facts["division"] = f"{work.config.group_episodes} episodes, {work.config.group_frames} frames"
    elif not any(piece.seen for piece in pieces):
        first = next(one for piece in pieces for one in piece.skipped)
        journal.remove()
        raise RewardError(f"{work.episodes.root}: no episode could be scored; {first}")
    temporary = journal.folder / f"table.partial-{os.getpid()}"
    assemble(work.target, pieces, facts, lengths=whole.lengths, temporary=temporary, as_piece=count > 1)
    tidy(work.target, work.journal)


def _done_before(work: Work, judge: Mapping[str, str], processes: int) -> ScoreSummary | None:
    """The summary of a table that is complete already."""
    whole, allowed = work.episodes.whole(), work.config.skip_bad
    if is_done(work.out, whole, judge, skip_bad=allowed):
        tidy(work.out, work.journal)
        return _summary(work.out, judge, [], 0.0, (), processes)
    if work.config.shard[1] > 1 and is_done(work.target, whole, judge, skip_bad=allowed):
        tidy(work.target, work.journal)
        return _merged(work, judge, [], 0.0, processes)
    return None


def _merged(
    work: Work, judge: Mapping[str, str], reports: Sequence[GroupReport], seconds: float, processes: int
) -> ScoreSummary:
    """The summary, after putting the parts together when this was the last one."""
    count, missing = work.config.shard[1], ()  # type: int, tuple[int, ...]
    if count > 1:
        missing = merge_when_complete(work.out, count, work.episodes.whole(), judge, skip_bad=work.config.skip_bad)
    return _summary(work.target if missing else work.out, judge, reports, seconds, missing, processes)


def _summary(
    table: Path,
    judge: Mapping[str, str],
    reports: Sequence[GroupReport],
    seconds: float,
    missing: tuple[int, ...],
    processes: int,
) -> ScoreSummary:
    frames, abstained = counts(table)
    pace = [1e3 * report.seconds / report.frames for report in reports if report.frames]
    return ScoreSummary(
        table=table,
        model_id=judge["id"],
        frames=frames,
        scored_now=sum(report.frames for report in reports),
        seconds=seconds,
        ms_per_frame=(float(np.percentile(pace, 50)), float(np.percentile(pace, 95))) if pace else (np.nan, np.nan),
        peak_memory=max([peak_memory(), *(report.peak_memory for report in reports)]),
        processes=processes,
        abstained=abstained,
        skipped=skipped_of(table),
        missing_parts=missing,
    )
