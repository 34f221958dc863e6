"""Configuration dataclasses from plain values, as YAML gives them, with errors that name the key."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from robo_rl.errors import ConfigError


def configured(kind: Any, values: Any, where: str) -> Any:
    """A dataclass from a mapping; lists become tuples, mappings nested dataclasses.

    Raises ConfigError naming a key that is unknown or missing, or whose value is of the wrong kind.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must hold keys and values, got {values!r}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    given = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise ConfigError(f"{where}.{key}: unknown key; {hint}")
        given[key] = _value(hints[key], value, f"{where}.{key}")
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as the field wants it. Kinds that are not plain are left to the dataclass itself."""
    if isinstance(hint, types.UnionType):
        if value is None and type(None) in hint.__args__:
            return None
        plain = [part for part in hint.__args__ if part is not type(None)]
        return _value(plain[0], value, where) if len(plain) == 1 else value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else configured(hint, value, where)
    origin = typing.get_origin(hint) or hint
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: must be a list, got {value!r}")
        return tuple(value)
    if origin in (collections.abc.Mapping, dict) and not isinstance(value, Mapping):
        raise ConfigError(f"{where}: must hold keys and values, got {value!r}")
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if hint not in names:
        return value
    fits = isinstance(value, hint)
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits:
        raise ConfigError(f"{where}: must be {names[hint]}, got {value!r}")
    return float(value) if hint is float else value
