"""How child processes are started: forked from a clean server that has imported the heavy libraries once.

Importing torch and lerobot takes seconds, and a run starts dozens of processes. The server itself never
computes anything, so its children start with no threads and no graphics context.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def process_context() -> Any:
    """The multiprocessing context of the whole project."""
    return multiprocessing.get_context(METHOD)


def preload(*modules: str) -> None:
    """Modules the server imports before its first child. Call it before any child is started."""
    if METHOD == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
