"""How child processes are started: forked from a clean server that has imported the heavy libraries once.

Importing torch and lerobot takes seconds, and a run starts dozens of processes. The server itself never
computes anything, so its children start with no threads and no graphics context.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver, resource_tracker
from typing import Any

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def process_context() -> Any:
    """The multiprocessing context of the whole project."""
    if METHOD == "forkserver":
        _share_server()
    return multiprocessing.get_context(METHOD)


def preload(*modules: str) -> None:
    """Modules the server imports before its first child. Call it before any child is started."""
    if METHOD == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))


def _share_server() -> None:
    """Let a child of the server ask that same server for children of its own.

    The documentation promises this, but Python 3.12 starts a second server that has imported nothing, which
    costs a stage with two workers many seconds. Where these private names are gone, nothing changes.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    names = ("_forkserver_address", "_forkserver_alive_fd")
    is_child = multiprocessing.parent_process() is not None and getattr(server, "_forkserver_pid", 0) is None
    if is_child and all(getattr(server, name, None) is not None for name in names):
        server.ensure_running = resource_tracker.ensure_running
