"""LeRobotDataset v3 -> trajectories. Frames are views into memory maps; nothing is decoded twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from robo_rl.data import cache, layout
from robo_rl.data.tables import Columns, EpisodeFacts, read_columns, read_facts
from robo_rl.errors import DataError
from robo_rl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class _Store:
    """One dataset on disk, all of it."""

    root: Path
    fps: float
    fingerprint: str
    frames: dict[str, np.ndarray]  # camera -> memmap uint8 (N, H, W, 3)
    columns: Columns
    facts: list[EpisodeFacts]
    first: np.ndarray  # int64 (E,)
    lengths: np.ndarray  # int64 (E,), rows: T + 1


class EpisodeSet(Sequence[Trajectory]):
    """Episodes of one or several datasets. Global frame indices run over its own episodes, in order.

    Attributes: `root` (of the first dataset), `fps`, `cameras`, `fingerprint`, `num_frames`,
    `first_frame` int64 (E,), `lengths` int64 (E,) rows of each episode, `flat_state` (N, S),
    `flat_actions` (N, A), `episode_of_frame` (N,), `is_final` bool (N,).
    """

    def __init__(self, stores: Sequence[_Store], members: Sequence[tuple[int, int]]) -> None:
        if not members:
            raise DataError("there is no episode in this selection; it needs at least one")
        self._stores, self._members = list(stores), list(members)
        self.root, self.fps = stores[0].root, stores[0].fps
        self.cameras = tuple(stores[0].frames)
        self.lengths = np.array([stores[s].lengths[e] for s, e in members], dtype=np.int64)
        self.first_frame = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        self.num_frames = int(self.lengths.sum())
        self.episode_of_frame = np.repeat(np.arange(len(members)), self.lengths)
        self.is_final = np.zeros(self.num_frames, dtype=bool)
        self.is_final[self.first_frame + self.lengths - 1] = True
        self._store_of_frame = np.repeat([s for s, _ in members], self.lengths)
        offset = np.arange(self.num_frames) - np.repeat(self.first_frame, self.lengths)
        self._row_of_frame = np.repeat([stores[s].first[e] for s, e in members], self.lengths) + offset
        self.flat_state = self._gathered("state")
        self.flat_actions = self._gathered("action")
        self.fingerprint = self._hash()

    def _gathered(self, name: str) -> np.ndarray:
        parts = [
            getattr(self._stores[s].columns, name)[self._stores[s].first[e] :][: self._stores[s].lengths[e]]
            for s, e in self._members
        ]
        return np.concatenate(parts)

    def _hash(self) -> str:
        whole = [(s, e) for s, store in enumerate(self._stores) for e in range(len(store.lengths))]
        if len(self._stores) == 1 and whole == self._members:
            return self._stores[0].fingerprint
        text = json.dumps([[self._stores[s].fingerprint, e] for s, e in self._members])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, number: int) -> Trajectory: ...
    @overload
    def __getitem__(self, number: slice) -> EpisodeSet: ...
    def __getitem__(self, number: int | slice) -> Trajectory | EpisodeSet:
        if isinstance(number, slice):
            return self.select(range(*number.indices(len(self))))
        if not -len(self) <= number < len(self):
            raise IndexError(f"episode {number} of {len(self)}")
        store_number, episode = self._members[number]
        store = self._stores[store_number]
        start, stop = int(store.first[episode]), int(store.first[episode] + store.lengths[episode])
        facts, columns = store.facts[episode], store.columns
        return Trajectory(
            episode_id=facts.episode_id,
            instruction=facts.instruction,
            images={camera: frames[start:stop] for camera, frames in store.frames.items()},
            state=columns.state[start:stop],
            actions=columns.action[start : stop - 1],
            controller=columns.controller[start : stop - 1],
            outcome=facts.outcome,
            fps=store.fps,
            task=facts.task,
            policy_id=facts.policy_id,
            seed=facts.seed,
            index=facts.index,
            reward=None if columns.reward is None else columns.reward[start : stop - 1],
            true_progress=None if columns.progress is None else columns.progress[start:stop],
            note=facts.note,
        )

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[number] for number in range(len(self)))

    def gather(self, camera: str, frames: np.ndarray) -> np.ndarray:
        """Frames by global index: uint8 (len(frames), H, W, 3), a copy."""
        frames = np.asarray(frames)
        if len(self._stores) == 1:
            return self._stores[0].frames[camera][self._row_of_frame[frames]]
        owner, rows = self._store_of_frame[frames], self._row_of_frame[frames]
        out = np.empty((len(frames), *self._stores[0].frames[camera].shape[1:]), dtype=np.uint8)
        for number in np.unique(owner):
            chosen = owner == number
            out[chosen] = self._stores[number].frames[camera][rows[chosen]]
        return out

    def select(self, numbers: Sequence[int] | range | np.ndarray) -> EpisodeSet:
        """Some of the episodes, in the order given; shares memory."""
        return EpisodeSet(self._stores, [self._members[int(number)] for number in numbers])

    def split(self, share: float, *, seed: int) -> tuple[EpisodeSet, EpisodeSet]:
        """(1 - share, share) of the episodes, drawn alike from every task and outcome."""
        rng = np.random.default_rng(seed)
        groups: dict[tuple[str, str], list[int]] = {}
        for number, (s, e) in enumerate(self._members):
            facts = self._stores[s].facts[e]
            groups.setdefault((facts.task or facts.instruction, str(facts.outcome)), []).append(number)
        taken: set[int] = set()
        for _, members in sorted(groups.items()):
            taken |= {int(n) for n in rng.permutation(members)[: round(share * len(members))]}
        if not taken or len(taken) == len(self):
            raise DataError(f"{len(self)} episodes cannot be split {1 - share:.0%} / {share:.0%}")
        rest = [number for number in range(len(self)) if number not in taken]
        return self.select(rest), self.select(sorted(taken))

    def parts(self) -> list[tuple[_Store, list[tuple[int, int]]]]:
        """(store, [(number here, number in the store)]) of each dataset behind this set."""
        return [
            (store, [(n, e) for n, (s, e) in enumerate(self._members) if s == place])
            for place, store in enumerate(self._stores)
        ]


def read_episodes(root: Path | str) -> EpisodeSet:
    """Open a LeRobotDataset v3 folder, ours or anyone's. Raises DataError naming the file that is wrong.

    Data without our `robo.final` column: an episode's last frame is taken as its final observation and its
    last action is dropped.
    """
    root = Path(root)
    info = _info(root)
    columns = read_columns(root, info)
    facts, first, lengths, spans = read_facts(root, info, columns)
    mark = layout.fingerprint(root)
    frames = {}
    for key, feature in info["features"].items():
        if feature["dtype"] in ("video", "image"):
            name = key.removeprefix(layout.IMAGES)
            frames[name] = cache.decoded(root, mark, key, feature, spans[key])
    store = _Store(
        root=root,
        fps=float(info["fps"]),
        fingerprint=mark,
        frames=frames,
        columns=columns,
        facts=facts,
        first=first,
        lengths=lengths,
    )
    return EpisodeSet([store], [(0, episode) for episode in range(len(lengths))])


def _info(root: Path) -> dict[str, Any]:
    path = root / layout.INFO
    if not root.exists():
        raise DataError(f"{root}: no such dataset folder")
    try:
        info = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{root}: not a LeRobotDataset, {layout.INFO} is missing") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    version = info.get("codebase_version", "unknown")
    if version != layout.VERSION:
        raise DataError(
            f"{root}: LeRobotDataset {version}; this needs {layout.VERSION}, convert it with "
            "`python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=...`"
        )
    if not info.get("total_episodes"):
        raise DataError(f"{root}: the dataset has no episodes")
    return info


def concat(sets: Sequence[EpisodeSet]) -> EpisodeSet:
    """Several sets as one. Raises DataError where rate, cameras, frame sizes or widths differ."""
    stores: list[_Store] = []
    members: list[tuple[int, int]] = []
    for part in sets:
        require_alike(sets[0], part)
        for number, (s, e) in enumerate(part._members):
            del number
            store = part._stores[s]
            place = next((i for i, known in enumerate(stores) if known is store), None)
            if place is None:
                stores.append(store)
                place = len(stores) - 1
            members.append((place, e))
    return EpisodeSet(stores, members)


def require_alike(one: EpisodeSet, other: EpisodeSet) -> None:
    """DataError unless two sets can be learned from together."""
    if one is other:
        return
    if one.fps != other.fps:
        raise DataError(f"{other.root}: recorded at {other.fps:g} fps, but {one.root} at {one.fps:g} fps")
    require(
        other,
        cameras={camera: one[0].images[camera].shape[1:3] for camera in one.cameras},
        state_dim=one.flat_state.shape[1],
        action_dim=one.flat_actions.shape[1],
    )


def require(
    episodes: EpisodeSet,
    *,
    fps: float | None = None,
    cameras: dict[str, tuple[int, ...]] | Sequence[str] | None = None,
    state_dim: int | None = None,
    action_dim: int | None = None,
) -> None:
    """DataError naming what a dataset lacks of what its user needs."""
    where = episodes.root
    if fps is not None and episodes.fps != fps:
        raise DataError(f"{where}: recorded at {episodes.fps:g} fps, but {fps:g} fps are needed")
    for camera in cameras or ():
        if camera not in episodes.cameras:
            present = ", ".join(episodes.cameras) or "none"
            raise DataError(f"{where}: camera {camera!r} is missing; the dataset has {present}")
        size = episodes[0].images[camera].shape[1:3]
        if isinstance(cameras, dict) and tuple(cameras[camera]) != tuple(size):
            raise DataError(f"{where}: camera {camera!r} has frames {size}, but {tuple(cameras[camera])} are needed")
    for name, wanted, array in (
        ("state", state_dim, episodes.flat_state),
        ("action", action_dim, episodes.flat_actions),
    ):
        if wanted is not None and array.shape[1] != wanted:
            raise DataError(f"{where}: {name} has {array.shape[1]} numbers, but {wanted} are needed")
