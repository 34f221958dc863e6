"""Configuration dataclasses from YAML values: what is wrong is named with its key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from robo_rl.errors import ConfigError
from robo_rl.options import configured


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    rate: float = 0.5
    count: int = 3
    on: bool = False
    cameras: tuple[str, ...] = ()
    limit: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def test_values_become_what_the_fields_are() -> None:
    made = configured(
        Outer, {"name": "a", "rate": 2, "cameras": ["x", "y"], "limit": None, "inner": {"size": 4}}, "file"
    )
    assert made == Outer(name="a", rate=2.0, cameras=("x", "y"), inner=Inner(size=4))
    assert isinstance(made.rate, float)
    assert configured(Outer, {"name": "a", "limit": 7, "inner": Inner(size=2)}, "file").inner.size == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (3, "file: must hold keys and values, got 3"),
        ({}, "file: .*name"),
        ({"nme": "a"}, "file.nme: unknown key; did you mean 'name'"),
        ({"name": 3}, "file.name: must be text, got 3"),
        ({"name": "a", "rate": "fast"}, "file.rate: must be a number, got 'fast'"),
        ({"name": "a", "rate": True}, "file.rate: must be a number"),
        ({"name": "a", "count": 2.5}, "file.count: must be a whole number, got 2.5"),
        ({"name": "a", "count": True}, "file.count: must be a whole number"),
        ({"name": "a", "on": 1}, "file.on: must be true or false, got 1"),
        ({"name": "a", "cameras": "x"}, "file.cameras: must be a list, got 'x'"),
        ({"name": "a", "limit": "x"}, "file.limit: must be a whole number"),
        ({"name": "a", "more": 3}, "file.more: must hold keys and values"),
        ({"name": "a", "inner": 3}, "file.inner: must hold keys and values"),
        ({"name": "a", "inner": {"sise": 3}}, "file.inner.sise: unknown key; did you mean 'size'"),
    ],
)
def test_what_is_wrong_is_named(values: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configured(Outer, values, "file")
