"""Kill a scoring process at every moment at which it writes, renames, removes or judges; then let another go on.

    python tests/scoring_kill.py DATASET FOLDER

Prints as JSON how often it was killed, and which tables differ from that of a run that was not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  pyarrow would import it in every child
import pyarrow.parquet as pq
from scoring_toy import ToyJudge

from reward_models.scoring import ScoreConfig, Work, score_dataset
from robo_rl.data import read_episodes
from robo_rl.errors import RoboRLError


def score(data: Path, out: Path, judge: ToyJudge) -> None:
    config = ScoreConfig(group_episodes=2, skip_bad=True)
    score_dataset(judge, Work(episodes=read_episodes(data), out=out, config=config), say=lambda text: None)


class Killer:
    """Counts moments; ends the process without warning at moment `last`."""

    def __init__(self, last: int) -> None:
        self.last, self.count = last, 0

    def moment(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            self.moment()
            return inner(*given, **named)

        setattr(owner, name, wrapped)


def in_child(work: Callable[[], None]) -> bool:
    """Run it in a forked process; whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except RoboRLError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"a process failed with {os.WEXITSTATUS(status)}")
    return os.WIFEXITED(status)


def killed_at(data: Path, out: Path, last: int) -> None:
    killer, judge = Killer(last), ToyJudge(cameras=())
    for owner, name in (
        (os, "replace"),
        (os, "unlink"),
        (os, "rmdir"),
        (Path, "mkdir"),
        (Path, "write_text"),
        (pq.ParquetWriter, "write_table"),
        (pq.ParquetWriter, "close"),
        (judge, "score"),
    ):
        killer.around(owner, name)
    score(data, out, judge)


def main(data: Path, folder: Path) -> None:
    in_child(lambda: score(data, folder / "whole" / "t.parquet", ToyJudge(cameras=())))
    wanted = {path.name: path.read_bytes() for path in (folder / "whole").iterdir()}
    kills, different = 0, []
    while True:
        out = folder / str(kills) / "t.parquet"
        ended = in_child(partial(killed_at, data, out, kills + 1))
        in_child(partial(score, data, out, ToyJudge(cameras=())))
        found = {path.name: path.read_bytes() for path in out.parent.iterdir()}
        if found != wanted:
            different.append([kills + 1, sorted(found)])
        if ended:
            break
        kills += 1
    print(json.dumps({"kills": kills, "different": different, "files": sorted(wanted)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
