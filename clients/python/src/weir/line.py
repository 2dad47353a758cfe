"""A connection of a worker's own to the database: it is made again when it was lost, and every call ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from .errors import Invalid

log = logging.getLogger("weir")

# What no patience mends: a wrong password, database, or option. libpq gives no SQLSTATE of a refused connection.
HOPELESS = ("does not exist", "no such database", "authentication failed", "no password supplied", "pg_hba.conf", "invalid")
GIVE_UP = 10.0  # seconds that a cancelled statement has to end


class Unanswered(Exception):
    """A call had no answer: the server may have done what it was asked, or may not. is_unsure: it may even do it later."""

    def __init__(self, cause: BaseException, is_unsure: bool = False) -> None:
        super().__init__(str(cause).strip() or type(cause).__name__)
        self.is_unsure = is_unsure


class Line:
    """One connection, in autocommit. One call at a time."""

    def __init__(self, conninfo: str, lease: float) -> None:
        self._conninfo = conninfo
        self._lease = lease
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._is_framed = False

    async def fetch(self, sql: str, params: Sequence[Any], patience: float) -> list[tuple[Any, ...]]:
        """Runs a statement. Raises Unanswered, or the error with which the server has answered."""
        conn = await self._connected()
        call = asyncio.ensure_future(self._execute(conn, sql, params))
        try:
            done, _ = await asyncio.wait({call}, timeout=patience)
        except asyncio.CancelledError:  # whoever waits is told to end, but the statement must have ended before another begins
            await self._cancel(call)
            await self.close()
            raise
        if not done:
            if not await self._cancel(call):
                await self.close()
                raise Unanswered(TimeoutError(f"no answer for {patience:g} s"), is_unsure=True)
            raise Unanswered(TimeoutError(f"no answer for {patience:g} s: the statement was cancelled"))
        try:
            return call.result()
        except psycopg.Error as e:
            if conn.closed or e.sqlstate is None:
                await self.close()
                raise Unanswered(e) from e
            raise

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = None
            try:
                self._conn, self._is_framed = await connect(self._conninfo, self._lease)
            except psycopg.OperationalError as e:
                if any(what in str(e) for what in HOPELESS):
                    raise
                raise Unanswered(e) from e
        return self._conn

    async def _execute(self, conn: psycopg.AsyncConnection[Any], sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._is_framed and not sql.startswith("CALL"):
            async with conn.transaction():
                cursor = await conn.execute(sql, params or None)
                return await cursor.fetchall() if cursor.description else []
        cursor = await conn.execute(sql, params or None)
        return await cursor.fetchall() if cursor.description else []

    @staticmethod
    async def _cancel(call: asyncio.Future[Any]) -> bool:
        """Has the server cancel the statement, and waits for its end: psycopg does both when the task is cancelled."""
        call.cancel()
        done, _ = await asyncio.wait({call}, timeout=GIVE_UP)
        if done and not call.cancelled():
            call.exception()
        return bool(done)

    async def close(self) -> None:
        """Closes the connection; the next call makes another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                await conn.close()


def options(lease: float) -> dict[str, Any]:
    """Connection options: a silent connection fails in time, and PgBouncer in transaction mode has no prepared statements."""
    return {
        "autocommit": True,
        "prepare_threshold": None,
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": int(lease * 250),
    }


def with_name(conninfo: str) -> str:
    """The connection string with the name of this program, unless it has one, and with a driver's name removed."""
    conninfo = plain(conninfo)
    known = _parsed(conninfo)
    return conninfo if known.get("application_name") else psycopg.conninfo.make_conninfo(conninfo, application_name="weir-py")


def _parsed(conninfo: str) -> dict[str, Any]:
    """What a connection string says. Errors show nothing of it but its scheme, and names of options: any part may be one of the password."""
    scheme, separator, _ = conninfo.partition("://")
    wanted = "want postgresql://user:password@host:5432/database, or pairs such as host=localhost dbname=app"
    if separator and scheme not in ("postgres", "postgresql"):
        raise Invalid(f"the connection string of the database begins with {scheme if scheme.isalnum() else '?'}://: {wanted}")
    wanted += "; in a URL, characters of the password such as @ / % are written as %40 %2F %25"
    try:
        found = psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as e:
        option = re.search(r'invalid (?:connection option|URI query parameter:?) "(\w+)"', str(e))
        what = f"has the option {option[1]}, which PostgreSQL does not know" if option else "can't be read"
        raise Invalid(f"the connection string of the database {what}: {wanted}") from None
    if re.search("[^,]@", str(found.get("host") or "")) or re.search("[^0-9,]", str(found.get("port") or "")):
        raise Invalid(f"the connection string of the database has a host or a port that can't be: {wanted}")
    return found


def plain(conninfo: str) -> str:
    """A URL of SQLAlchemy (`postgresql+asyncpg://…`) as one of PostgreSQL."""
    scheme, separator, rest = conninfo.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}" if separator else conninfo


# What a worker's calls need, whatever the defaults of the role, the database and the server.
SETTLE = """SET jit = off; SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0;
SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; SET search_path = pg_catalog, pg_temp;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')"""
LOOK = "SELECT pg_backend_pid(), current_setting('default_transaction_isolation')"


async def connect(conninfo: str, lease: float) -> tuple[psycopg.AsyncConnection[Any], bool]:
    """A connection for calls of a worker, and whether each needs a transaction that is begun as READ COMMITTED.

    Through a pooler nothing may be set, because the pooler would pass the session on to other clients.
    """
    conn = await psycopg.AsyncConnection.connect(with_name(conninfo), row_factory=tuple_row, **options(lease))
    try:
        conn.add_notice_handler(_notice)
        pid, isolation = (await (await conn.execute(LOOK)).fetchall())[0]
        if pid == conn.info.backend_pid:
            await conn.execute(SETTLE)
        elif isolation != "read committed":
            await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            return conn, True
    except BaseException:
        await conn.close()
        raise
    return conn, False


def _notice(notice: psycopg.errors.Diagnostic) -> None:
    if (notice.message_primary or "").startswith("weir:"):
        log.warning("%s", notice.message_primary)
