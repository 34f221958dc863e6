"""Stand-ins for a model that is asked about pictures: their answers follow from what they are shown."""

from collections.abc import Callable, Sequence

import numpy as np

from reward_models.prompting import Content
from robo_rl.errors import ConfigError
from robo_rl.types import Controller, Outcome, Trajectory

# place (its label in the prompt), pictures of the prompt in order, options -> probabilities of the options
Answer = Callable[[int, list[np.ndarray], Sequence[str]], np.ndarray]


def grey(episode_id: str, levels: Sequence[int], instruction: str = "push the cube", **changes) -> Trajectory:
    """An episode whose frame t has the grey level levels[t] everywhere: what is shown can be read off a picture."""
    steps = len(levels) - 1
    frames = np.broadcast_to(np.array(levels, np.uint8)[:, None, None, None], (steps + 1, 8, 8, 3))
    values = {
        "episode_id": episode_id,
        "instruction": instruction,
        "images": {"front": frames},
        "state": np.zeros((steps + 1, 1), np.float32),
        "actions": np.zeros((steps, 1), np.float32),
        "controller": np.zeros(steps, np.int8) + Controller.POLICY,
        "outcome": Outcome.SUCCESS,
        "fps": 10.0,
    }
    return Trajectory(**(values | changes))


def level(picture: np.ndarray) -> int:
    return int(picture[0, 0, 0])


def pictures_of(content: Content) -> list[np.ndarray]:
    return [part for part in content if not isinstance(part, str)]


class FakeAsker:
    """Answers by a function of the pictures. Keeps the prompts that it was asked."""

    def __init__(
        self,
        answer: Answer | None = None,
        text: Callable[[list[np.ndarray]], str] | None = None,
        several: bool = True,
    ) -> None:
        self.answer, self.text, self.several = answer, text, several
        self.revision, self.batch_size, self.prompts = "rigged", 8, []

    def require_several(self, what: str) -> None:
        if not self.several:
            raise ConfigError(f"{what}: one picture only")

    def log_probs(self, contents: Sequence[Content], options: Sequence[str], start: str = "") -> np.ndarray:
        return np.concatenate([self.read(content).log_probs(options, [start]) for content in contents])

    def read(self, content: Content) -> "FakeReading":
        return FakeReading(self, content)

    def write(self, contents: Sequence[Content], max_tokens: int) -> list[str]:
        self.prompts += list(contents)
        return [self.text(pictures_of(content)) for content in contents]


class FakeReading:
    def __init__(self, asker: FakeAsker, content: Content) -> None:
        self.asker, self.content = asker, list(content)

    def log_probs(self, options, starts=("",), *, cut=None, tail=()) -> np.ndarray:
        content = self.content if cut is None else [*self.content[:cut], *tail]
        self.asker.prompts.append(content)
        rows = []
        for start in starts:
            digits = "".join(letter for letter in start if letter.isdigit())
            rows.append(self.asker.answer(int(digits) if digits else 0, pictures_of(content), options))
        with np.errstate(divide="ignore"):
            return np.log(np.array(rows, np.float64))
