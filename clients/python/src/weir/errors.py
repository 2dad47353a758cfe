"""What can go wrong, and what a task raises to say how its job goes on."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from datetime import timedelta

LOST = ("WR001", "WR002")  # the worker is unknown or fenced; the attempt is not its, or has ended
INSUFFICIENT_PRIVILEGE = "42501"


class WeirError(Exception):
    """The base of the errors of this package."""


class Invalid(WeirError, ValueError):
    """Something that was passed can't be used; the text says what, and what to do."""


class Lost(WeirError):
    """The attempt does not belong to this worker any more, or has ended: roll back, and do nothing else."""


class Unsupported(WeirError):
    """This is not possible over this connection; the text says over which it is."""


class HubError(WeirError):
    """A hub has refused a request. Programs should look at `code`, which is stable."""

    def __init__(self, status: int, code: str, error: str, hint: str | None = None) -> None:
        super().__init__(f"{error} ({hint})" if hint else error)
        self.status = status
        self.code = code
        self.hint = hint


class Fail(WeirError):
    """Raised in a task: the job fails for good, whatever attempts are left."""


class Snooze(WeirError):
    """Raised in a task: the job runs again after this time, which is no failure and uses up no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        self.seconds = seconds(delay, "Snooze")
        super().__init__(f"again in {self.seconds:g} s")


class RetryAfter(WeirError):
    """Raised in a task: the attempt has failed, and the next one follows after this time."""

    def __init__(self, delay: float | timedelta, error: str = "") -> None:
        self.seconds = seconds(delay, "RetryAfter")
        super().__init__(error or f"again in {self.seconds:g} s")


def seconds(delay: float | timedelta, of: str) -> float:
    """A time in seconds, checked."""
    n = delay.total_seconds() if isinstance(delay, timedelta) else -1.0
    if not isinstance(delay, (timedelta, str, bytes, bool)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            n = float(delay)
    if not 0 <= n <= 315576000:
        raise Invalid(f"{of} is {delay!r}: pass a number of seconds, from 0 to ten years, or a timedelta")
    return n


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it stands for: SQLAlchemy and Django wrap those of drivers."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        e = todo.pop()
        if e is not None and id(e) not in seen:
            seen.add(id(e))
            yield e
            todo += [e.__cause__, getattr(e, "orig", None)]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error of any driver, also if SQLAlchemy or Django has wrapped it; None: it has none."""
    for e in chain(error):
        code = getattr(e, "sqlstate", None) or getattr(e, "pgcode", None)
        if isinstance(code, str):
            return code
    return None


def hint(error: BaseException) -> str | None:
    """What to do about an error for which PostgreSQL has no hint: a privilege or the schema is missing."""
    state = sqlstate(error)
    if state == INSUFFICIENT_PRIVILEGE:
        denied = re.search(r"permission denied for (?:function|procedure|schema) (\w+)", str(error))
        if denied is None:
            return None
        if denied[1] == "weir":
            return "grant this user the role weir_enqueue to enqueue, weir_work to work, or weir_operate for everything but a hub"
        roles = {"enqueue": "weir_enqueue", "publish": "weir_publish", "retry": "weir_operate"}
        return f"grant this user the role {roles.get(denied[1].split('_')[0], 'weir_work')}"
    if state in ("3F000", "42883", "42P01") and re.search(r"\bweir\b", str(error)):
        return "Weir is not installed in this database, or an older version of it: run weir migrate up"
    return None


def is_refusal(error: BaseException) -> bool:
    """Whether a line says enough of an error: it is the package's own, or one of the database, the network or the operating system."""
    psycopg = sys.modules.get("psycopg")  # it may be missing; its errors for connections that were not made have no SQLSTATE
    return (
        isinstance(error, (WeirError, OSError))
        or sqlstate(error) is not None
        or (psycopg is not None and isinstance(error, psycopg.OperationalError))
    )


def line_of(error: BaseException, role: str = "weir_work") -> str:
    """An error in a line, and what to do about it. `role` is the one that allows what was tried."""
    state = sqlstate(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    what = "; ".join(lines) if state is None else lines[0]  # what follows shows where in Weir's own statement
    advice = f"grant this user the role {role}" if state == INSUFFICIENT_PRIVILEGE else hint(error)
    return f"{what}: {advice}" if advice else what


class Explained:
    """A context in which errors of the database get the hint that they lack, as a note (from Python 3.11 on)."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and hasattr(error, "add_note") and (note := hint(error)) is not None:
            error.add_note(f"weir: {note}")


explained = Explained()
