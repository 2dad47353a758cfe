"""What tests of an application need. The fixtures of pytest_plugin.py are made of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from . import operations
from .calls import execute
from .errors import Unsupported
from .job import Job
from .operations import JobInfo
from .timeout import within

if TYPE_CHECKING:
    from .app import Weir
    from .attempt import Attempt
    from .calls import AsyncPlace, SyncPlace


@dataclass(frozen=True)
class Ended:
    """How an attempt has ended: `outcome` is completed, failed, cancelled, snoozed or released."""

    job: Job
    outcome: str
    output: str | None
    error: str | None


@overload
def enqueued(place: AsyncPlace, max_rows: int = 1000) -> Awaitable[list[JobInfo]]: ...
@overload
def enqueued(place: SyncPlace, max_rows: int = 1000) -> list[JobInfo]: ...
def enqueued(place: Any, max_rows: int = 1000) -> Any:
    """The jobs that the transaction of this connection has enqueued, and nothing else: roll it back afterwards.

    Its role needs weir_work or weir_operate.
    """
    return execute(place, operations.enqueued(max_rows))


async def drain(app: Weir, queues: Mapping[str, int] | None = None, *, timeout: float = 60.0) -> list[Ended]:
    """Works the jobs that can run now, and those that they enqueue, until none is left; returns how each attempt ended.

    Jobs that are tried again later, or were snoozed, wait for another call. It can't see what an open transaction has
    enqueued: commit it first.
    """
    if app.database is None:
        raise Unsupported("drain needs an app with a database")
    found: list[Ended] = []

    def told(attempt: Attempt) -> None:
        end = attempt.ended or {}
        if attempt.handler is None and end.get("outcome") == "released":
            return  # of a kind that is another program's
        found.append(Ended(attempt.job, end.get("outcome", "completed"), end.get("output"), end.get("error")))

    worker = app.worker(queues, chores=False)
    from .line import Line

    line = Line(app.database, 30)
    await line.fetch("CALL weir.chores()", [], 60)  # what is due becomes available
    await line.close()
    worker.drain = True
    worker.on_end.append(told)
    await within(timeout, worker.run())
    return found


def drain_sync(app: Weir, queues: Mapping[str, int] | None = None, *, timeout: float = 60.0) -> list[Ended]:
    """The same for tests that are not async."""
    return asyncio.run(drain(app, queues, timeout=timeout))
