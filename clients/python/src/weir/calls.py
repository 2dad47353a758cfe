"""Calls of Weir's SQL functions over a connection of the application's, whichever driver or library it is from.

A call is one statement whose parameters are texts, and whose results are texts, numbers or booleans: so it means the
same in every driver, whatever adapters, row factories and time zones the application has set. No driver is imported
here unless a connection of its own is passed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from .errors import Invalid, Unsupported, explained

if TYPE_CHECKING:
    from .app import Weir
    from .sync import Sync

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Row = Sequence[Any]


class AsyncExecutes(Protocol):
    """A connection or session whose `execute` is awaited: of psycopg, asyncpg or SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class Fetches(Protocol):
    """What a connection's `execute` returns."""

    def fetchone(self) -> Any: ...


class Executes(Protocol):
    """A connection or session of psycopg or SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Fetches: ...


class DjangoConnection(Protocol):
    """A connection of Django, such as django.db.connection."""

    def ensure_connection(self) -> Any: ...


AsyncTx: TypeAlias = AsyncExecutes
SyncTx: TypeAlias = "Executes | DjangoConnection | str"  # a text is an alias of Django's databases
AsyncPlace: TypeAlias = "AsyncExecutes | Weir"
SyncPlace: TypeAlias = "Executes | DjangoConnection | Sync | str"


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A call over HTTP."""

    method: str
    path: str
    body: Any
    convert: Callable[[Any], T]
    is_keyed: bool = False  # an Idempotency-Key makes it safe to repeat it


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement with `%s` for its parameters, what becomes of its rows, and the same over HTTP if that is possible."""

    sql: str
    params: tuple[str | None, ...]
    convert: Callable[[list[Row]], T]
    http: Request[T] | None = None


def given(value: object, as_type: str) -> tuple[str, str | None]:
    """A parameter: its placeholder, with the cast from text, and its text."""
    place = "CAST(%s AS text)" if as_type == "text" else f"CAST(CAST(%s AS text) AS {as_type})"
    if value is None or isinstance(value, str):
        return place, value
    if isinstance(value, bool):
        return place, "true" if value else "false"
    return place, str(value)


def array(values: Sequence[str] | None) -> str | None:
    """An array of texts as PostgreSQL writes it."""
    if values is None:
        return None
    return "{" + ",".join('"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in values) + "}"


def one(rows: list[Row]) -> Any:
    """The only value of the only row."""
    return rows[0][0] if rows else None


@lru_cache(256)
def numbered(sql: str) -> str:
    """The statement with `$1` for its first `%s`, as asyncpg takes it."""
    head, *rest = sql.split("%s")
    return head + "".join(f"${i}{part}" for i, part in enumerate(rest, 1))


@lru_cache(256)
def named(sql: str) -> Any:
    """The statement for SQLAlchemy, with `:p1` for its first `%s`."""
    from sqlalchemy import text

    head, *rest = sql.split("%s")
    return text(head + "".join(f":p{i}{part}" for i, part in enumerate(rest, 1)))


def execute(place: Any, call: Call[T]) -> Any:
    """Runs a call over a connection: returns its result, or, if the connection is awaited, an awaitable of it."""
    return _runner(place)(place, call)


def is_async(place: Any) -> bool:
    """Whether what is done over this connection is awaited."""
    return _runner(place) in (_psycopg_async, _asyncpg, _sqlalchemy_async, _app)


def _runner(place: Any) -> Callable[[Any, Call[Any]], Any]:
    if isinstance(place, str):
        return _django_alias
    found = _runner_of(type(place))  # type: ignore[arg-type]
    if found is None:
        raise Invalid(
            f"{type(place).__module__}.{type(place).__qualname__} is no connection that Weir knows: pass one of psycopg, asyncpg, "
            "SQLAlchemy (also a session) or Django, or the app itself for a transaction of its own"
        )
    return found


@lru_cache(256)
def _runner_of(cls: type) -> Callable[[Any, Call[Any]], Any] | None:
    for base in cls.__mro__:
        package, name = base.__module__.split(".")[0], base.__name__
        if package == "weir" and name == "Sync":
            return _app_sync
        if package == "weir" and name == "Weir":
            return _app
        if package == "psycopg" and name in ("AsyncConnection", "Connection"):
            return _psycopg_async if name == "AsyncConnection" else _psycopg
        if package == "asyncpg" and name in ("Connection", "PoolConnectionProxy"):
            return _asyncpg
        if package == "sqlalchemy" and name in ("AsyncSession", "AsyncConnection", "async_scoped_session"):
            return _sqlalchemy_async
        if package == "sqlalchemy" and name in ("Session", "Connection", "scoped_session"):
            return _sqlalchemy
        if package == "django" and name in ("BaseDatabaseWrapper", "ConnectionProxy"):
            return _django
    return None


def _app(place: Any, call: Call[Any]) -> Any:
    return place._call(call)


def _app_sync(place: Any, call: Call[Any]) -> Any:
    return place._call(call)


def _psycopg(conn: Any, call: Call[T]) -> T:
    from psycopg.rows import tuple_row

    with explained, conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(call.sql, call.params)
        return call.convert(cursor.fetchall())


async def _psycopg_async(conn: Any, call: Call[T]) -> T:
    from psycopg.rows import tuple_row

    with explained:
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(call.sql, call.params)
            return call.convert(await cursor.fetchall())


async def _asyncpg(conn: Any, call: Call[T]) -> T:
    with explained:
        return call.convert([tuple(row) for row in await conn.fetch(numbered(call.sql), *call.params)])


def _bound(call: Call[Any]) -> dict[str, str | None]:
    return {f"p{i}": value for i, value in enumerate(call.params, 1)}


def _sqlalchemy(conn: Any, call: Call[T]) -> T:
    with explained:
        return call.convert([tuple(row) for row in conn.execute(named(call.sql), _bound(call)).fetchall()])


async def _sqlalchemy_async(conn: Any, call: Call[T]) -> T:
    with explained:
        return call.convert([tuple(row) for row in (await conn.execute(named(call.sql), _bound(call))).fetchall()])


def _django(conn: Any, call: Call[T]) -> T:
    if conn.vendor != "postgresql":
        raise Unsupported(f"the database {conn.alias!r} of Django is {conn.vendor}: Weir needs PostgreSQL")
    with explained, conn.cursor() as cursor:
        cursor.execute(call.sql, call.params)
        return call.convert([tuple(row) for row in cursor.fetchall()])


def _django_alias(alias: Any, call: Call[T]) -> T:
    return _django(django_connection(alias), call)


def django_connection(alias: str) -> Any:
    """The connection of a database of Django's."""
    which = repr(alias) if len(alias) < 50 and alias.replace("-", "_").isidentifier() else "a connection string"  # with its password
    otherwise = "pass a connection or a session, or the app itself for a transaction of its own"
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
    except ImportError as e:
        raise Invalid(f"a text names a database of Django, and {which} can't, because Django is not installed: {otherwise}") from e
    try:
        if alias in connections:
            return connections[alias]
        raise Invalid(f"Django has no database named by {which}, but {', '.join(connections)}: pass one of these; or {otherwise}")
    except ImproperlyConfigured as e:
        raise Invalid(
            f"a text names a database of Django, and {which} can't, because Django is not configured: "
            f"set DJANGO_SETTINGS_MODULE and call django.setup(); or {otherwise}"
        ) from e
