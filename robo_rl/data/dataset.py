"""LeRobotDataset v3 -> trajectories. Frames are views into memory maps; nothing is decoded twice."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa

from robo_rl.data import cache, layout
from robo_rl.data.damage import BadEpisode, Damage
from robo_rl.data.tables import Columns, Episodes, cameras, read_columns, read_facts, read_rows
from robo_rl.errors import DataError
from robo_rl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class _Store:
    """One dataset on disk, all of it."""

    root: Path
    fps: float
    fingerprint: str
    frames: dict[str, np.memmap]  # camera -> uint8 (N, H, W, 3)
    columns: Columns
    episodes: Episodes

    def __getstate__(self) -> dict[str, Any]:
        """For another process: frames by the path of their cache, which it maps again."""
        paths = {camera: str(frames.filename) for camera, frames in self.frames.items()}
        return {**self.__dict__, "frames": paths}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["frames"] = {camera: np.load(path, mmap_mode="r") for camera, path in state["frames"].items()}

    def trajectory(self, episode: int) -> Trajectory:
        start = int(self.episodes.first[episode])
        stop = start + int(self.episodes.lengths[episode])
        facts, columns = self.episodes.facts[episode], self.columns
        progress = None if columns.progress is None else columns.progress[start:stop]
        return Trajectory(
            episode_id=facts.episode_id,
            instruction=facts.instruction,
            images={camera: np.asarray(frames)[start:stop] for camera, frames in self.frames.items()},
            state=columns.state[start:stop],
            actions=columns.action[start : stop - 1],
            controller=columns.controller[start : stop - 1],
            outcome=facts.outcome,
            fps=self.fps,
            task=facts.task,
            policy_id=facts.policy_id,
            seed=facts.seed,
            index=facts.index,
            reward=_reward(columns.reward, start, stop) if facts.has_reward else None,
            true_progress=None if progress is None or np.isnan(progress).any() else progress,
            note=facts.note,
        )


def _reward(reward: np.ndarray | None, start: int, stop: int) -> np.ndarray | None:
    """Rewards of the kept actions. That of a dropped last action, often the only one, goes to the action before."""
    if reward is None or reward[stop - 1] == 0:
        return None if reward is None else reward[start : stop - 1]
    kept = reward[start : stop - 1].copy()
    kept[-1] += reward[stop - 1]
    return kept


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A dataset on disk, with the episodes that cannot be used."""

    root: Path
    fingerprint: str
    first: np.ndarray  # int64 (E,), first row of every episode
    lengths: np.ndarray  # int64 (E,), rows
    episode_ids: tuple[str, ...]

    @property
    def num_frames(self) -> int:
        return int(self.lengths.sum())


class FlatImages:
    """Frames of one camera over several datasets, indexed like an array of (N, H, W, 3); reading copies."""

    dtype = np.dtype(np.uint8)

    def __init__(self, episodes: EpisodeSet, camera: str) -> None:
        self._episodes, self._camera = episodes, camera
        self.shape = (episodes.num_frames, *episodes[0].images[camera].shape[1:])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, frames: int | slice | np.ndarray | Sequence[int]) -> np.ndarray:
        chosen = np.arange(len(self))[frames]
        images = self._episodes.gather(self._camera, np.atleast_1d(chosen))
        return images[0] if np.ndim(chosen) == 0 else images


