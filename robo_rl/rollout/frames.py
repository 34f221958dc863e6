"""Where a group's frames are kept: plain memory in one process, shared memory between two."""

from __future__ import annotations

import errno
import os
from collections.abc import Buffer, Mapping
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Protocol

import numpy as np

from robo_rl.errors import ConfigError, RoboRLError


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """The size of a group's frames: for each camera uint8 (episodes, steps + 1, H, W, 3)."""

    episodes: int
    observations: int  # horizon + 1
    cameras: tuple[tuple[str, tuple[int, int, int]], ...]

    @property
    def nbytes(self) -> int:
        return sum(self.episodes * self.observations * h * w * c for _, (h, w, c) in self.cameras)

    def views(self, memory: Buffer) -> dict[str, np.ndarray]:
        """Arrays (episodes, observations, H, W, 3) of each camera over one flat piece of memory."""
        arrays: dict[str, np.ndarray] = {}
        offset = 0
        for camera, frame_shape in self.cameras:
            shape = (self.episodes, self.observations, *frame_shape)
            arrays[camera] = np.ndarray(shape, np.uint8, buffer=memory, offset=offset)
            offset += int(np.prod(shape))
        return arrays


class FrameBuffer(Protocol):
    """Gives the arrays a group writes its frames into."""

    def views(self, spec: FrameSpec) -> Mapping[str, np.ndarray]: ...


class LocalFrames:
    """Frames in this process; the memory is reused from group to group."""

    def __init__(self) -> None:
        self._spec: FrameSpec | None = None
        self._views: dict[str, np.ndarray] = {}

    def views(self, spec: FrameSpec) -> dict[str, np.ndarray]:
        if spec != self._spec:
            self._spec, self._views = spec, spec.views(bytearray(spec.nbytes))
        return self._views


def create_shared(nbytes: int) -> shared_memory.SharedMemory:
    """Shared memory whose pages exist: writing to it cannot kill the process later. Raises ConfigError."""
    memory = shared_memory.SharedMemory(create=True, size=nbytes)
    try:
        reserve_pages(memory.name, nbytes)
    except OSError as error:
        memory.close()
        memory.unlink()
        if error.errno != errno.ENOSPC:
            raise RoboRLError(f"cannot reserve {nbytes} bytes of shared memory: {error}") from error
        raise ConfigError(
            f"the shared memory of this machine (/dev/shm) has no room for {nbytes / 2**20:.0f} MiB of frames; "
            "use a smaller group_size, fewer workers or smaller images (docker: --shm-size)"
        ) from error
    return memory


def reserve_pages(name: str, nbytes: int) -> None:
    """Make a shared memory file's pages exist. Without it a full /dev/shm shows as SIGBUS on first touch."""
    file = Path("/dev/shm") / name.lstrip("/")
    if not (hasattr(os, "posix_fallocate") and file.exists()):
        return  # not Linux: the system reserves on its own
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    finally:
        os.close(descriptor)
