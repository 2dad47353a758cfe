"""Values of Python's own types as JSON and back by their annotations, for programs without pydantic."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from .errors import Invalid


def to_json(value: Any) -> Any:
    """The value in what json.dumps takes."""
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_json(k)): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(v) for v in value]
    raise Invalid(
        f"a {type(value).__qualname__} has no form in JSON: pass a dataclass or what it is made of, or use a model: pip install 'weir-pg[pydantic]'"
    )


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(value.replace("Z", "+00:00") if isinstance(value, str) else value)


_FROM: dict[Any, Callable[[Any], Any]] = {
    datetime: _moment,
    date: date.fromisoformat,
    time: time.fromisoformat,
    timedelta: lambda v: timedelta(seconds=v),
    UUID: UUID,
    Decimal: lambda v: Decimal(str(v)),
}


def from_json(value: Any, wanted: Any, where: str) -> Any:
    """The value as its annotation says; what the annotation does not say is left as it is."""
    try:
        return _read(value, wanted, where)
    except (TypeError, ValueError, AttributeError) as e:
        if isinstance(e, Invalid):
            raise
        raise Invalid(f"{where} is {value!r}, want {_name(wanted)}: {e}") from e


def _name(wanted: Any) -> str:
    return wanted.__qualname__ if isinstance(wanted, type) else str(wanted)


def _read(value: Any, wanted: Any, where: str) -> Any:
    origin, of = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Annotated:
        return from_json(value, of[0], where)
    if wanted in (Any, inspect.Parameter.empty, object) or isinstance(wanted, typing.TypeVar):
        return value
    if origin in (typing.Union, types.UnionType):
        return _either(value, of, where)
    if wanted is None or wanted is type(None):
        if value is not None:
            raise Invalid(f"{where} is {value!r}, want null")
        return None
    if origin is typing.Literal:
        if value not in of:
            raise Invalid(f"{where} is {value!r}, want one of {of!r}")
        return value
    if isinstance(wanted, typing.NewType):
        return from_json(value, wanted.__supertype__, where)
    if typing.is_typeddict(wanted):
        return _typed_dict(value, wanted, where)
    if isinstance(wanted, type) and not origin:
        return _plain(value, wanted, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {from_json(k, of[0], where): from_json(v, of[1], f"{where}.{k}") for k, v in value.items()}
    if origin is tuple and of and of[-1] is not Ellipsis:
        return tuple(from_json(v, t, f"{where}[{i}]") for i, (v, t) in enumerate(zip(value, of, strict=True)))
    if isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)):
        items = [from_json(v, of[0], f"{where}[{i}]") for i, v in enumerate(value)]
        return origin(items) if origin in (tuple, set, frozenset) else items
    return value


def _either(value: Any, of: tuple[Any, ...], where: str) -> Any:
    for exact in (True, False):
        for wanted in of:
            is_exact = wanted is type(value) or (wanted in (None, type(None)) and value is None)
            if is_exact is exact:
                try:
                    return from_json(value, wanted, where)
                except Invalid:
                    continue
    raise Invalid(f"{where} is {value!r}, want one of {', '.join(_name(t) for t in of)}")


def _plain(value: Any, wanted: type, where: str) -> Any:
    if dataclasses.is_dataclass(wanted):
        return dataclass_from(value, wanted, where)
    if issubclass(wanted, enum.Enum):
        return wanted(value)
    if wanted in _FROM:
        if isinstance(value, wanted):
            return value
        return _FROM[wanted](value)
    if wanted is float and type(value) is int:
        return float(value)
    if wanted in (str, int, float, bool, dict, list) and type(value) is not wanted:
        raise Invalid(f"{where} is {value!r}, want {wanted.__name__}")
    if wanted in (tuple, set, frozenset):
        return wanted(value)
    if isinstance(value, wanted):
        return value
    raise Invalid(f"{where} is {value!r}, want {_name(wanted)}: make it a dataclass, or use a model: pip install 'weir-pg[pydantic]'")


def _typed_dict(value: Any, wanted: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise Invalid(f"{where} is {value!r}, want an object for {_name(wanted)}")
    if lacking := sorted(wanted.__required_keys__ - set(value)):
        raise Invalid(f"{where} lacks {lacking[0]!r}, which {_name(wanted)} needs")
    hints = typing.get_type_hints(wanted)
    return {k: from_json(v, hints.get(k, Any), f"{where}.{k}") for k, v in value.items()}


def dataclass_from(value: Any, wanted: Any, where: str) -> Any:
    """A dataclass from the JSON object of its fields."""
    if isinstance(value, wanted):
        return value
    if not isinstance(value, Mapping):
        raise Invalid(f"{where} is {value!r}, want an object for {wanted.__qualname__}")
    hints = typing.get_type_hints(wanted, include_extras=True)
    names = {f.name for f in dataclasses.fields(wanted) if f.init}
    if unknown := sorted(set(value) - names):
        raise Invalid(f"{where} has {unknown[0]!r}, which {wanted.__qualname__} has not")
    try:
        return wanted(**{n: from_json(v, hints.get(n, Any), f"{where}.{n}") for n, v in value.items()})
    except TypeError as e:
        raise Invalid(f"{where}: {e}") from e
