"""Connections of an app's own, for calls that are not made in a transaction of the application's."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from .calls import Call, _psycopg, _psycopg_async
from .errors import Unsupported

if TYPE_CHECKING:
    from .app import Weir

T = TypeVar("T")


class Pool:
    """The connections of one event loop, or of a hub's client."""

    def __init__(self, app: Weir) -> None:
        self._app = app
        self._pool: Any = None
        self._hub: Any = None
        self._opening = asyncio.Lock()

    async def call(self, call: Call[T]) -> T:
        """Runs a call in a transaction of its own."""
        database = self._app.database
        if database is None:
            return await self._over_http(call)
        async with self._opening:
            if self._pool is None:
                how = _how(database, self._app.pool_size)
                pool = _psycopg_pool().AsyncConnectionPool(**how)
                # What is wrong with the address or the password is said at once: the pool would only say after a while that it has no connection.
                await (await _psycopg_module().AsyncConnection.connect(how["conninfo"], **how["kwargs"])).close()
                await pool.open()
                self._pool = pool
        async with self._pool.connection() as conn:
            return await _psycopg_async(conn, call)

    async def _over_http(self, call: Call[T]) -> T:
        if call.http is None:
            raise Unsupported("this is not possible over a hub: pass a connection to the database")
        if self._hub is None:
            from .hub import Hub

            self._hub = Hub(self._app.hub or "", self._app.token)
        result: T = await self._hub.request(call.http)
        return result

    async def close(self) -> None:
        """Closes all of them."""
        for each in (self._pool, self._hub):
            if each is not None:
                await each.close()
        self._pool = self._hub = None


class SyncPool:
    """The same for threads."""

    def __init__(self, app: Weir) -> None:
        self._app = app
        self._pool: Any = None
        self._hub: Any = None
        self._opening = threading.Lock()

    def call(self, call: Call[T]) -> T:
        """Runs a call in a transaction of its own."""
        database = self._app.database
        if database is None:
            if call.http is None:
                raise Unsupported("this is not possible over a hub: pass a connection to the database")
            if self._hub is None:
                from .hub import SyncHub

                self._hub = SyncHub(self._app.hub or "", self._app.token)
            result: T = self._hub.request(call.http)
            return result
        with self._opening:
            if self._pool is None:
                how = _how(database, self._app.pool_size)
                pool = _psycopg_pool().ConnectionPool(**how)
                _psycopg_module().connect(how["conninfo"], **how["kwargs"]).close()  # as above
                pool.open()
                self._pool = pool
            opened = self._pool
        with opened.connection() as conn:
            return _psycopg(conn, call)

    def close(self) -> None:
        """Closes all of them."""
        for each in (self._pool, self._hub):
            if each is not None:
                each.close()
        self._pool = self._hub = None


def _psycopg_module() -> Any:
    import psycopg

    return psycopg


def _psycopg_pool() -> Any:
    try:
        import psycopg_pool
    except ImportError as e:
        raise Unsupported("calls of the app's own need psycopg and its pool: pip install 'weir-pg[psycopg]'") from e
    return psycopg_pool


def connect(database: str) -> Any:
    """A single connection of psycopg, which fails at once if the server refuses it."""
    _psycopg_pool()  # says what to install
    import psycopg

    from .line import options, with_name

    return psycopg.connect(with_name(database), **options(30))


def _how(database: str, size: int) -> dict[str, Any]:
    from .line import options, with_name

    return {
        "conninfo": with_name(database),
        "min_size": 0,
        "max_size": size,
        "open": False,
        "timeout": 30,
        "max_idle": 60,
        "kwargs": options(30),
    }
