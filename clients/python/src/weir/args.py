"""The args of a task: what its function takes, as a JSON object by the names of its parameters."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import plain, text
from .errors import Invalid

try:
    import pydantic
    import pydantic_core
except ImportError:  # args are then converted by plain.py
    pydantic = None  # type: ignore[assignment]


class Args:
    """How the args of one function are checked, written and read. Annotations are looked up when it is first used, so they may name later types."""

    def __init__(self, fn: Callable[..., Any], kind: str, job_type: type) -> None:
        self.fn = fn
        self.kind = kind
        self._job_type = job_type
        self.signature = inspect.signature(fn)
        for p in self.signature.parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                raise Invalid(f"task {kind} takes *{p.name}: args are kept by name, so name them")
            if p.kind is p.POSITIONAL_ONLY:
                raise Invalid(f"task {kind} takes {p.name} by position only: args are kept by name, so remove the slash")

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations, as types."""
        try:
            return typing.get_type_hints(self.fn, include_extras=True)
        except NameError as e:
            raise Invalid(f"task {self.kind} has an annotation that can't be looked up: {e}; import it where the task is defined") from e

    @functools.cached_property
    def takes_job(self) -> bool:
        """Whether the first parameter is the job."""
        first = next(iter(self.signature.parameters), None)
        return first is not None and self.hints.get(first) is self._job_type

    @functools.cached_property
    def params(self) -> list[inspect.Parameter]:
        """The parameters that args fill."""
        return list(self.signature.parameters.values())[1 if self.takes_job else 0 :]

    @functools.cached_property
    def whole(self) -> inspect.Parameter | None:
        """The only parameter, if it is a dataclass or a model: the args are its fields then."""
        if len(self.params) == 1 and is_record(self.hints.get(self.params[0].name)):
            return self.params[0]
        return None

    @functools.cached_property
    def _of_args(self) -> inspect.Signature:
        return inspect.Signature(self.params)

    @functools.cached_property
    def _adapters(self) -> dict[str, Any]:
        found = {p.name: self.hints.get(p.name, Any) for p in self.params}
        return {n: self._adapter(n, t) for n, t in found.items() if t not in (Any, Any | None)}  # Python 3.10 makes the latter of `at: Any = None`

    def _adapter(self, name: str, hint: Any) -> Any:
        try:
            return pydantic.TypeAdapter(hint)
        except pydantic.errors.PydanticUserError as e:
            raise Invalid(f"{name} of task {self.kind}: {str(e).splitlines()[0]}") from e

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON of a call's arguments."""
        try:
            bound = self._of_args.bind(*args, **kwargs)
        except TypeError as e:
            raise Invalid(f"task {self.kind}: {e}; it takes {self._of_args}") from e
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            p = self._of_args.parameters[name]
            if p.kind is p.VAR_KEYWORD:
                found.update({n: self._write(name, v) for n, v in value.items()})
            else:
                found[name] = self._write(name, value)
        if self.whole is not None:
            found = found.get(self.whole.name, {})
        try:
            return text.dumps(found, f"args of task {self.kind}")
        except Invalid:
            for name, value in found.items():
                text.dumps(value, f"{name} of task {self.kind}")  # which one it is
            raise

    def _write(self, name: str, value: Any) -> Any:
        where = f"{name} of task {self.kind}"
        if pydantic is None:
            try:
                written = plain.to_json(value)
            except Invalid as e:
                raise Invalid(f"{where}: {e}") from e
            plain.from_json(written, self.hints.get(name, Any), where)
        else:
            adapter = self._adapters.get(name)
            try:
                if adapter is None:
                    written = pydantic_core.to_jsonable_python(value)
                else:
                    written = adapter.dump_python(adapter.validate_python(value), mode="json", by_alias=True)
            except ValueError as e:
                raise Invalid(f"{where}: {e}") from e
        return written

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the function from a job's args."""
        if self.whole is not None:
            return {self.whole.name: self._read(self.whole.name, dict(given))}
        known = self._of_args.parameters
        rest = next((p.name for p in self.params if p.kind is p.VAR_KEYWORD), None)
        found = {}
        for name, value in given.items():
            if name in known:
                found[name] = self._read(name, value)
            elif rest is not None:
                found[name] = self._read(rest, value)
            else:
                raise Invalid(f"args of the job have {name!r}, which task {self.kind} does not take; it takes {self._of_args}")
        for p in self.params:
            if p.name not in found and p.default is p.empty and p.kind is not p.VAR_KEYWORD:
                raise Invalid(f"args of the job lack {p.name!r}, which task {self.kind} needs; it takes {self._of_args}")
        return found

    def _read(self, name: str, value: Any) -> Any:
        if pydantic is None:
            return plain.from_json(value, self.hints.get(name, Any), f"{name} in args of the job")
        adapter = self._adapters.get(name)
        return value if adapter is None else adapter.validate_python(value)


def load(given: Iterable[Args]) -> None:
    """Has pydantic import and compile what these need: a worker's loop has no time for that once it has a lease."""
    if pydantic is None:
        return
    result_to_json({})
    for args in given:
        with contextlib.suppress(Exception):  # what is wrong with annotations fails the jobs that need them
            _ = args.whole, args._adapters


def is_record(hint: Any) -> bool:
    """Whether it is a dataclass or a pydantic model."""
    if not isinstance(hint, type):
        return False
    return dataclasses.is_dataclass(hint) or (pydantic is not None and issubclass(hint, pydantic.BaseModel))


def result_to_json(value: Any) -> Any:
    """What a task has returned, in what json.dumps takes."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if pydantic is not None:
        return pydantic_core.to_jsonable_python(value)
    return plain.to_json(value)
