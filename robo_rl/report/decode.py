"""JSON values <-> frozen dataclasses, checked against their annotations; a mistake is one line with its path."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from robo_rl.errors import DataError


def encode(value: Any, where: str) -> Any:
    """Dataclasses, numpy scalars and containers as plain JSON values.

    Raises DataError for a number that is not finite (JSON has no NaN; None says "undefined") and for
    anything that is not JSON. Arrays are not written here: see `robo_rl.report.model`.
    """
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DataError(f"{where}: {value} is not finite; write None and give the reason in 'undefined'")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence | np.ndarray):
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise DataError(f"{where}: cannot write a {type(value).__name__} into a report")


def decode(kind: Any, value: Any, where: str) -> Any:
    """`value` (from JSON) as `kind`: a dataclass, Sequence[X], Mapping[str, X], Literal, StrEnum, X | None or scalar.

    Raises DataError naming the path of the first value that does not fit.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(kind, value, where)
    if origin is Literal:
        if value not in get_args(kind):
            raise DataError(f"{where}: {value!r} is not one of {', '.join(map(repr, get_args(kind)))}")
        return value
    if origin is Mapping:
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected a mapping, got {_describe(value)}")
        return {key: decode(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Sequence:
        if not isinstance(value, list):
            raise DataError(f"{where}: expected a list, got {_describe(value)}")
        return [decode(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    return _decode_scalar(kind, value, where)


def _decode_union(kind: Any, value: Any, where: str) -> Any:
    choices = [choice for choice in get_args(kind) if choice is not type(None)]
    if value is None:
        if len(choices) == len(get_args(kind)):
            raise DataError(f"{where}: expected a value, got nothing")
        return None
    return decode(choices[0], value, where)


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in [member.value for member in kind]:
            raise DataError(f"{where}: {value!r} is not one of {', '.join(repr(m.value) for m in kind)}")
        return kind(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    fits = (isinstance(value, int) and number) if kind is int else isinstance(value, kind)
    if kind is float or not fits:
        raise DataError(f"{where}: expected {_NAMES.get(kind, kind.__name__)}, got {_describe(value)}")
    return value


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a {kind.__name__}, got {_describe(value)}")
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(value) - known)
    if unknown:
        raise DataError(f"{where}.{unknown[0]}: unknown key; {kind.__name__} has {', '.join(sorted(known))}")
    arguments = {}
    for f in fields(kind):
        if f.name in value:
            arguments[f.name] = decode(hints[f.name], value[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise DataError(f"{where}: {f.name!r} is missing; every {kind.__name__} has it")
    try:
        return kind(**arguments)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{_NAMES.get(type(value), type(value).__name__)} {str(value)[:40]!r}"


_NAMES: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}