class EpisodeSet(Sequence[Trajectory]):
    """Episodes of one or several datasets. Global frame indices run over its own episodes, in order.

    A set can be handed to another process, which maps the frames anew.

    Attributes: `root` (of the first dataset), `fps`, `cameras`, `fingerprint`, `num_frames`, `episode_ids`,
    `numbers` int64 (E,) of the episodes in the dataset that each comes from,
    `first_frame` int64 (E,), `lengths` int64 (E,) rows of each episode (T + 1), `flat_state` float32 (N, S),
    `flat_actions` float32 (N, A) (a final row repeats the last action), `episode_of_frame` int64 (N,),
    `is_final` bool (N,).
    """

    def __init__(self, stores: Sequence[_Store], members: Sequence[tuple[int, int]]) -> None:
        if not members:
            raise DataError("there is no episode in this selection; it needs at least one")
        self._stores, self._members = list(stores), list(members)
        self.root, self.fps = stores[0].root, stores[0].fps
        self.cameras = tuple(stores[0].frames)
        self.episode_ids = tuple(stores[s].episodes.facts[e].episode_id for s, e in members)
        self.numbers = np.array([e for _, e in members], dtype=np.int64)
        self.lengths = np.array([stores[s].episodes.lengths[e] for s, e in members], dtype=np.int64)
        self.first_frame = (np.cumsum(self.lengths) - self.lengths).astype(np.int64)
        self.num_frames = int(self.lengths.sum())
        self.episode_of_frame = np.repeat(np.arange(len(members), dtype=np.int64), self.lengths)
        self.is_final = np.zeros(self.num_frames, dtype=bool)
        self.is_final[self.first_frame + self.lengths - 1] = True
        self._is_whole = len(stores) == 1 and self._members == [(0, e) for e in range(len(stores[0].episodes.first))]
        self._store_of_frame = np.repeat([s for s, _ in members], self.lengths)
        offset = np.arange(self.num_frames) - np.repeat(self.first_frame, self.lengths)
        self._row_of_frame = np.repeat([stores[s].episodes.first[e] for s, e in members], self.lengths) + offset
        self.flat_state = self._gathered(lambda columns: columns.state)
        self.flat_actions = self._gathered(lambda columns: columns.action)
        self.fingerprint = self._hash()

    def _gathered(self, column: Any) -> np.ndarray:
        if self._is_whole:
            whole: np.ndarray = column(self._stores[0].columns)
            return whole
        parts = []
        for s, e in self._members:
            start = self._stores[s].episodes.first[e]
            parts.append(column(self._stores[s].columns)[start : start + self._stores[s].episodes.lengths[e]])
        return np.concatenate(parts)

    def _hash(self) -> str:
        if self._is_whole:
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
        store, episode = self._members[number]
        return self._stores[store].trajectory(episode)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[number] for number in range(len(self)))

    def gather(self, camera: str, frames: np.ndarray) -> np.ndarray:
        """Frames by global index: uint8 (len(frames), H, W, 3), a copy."""
        self._require_camera(camera)
        frames = np.asarray(frames)
        if len(self._stores) == 1:
            return np.asarray(self._stores[0].frames[camera])[self._row_of_frame[frames]]
        owner, rows = self._store_of_frame[frames], self._row_of_frame[frames]
        out = np.empty((len(frames), *self._stores[0].frames[camera].shape[1:]), dtype=np.uint8)
        for number in np.unique(owner):
            chosen = owner == number
            out[chosen] = np.asarray(self._stores[number].frames[camera])[rows[chosen]]
        return out

    def flat_images(self, camera: str) -> np.memmap | FlatImages:
        """All frames of a camera, uint8 (N, H, W, 3): the memory map itself for a whole dataset."""
        self._require_camera(camera)
        return self._stores[0].frames[camera] if self._is_whole else FlatImages(self, camera)

    def whole(self) -> Whole:
        """The dataset that the episodes come from. Raises DataError when they come from several."""
        if len(self._stores) > 1:
            raise DataError(f"{self.root}: these episodes come from several datasets; take one at a time")
        store = self._stores[0]
        ids = tuple(facts.episode_id for facts in store.episodes.facts)
        return Whole(
            root=store.root,
            fingerprint=store.fingerprint,
            first=store.episodes.first,
            lengths=store.episodes.lengths,
            episode_ids=ids,
        )

    def forget_frames(self) -> None:
        """Give back the memory that the frames read so far take; whoever wants them reads the cache file again."""
        for store in self._stores:
            for frames in store.frames.values():
                mapped: Any = getattr(frames, "_mmap", None)
                if mapped is not None and hasattr(mapped, "madvise"):
                    mapped.madvise(mmap.MADV_DONTNEED)

    def _require_camera(self, camera: str) -> None:
        if camera not in self.cameras:
            present = ", ".join(self.cameras) or "none"
            raise DataError(f"{self.root}: camera {camera!r} is missing; the dataset has {present}")

    def select(self, numbers: Sequence[int] | range | np.ndarray) -> EpisodeSet:
        """Some of the episodes, in the order given; shares the frames."""
        return EpisodeSet(self._stores, [self._members[int(number)] for number in numbers])

    def split(self, fraction: float, seed: int) -> tuple[EpisodeSet, EpisodeSet]:
        """(rest, `fraction` of the episodes), drawn alike from every task and outcome.

        Each group of n gives floor(fraction n) or one more, so that the total is round(fraction E). Raises
        DataError when one side would be empty.
        """
        rng = np.random.default_rng(seed)
        groups: dict[tuple[str, str], list[int]] = {}
        for number, (s, e) in enumerate(self._members):
            facts = self._stores[s].episodes.facts[e]
            groups.setdefault((facts.task or facts.instruction, str(facts.outcome)), []).append(number)
        members = [rng.permutation(groups[name]) for name in sorted(groups)]
        shares = np.array([fraction * len(group) for group in members])
        counts = np.floor(shares + 1e-9).astype(int)
        order = rng.permutation(len(members))
        order = order[np.argsort(-(shares - counts)[order], kind="stable")]
        counts[order[: round(fraction * len(self)) - counts.sum()]] += 1
        taken = {int(number) for group, count in zip(members, counts, strict=True) for number in group[:count]}
        if not taken or len(taken) == len(self):
            raise DataError(f"{self.root}: {len(self)} episodes cannot be split {1 - fraction:.0%} / {fraction:.0%}")
        return self.select([number for number in range(len(self)) if number not in taken]), self.select(sorted(taken))


