"""Tiny videos whose right judgement is plain: two coloured squares, a grey goal, an instruction naming a colour."""

import numpy as np

from robo_rl.types import Controller, Outcome, Trajectory

SIZE = 32
COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60)}
PLACES = ((6, 6), (6, 22))  # top left corners of the squares at the start, changing hands by episode
GOAL = (22, 14)


def draw(places: dict[str, tuple[float, float]]) -> np.ndarray:
    """One frame, uint8 (32, 32, 3)."""
    frame = np.full((SIZE, SIZE, 3), 20, np.uint8)
    frame[GOAL[0] - 1 : GOAL[0] + 6, GOAL[1] - 1 : GOAL[1] + 6] = 110
    for colour, (row, column) in places.items():
        r, c = round(row), round(column)
        frame[r : r + 5, c : c + 5] = COLOURS[colour]
    return frame


def episode(
    number: int,
    *,
    asked: str = "red",
    moved: str = "red",
    reach: float = 1.0,
    controller: Controller = Controller.POLICY,
) -> Trajectory:
    """The square `moved` goes the share `reach` of its way to the goal, in 10 to 16 steps; it stands for the last two.

    A success when the asked square arrives. The start depends on `number`.
    """
    rng = np.random.default_rng([7, number])
    steps = int(rng.integers(10, 17))
    corners = list(PLACES) if rng.random() < 0.5 else list(PLACES[::-1])
    start = {
        colour: (r + int(rng.integers(0, 3)), c + int(rng.integers(-2, 3)))
        for colour, (r, c) in zip(COLOURS, corners, strict=True)
    }
    share = np.minimum(np.arange(steps + 1) / (steps - 2), 1.0) * reach
    frames = []
    for s in share:
        places = dict(start)
        r, c = start[moved]
        places[moved] = (r + s * (GOAL[0] - r), c + s * (GOAL[1] - c))
        frames.append(draw(places))
    success = moved == asked and reach == 1.0
    return Trajectory(
        episode_id=f"toy-{number}",
        instruction=f"move the {asked} square to the goal",
        images={"front": np.stack(frames)},
        state=np.zeros((steps + 1, 2), np.float32),
        actions=np.zeros((steps, 2), np.float32),
        controller=np.full(steps, controller, np.int8),
        outcome=Outcome.SUCCESS if success else Outcome.TIMEOUT,
        fps=10.0,
        task="move",
        index=number,
        true_progress=(share if moved == asked else np.zeros(steps + 1)).astype(np.float32),
    )


def episodes(count: int, first: int = 0) -> list[Trajectory]:
    """Half successes, a quarter with the wrong square, a quarter that stops on the way; both colours alike."""
    out = []
    for number in range(first, first + count):
        asked, other = ("red", "green") if number % 2 else ("green", "red")
        kind = (number // 2) % 4
        if kind < 2:
            out.append(episode(number, asked=asked, moved=asked))
        elif kind == 2:
            out.append(episode(number, asked=asked, moved=other))
        else:
            out.append(episode(number, asked=asked, moved=asked, reach=0.5))
    return out
