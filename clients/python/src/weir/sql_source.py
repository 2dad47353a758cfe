"""Works jobs over a connection to the database: docs/sql.md, "Work", describes the functions and what they ask of a worker.

Three connections: one takes, one records, and one does chores; a fourth, of guard.py, stands for the worker. Calls of take follow one another,
so it never happens that two are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Coroutine
from datetime import datetime, timezone
from typing import Any, TypeVar

import psycopg

from . import clock, operations
from .attempt import Attempt
from .errors import sqlstate
from .guard import Guard
from .job import Job
from .line import Line, Unanswered
from .runner import Runner
from .timeout import within

log = logging.getLogger("weir")
T = TypeVar("T")

START = "SELECT weir.start(%s, %s, make_interval(secs => %s))"
TAKE = """SELECT event, token, id, queue, priority, kind, args::text, meta::text, attempt, max_attempts,
  extract(epoch FROM enqueued_at)::double precision, key, flow
FROM weir.take(%s, queues => %s, limits => %s, held => %s, lost => %s, wait => make_interval(secs => %s))"""
RECORD = "SELECT token, refusal, detail FROM weir.record(%s, %s)"
PROGRESS = "SELECT token, refusal, detail FROM weir.progress(%s, %s)"
STOP = "SELECT weir.stop(%s)"

MOST = 960  # jobs of a queue that one take claims
IDLE = 1.0  # seconds that a take waits for work
BUSY = 0.02  # the same while a queue has no free slot: one that becomes free should not wait for work of other queues
FULL = 0.5  # seconds between two takes that claim nothing, which report cancellations
EMPTY = 3  # takes in a row that claim nothing: a single one may have been busy with the lease
REPORT = 1.0  # seconds between two calls of weir.progress
CHORES = 0.5
ENDS, ENDS_BYTES = 5_000, 16 << 20  # in one call of record, which takes up to 10,000 and 64 MiB
PERMANENT = ("22", "42", "3F", "0A", "28", "3D")  # classes of SQLSTATEs that no repetition mends


def _is_permanent(error: psycopg.Error) -> bool:
    state = sqlstate(error)
    return state is None or state[:2] in PERMANENT  # without one: the connection was refused


class SqlSource:
    """The worker's side of the five functions."""

    def __init__(self, conninfo: str, name: str, lease: float, does_chores: bool, started: asyncio.Event) -> None:
        self._conninfo = conninfo
        self._name = name
        self._lease = lease
        self._does_chores = does_chores
        self._taker, self._recorder, self._chorer = (Line(conninfo, lease) for _ in range(3))
        self._patience = max(lease / 4, 2.0) + IDLE
        self._recording = asyncio.Lock()
        self._unsent: list[dict[str, Any]] = []  # reports that are not stored yet
        self.worker = 0
        self.guard = Guard(conninfo, lease)
        self._started = started

    async def run(self, runner: Runner) -> None:
        self._runner = runner
        self.guard.begin(asyncio.get_running_loop(), runner)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._start()
            work = asyncio.create_task(self._take_all(), name="weir take")
            tasks = [
                work,
                asyncio.create_task(self._record_all(), name="weir record"),
                asyncio.create_task(self._report_all(), name="weir report"),
            ]
            if self._does_chores:
                tasks.append(asyncio.create_task(self._chores(), name="weir chores"))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop()
            self.guard.end()
            for line in (self._taker, self._recorder, self._chorer):
                await line.close()

    async def load_checkpoint(self, attempt: Attempt) -> Any:
        call = operations.checkpoint(attempt.job.id)
        while True:
            try:
                async with self._recording:
                    return call.convert(list(await self._recorder.fetch(call.sql, call.params, self._patience)))
            except Unanswered:
                await asyncio.sleep(0.2)

    def lapsed(self) -> bool:
        return self.guard.lapsed()

    def lapse(self) -> None:
        pass  # what is not named is taken for stranded

    # The worker begins and ends.

    async def _start(self) -> None:
        pause = 0.1
        while not self._runner.stopping:
            sent = clock.now()
            try:
                rows = await self._unless_stopped(self._taker.fetch(START, [self._name, list(self._runner.lanes), self._lease], 3600))
            except Unanswered as e:
                log.warning("can't start a worker yet: %s", e)
            except psycopg.Error as e:
                if _is_permanent(e):
                    raise
                log.warning("can't start a worker yet: %s", e)
            else:
                if rows is None:
                    return
                self.worker = rows[0][0]
                self.guard.renewed(self.worker, sent)
                self._started.set()
                log.info(
                    "worker %d (%s) works %s",
                    self.worker,
                    self._name,
                    ", ".join(f"{q} ({lane.slots})" for q, lane in self._runner.lanes.items()),
                )
                return
            await self._unless_stopped(asyncio.sleep(pause))
            pause = min(pause * 2, 2)

    async def _unless_stopped(self, what: Coroutine[Any, Any, T]) -> T | None:
        """Its result; None: the worker was told to stop meanwhile."""
        done = asyncio.create_task(what)
        stop = asyncio.create_task(self._runner.told_to_stop.wait())
        try:
            await asyncio.wait({done, stop}, return_when=asyncio.FIRST_COMPLETED)
            return done.result() if done.done() else None
        finally:
            done.cancel()
            stop.cancel()
            await asyncio.gather(done, stop, return_exceptions=True)

    async def _stop(self) -> None:
        """Records what has ended, and releases the rest; if the database can't be reached, others get it after the lease."""
        if not self.worker:
            return
        until = time.monotonic() + min(10.0, self._lease)
        with contextlib.suppress(Unanswered, psycopg.Error, asyncio.TimeoutError):
            await within(until - time.monotonic(), self._record_the_rest())
        while time.monotonic() < until:
            try:
                if (await self._taker.fetch(STOP, [self.worker], 5))[0][0]:
                    log.info("worker %d has stopped", self.worker)
                    return
            except Unanswered:
                pass
            except psycopg.Error as e:
                if sqlstate(e) == "WR001":
                    return
            await asyncio.sleep(0.05)

    async def _record_the_rest(self) -> None:
        await self._store_reports()
        while self._runner.ends:
            await self._record_some()

    async def _begin_again(self) -> None:
        self._runner.lose_all()
        self._unsent.clear()
        await self._start()

    # Taking.

    async def _take_all(self) -> None:
        runner, pause, is_lost, next_take, empty = self._runner, 0.1, False, 0.0, 0
        while not runner.is_done():
            runner.roomy.clear()
            room = runner.room()
            is_full = not any(room.values())
            if is_full and time.monotonic() < next_take:
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(max(0.01, next_take - time.monotonic()), runner.roomy.wait())
                continue
            wait = 0.0 if is_full or runner.drain else IDLE if all(room.values()) else BUSY
            try:
                claimed = await self._take(room, is_lost, wait)
            except Unanswered as e:
                log.warning("worker %d: %s", self.worker, e)
                is_lost = True
                if e.is_unsure:  # the call may still arrive, and take what was claimed later for stranded
                    await self._give_up()
                    is_lost = False
            except psycopg.Error as e:
                state = sqlstate(e) or ""
                if state in ("WR001", "WR003"):
                    log.error("worker %d was lost, and begins again: %s", self.worker, e)
                    await self._begin_again()
                    is_lost = False
                elif _is_permanent(e):
                    raise
                else:
                    log.warning("worker %d: %s", self.worker, e)
            else:
                is_lost, pause, next_take = False, 0.1, time.monotonic() + min(FULL, self._lease / 6)
                empty = 0 if claimed or runner.held else empty + 1
                if runner.drain and empty == EMPTY:
                    runner.stop()
                elif runner.drain and not claimed:
                    await asyncio.sleep(0.01)
                continue
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 2)

    async def _take(self, room: dict[str, int], is_lost: bool, wait: float) -> int:
        runner, worker = self._runner, self.worker
        held = list(runner.held)
        sent = clock.now()
        limits = [min(n, MOST) for n in room.values()]
        rows = await self._taker.fetch(TAKE, [worker, list(room), limits, held, is_lost, wait], self._patience)
        self.guard.renewed(worker, sent)
        claimed = 0
        for event, token, job_id, queue, priority, kind, args, meta, number, most, at, key, flow in rows:
            if event == "job":
                claimed += 1
                job = Job(
                    id=job_id,
                    queue=queue,
                    priority=priority,
                    kind=kind,
                    key=key,
                    flow=flow,
                    attempt=number,
                    max_attempts=most,
                    enqueued_at=datetime.fromtimestamp(at, timezone.utc),
                )
                runner.accept(Attempt(runner, worker, token, job, args, meta))
            elif event == "cancel":
                runner.cancelled(token)
        return claimed

    async def _give_up(self) -> None:
        """Nothing but a new worker is safe: the old one releases what it holds, once it can be reached."""
        old = self.worker
        self._runner.lose_all()
        with contextlib.suppress(Unanswered, psycopg.Error):
            await self._taker.fetch(STOP, [old], 5)
        await self._start()

    # Recording.

    async def _record_all(self) -> None:
        runner, pause = self._runner, 0.05
        while True:
            await runner.ended.wait()
            await asyncio.sleep(0)  # lets others that have ended join
            runner.ended.clear()
            try:
                while runner.ends:
                    await self._record_some()
                pause = 0.05
            except (Unanswered, psycopg.Error) as e:
                if isinstance(e, psycopg.Error) and _is_permanent(e):
                    raise
                if sqlstate(e) != "WR001":  # otherwise the next take says so as well
                    log.warning("worker %d: ends are recorded again: %s", self.worker, e)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2)
                if runner.ends:
                    runner.ended.set()

    async def _record_some(self) -> None:
        runner = self._runner
        async with self._recording:
            batch = runner.next_ends(ENDS, ENDS_BYTES)
            try:
                if any(a.token in runner.reporting for a in batch) or self._unsent:
                    await self._send_reports()
                if not batch:
                    return
                rows = await self._recorder.fetch(RECORD, [self.worker, json.dumps([a.ended for a in batch])], max(self._patience, 30))
            except BaseException:
                runner.ends.extendleft(reversed(batch))
                raise
        refused = {token: (refusal, detail) for token, refusal, detail in rows}
        for attempt in batch:
            runner.recorded(attempt, *refused.get(attempt.token, (None, None)))

    async def _report_all(self) -> None:
        while True:
            await asyncio.sleep(REPORT)
            if self._runner.reporting or self._unsent:
                try:
                    await self._store_reports()
                except (Unanswered, psycopg.Error) as e:
                    log.warning("worker %d: reports are stored again: %s", self.worker, e)

    async def store_reports(self) -> None:
        """Stores what attempts have reported, however long that takes."""
        while True:
            try:
                await self._store_reports()
                return
            except Unanswered:
                await asyncio.sleep(0.2)

    async def _store_reports(self) -> None:
        async with self._recording:
            await self._send_reports()

    async def _send_reports(self) -> None:
        while entries := (self._unsent or self._runner.next_reports(500)):
            self._unsent = []
            part, size = [], 0
            for i, entry in enumerate(entries):
                text = json.dumps(entry)
                size += len(text)
                if i and size > 8 << 20:
                    self._unsent = entries[i:]
                    break
                part.append(text)
            try:
                rows = await self._recorder.fetch(PROGRESS, [self.worker, f"[{','.join(part)}]"], max(self._patience, 30))
            except psycopg.Error as e:
                if (sqlstate(e) or "")[:2] == "22":  # such reports will never be stored
                    log.error("worker %d: reports are dropped: %s", self.worker, e)
                    continue
                self._unsent = entries
                raise
            except BaseException:
                self._unsent = entries
                raise
            for token, refusal, detail in rows:
                if refusal == "invalid":
                    log.error("a report of the attempt %s can't be stored: %s", token, detail)
                    # What it says beside its checkpoint may be good.
                    given = [dict(e) for e in entries if e["token"] == token and "checkpoint" in e]
                    self._unsent += [e for e in given if e.pop("checkpoint", True) is not True and len(e) > 1]

    # Chores.

    async def _chores(self) -> None:
        while True:
            await asyncio.sleep(CHORES * random.uniform(0.75, 1.25))
            try:
                await self._chorer.fetch("CALL weir.chores()", [], 120)
            except (Unanswered, psycopg.Error) as e:
                log.warning("chores: %s", e)
                await asyncio.sleep(2)