@overload
def read_episodes(root: Path | str) -> EpisodeSet: ...
@overload
def read_episodes(root: Path | str, *, skip_bad: Literal[False]) -> EpisodeSet: ...
@overload
def read_episodes(root: Path | str, *, skip_bad: Literal[True]) -> tuple[EpisodeSet, list[BadEpisode]]: ...
def read_episodes(root: Path | str, *, skip_bad: bool = False) -> EpisodeSet | tuple[EpisodeSet, list[BadEpisode]]:
    """Open a LeRobotDataset v3 folder, ours or anyone's. Raises DataError naming the file that is wrong.

    The first reading decodes all frames into `.cache/robo_rl` inside the folder; later ones map that file.
    Data without our `robo.final` column: an episode's last frame is taken as its final observation and its
    last action is dropped; an outcome is known if `next.success`, or a reward of 0 and 1, tells it; the
    controller is a person, or whom an `intervention` column names.

    With `skip_bad`: the episodes that can be used, and those that cannot, with the reason (a video or a data file that
    is missing or damaged, a camera without frames, fewer than two frames, numbers that are not finite). DataError
    only when none is left, or for what concerns the whole dataset.
    """
    root = Path(root)
    info, damage = _info(root), Damage(tolerate=skip_bad)
    rows = read_rows(root)
    columns = read_columns(root, info, rows, damage)
    episodes = read_facts(root, info, columns, rows, damage)
    pa.default_memory_pool().release_unused()  # tables take several times as much as the columns made of them
    mark = layout.fingerprint(root)
    fps = float(info["fps"])
    frames = {
        layout.camera_name(key): cache.decoded(root, mark, key, feature, episodes.spans[key], fps=fps, damage=damage)
        for key, feature in cameras(info).items()
    }
    store = _Store(root=root, fps=fps, fingerprint=mark, frames=frames, columns=columns, episodes=episodes)
    bad = [
        BadEpisode(number=number, episode_id=episodes.facts[number].episode_id, why=damage.why[number])
        for number in sorted(damage.why)
    ]
    good = [(0, number) for number in range(len(episodes.first)) if number not in damage.why]
    if not good:
        raise DataError(f"{root}: no episode can be used; {bad[0]}")
    chosen = EpisodeSet([store], good)
    return (chosen, bad) if skip_bad else chosen


def _info(root: Path) -> dict[str, Any]:
    path = root / layout.INFO
    if not root.exists():
        raise DataError(f"{root}: no such dataset folder")
    try:
        info = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{root}: not a LeRobotDataset, {layout.INFO} is missing") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    version = info.get("codebase_version", "of unknown version")
    if version != layout.VERSION:
        mend = (
            f"convert it with `python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id={root.name} "
            f"--root={root} --push-to-hub=false`"
        )
        mend = mend if str(version).startswith("v2.") else "update robo_rl, or write it with lerobot 0.6"
        raise DataError(f"{root}: LeRobotDataset {version}; this needs {layout.VERSION}, {mend}")
    missing = [key for key in ("fps", "features", "total_episodes", "total_frames") if key not in info]
    if missing:
        raise DataError(f"{path}: key {missing[0]!r} is missing; copy the dataset again")
    if not info["total_episodes"]:
        raise DataError(f"{root}: the dataset has no episodes")
    return dict(info)


def concat(sets: Sequence[EpisodeSet]) -> EpisodeSet:
    """Several sets as one. Raises DataError where rate, cameras, frame sizes or widths differ, or nothing is given."""
    if not sets:
        raise DataError("there is no dataset to put together; name at least one")
    stores: list[_Store] = []
    members: list[tuple[int, int]] = []
    for part in sets:
        _require_alike(sets[0], part)
        places = []
        for store in part._stores:
            if not any(store is known for known in stores):
                stores.append(store)
            places.append(next(place for place, known in enumerate(stores) if known is store))
        members += [(places[s], e) for s, e in part._members]
    return EpisodeSet(stores, members)


def _require_alike(one: EpisodeSet, other: EpisodeSet) -> None:
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
    cameras: Mapping[str, tuple[int, ...]] | Sequence[str] | None = None,
    state_dim: int | None = None,
    action_dim: int | None = None,
) -> None:
    """DataError naming what a dataset lacks of what its user needs. `cameras` may give sizes (height, width)."""
    where = episodes.root
    if fps is not None and episodes.fps != fps:
        raise DataError(f"{where}: recorded at {episodes.fps:g} fps, but {fps:g} fps are needed")
    for camera in cameras or ():
        episodes._require_camera(camera)
        size = episodes[0].images[camera].shape[1:3]
        if isinstance(cameras, Mapping) and tuple(cameras[camera]) != tuple(size):
            raise DataError(f"{where}: camera {camera!r} has frames {size}, but {tuple(cameras[camera])} are needed")
    for name, wanted, array in (
        ("state", state_dim, episodes.flat_state),
        ("action", action_dim, episodes.flat_actions),
    ):
        if wanted is not None and array.shape[1] != wanted:
            raise DataError(f"{where}: {name} has {array.shape[1]} numbers, but {wanted} are needed")
