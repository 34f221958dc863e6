"""Progress of several stages at once: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO


def spoken(seconds: float) -> str:
    """12.3 s, or 4 min 05 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class Display:
    """Says what is running, how fast, and how long it will take."""

    def __init__(self, stream: TextIO | None = None, every: float = 10.0) -> None:
        self.stream = stream or sys.stderr
        self.every = every
        self._bars: dict[str, Any] = {}
        self._said: dict[str, float] = {}
        self._began: dict[str, tuple[float, int]] = {}

    def say(self, text: str) -> None:
        """One line, above any bars."""
        if self._bars:
            from tqdm import tqdm

            tqdm.write(text, file=self.stream)
        else:
            print(text, file=self.stream, flush=True)

    def started(self, name: str) -> None:
        self._said[name] = time.monotonic()
        if not self.stream.isatty():
            self.say(f"{name}: started")

    def skipped(self, name: str, seconds: float) -> None:
        self.say(f"{name}: already done ({spoken(seconds)} then)")

    def finished(self, name: str, seconds: float) -> None:
        bar = self._bars.pop(name, None)
        if bar is not None:
            bar.close()
        self.say(f"{name}: done in {spoken(seconds)}")

    def progress(self, name: str, done: int, total: int) -> None:
        if self.stream.isatty():
            self._bar(name, done, total)
            return
        now = time.monotonic()
        start, first = self._began.setdefault(name, (now, done))
        if now - self._said.get(name, now) < self.every or done >= total:
            return
        self._said[name] = now
        rate = (done - first) / max(now - start, 1e-9)
        left = f", {spoken((total - done) / rate)} left" if rate > 0 else ""
        self.say(f"{name}: {done}/{total} ({rate:.1f}/s{left})")

    def _bar(self, name: str, done: int, total: int) -> None:
        from tqdm import tqdm

        bar = self._bars.get(name)
        if bar is None:
            bar = self._bars[name] = tqdm(total=total, desc=name, file=self.stream, leave=False, dynamic_ncols=True)
        bar.total = total
        bar.update(done - bar.n)

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()
