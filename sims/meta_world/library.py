"""The Meta-World library behind one door: a missing package is one clear line, its warnings are named here.

Warnings of the library that say nothing to our users and are silenced around its calls:
  "Constant(s) may be too high. Environments clip response to [-1, 1]"   its scripted experts
  "Box low's precision lowered by casting" and the like                  gymnasium, when a task is built
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from robo_rl.errors import ConfigError


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Silence the library's own UserWarnings inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def environments() -> dict[str, Any]:
    """Task name -> class of its environment. Raises ConfigError without the package."""
    try:
        with quiet_library():
            from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise _missing(error) from error
    return dict(ALL_V3_ENVIRONMENTS)


def experts() -> dict[str, Any]:
    """Task name -> class of its scripted expert. Raises ConfigError without the package."""
    try:
        with quiet_library():
            from metaworld.policies import ENV_POLICY_MAP
    except ImportError as error:
        raise _missing(error) from error
    return dict(ENV_POLICY_MAP)


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f'Meta-World cannot be imported ({error}); pip install "robo-rl[metaworld]"')
