"""Runs attempts: async functions as tasks of the worker's loop, others in threads, as many of each queue at once as it has slots.

A source (sql_source.py, hub_source.py) claims attempts and records their ends. It belongs to one loop, as the runner
does; only functions in threads, and what they report, come from elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from .args import result_to_json
from .attempt import Attempt, described, end_of
from .job import Job, Reason, _current
from .task import Handler
from .text import loads, message_of, output_text, size_in_json

log = logging.getLogger("weir")
failures = logging.getLogger("weir.jobs")

# Short jobs take less time than a round trip to the database: so many are claimed ahead as run in this time.
AHEAD = 0.1  # seconds
AHEAD_FROM = 5.0  # jobs that a slot runs in a second
MOST_AHEAD = 800
MEASURE = 0.02  # seconds
MOST_UNRECORDED = 10_000  # ends; beyond it nothing is claimed
SWEEP = 0.25  # seconds between two looks for timeouts
UNKNOWN = 600.0  # seconds until the log names a kind again that has no handler
MOST_UNKNOWN = 1000  # such kinds: anyone who enqueues can invent some
NOT_COMMITTED = "the job was completed in a transaction that was not committed"


class Source(Protocol):
    """Where attempts come from and their ends go."""

    async def run(self, runner: Runner) -> None:
        """Works until the runner is done after it was told to stop."""

    async def load_checkpoint(self, attempt: Attempt) -> Any:
        """The checkpoint of an earlier attempt."""

    async def store_reports(self) -> None:
        """Stores what attempts have reported."""

    def lapsed(self) -> bool:
        """Whether the lease may be over, so that others may get the jobs."""

    def lapse(self) -> None:
        """What ran was given up, and nothing may keep it for this worker."""


class Lane:
    """A queue's slots."""

    __slots__ = ("_since", "ended", "rate", "ready", "running", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.running = 0
        self.ready: deque[Attempt] = deque()
        self.ended = 0  # since the rate was measured
        self.rate = 0.0  # jobs that end in a second
        self._since = time.monotonic()

    def room(self) -> int:
        """How many more attempts it can hold."""
        now = time.monotonic()
        passed = now - self._since
        if passed > MEASURE:
            self.rate += (self.ended / passed - self.rate) / 2
            self.ended, self._since = 0, now
        # Only if a slot runs several jobs a second: long jobs are left to workers that have a slot for them.
        ahead = min(int(self.rate * AHEAD), MOST_AHEAD) if self.rate > AHEAD_FROM * self.slots else 0
        return max(0, self.slots + ahead - self.running - len(self.ready))


class Runner:
    """The attempts that one worker holds."""

    def __init__(
        self,
        handler_of: Callable[[str], Handler | None],
        queues: dict[str, int],
        timeout: float,
        stop_timeout: float,
        around: Iterable[Callable[[Job], AbstractContextManager[Any]]] = (),
        drain: bool = False,
    ) -> None:
        self._handler_of = handler_of
        self.lanes = {name: Lane(slots) for name, slots in queues.items()}
        self.timeout = timeout
        self.stop_timeout = stop_timeout
        self._around = tuple(around)
        self.drain = drain  # it stops when there is nothing left to run
        self.held: dict[str, Attempt] = {}  # by token, from the claim until the end is recorded
        self.reporting: dict[str, Attempt] = {}  # those that have reported something
        self.ends: deque[Attempt] = deque()  # not yet recorded
        self.running: set[Attempt] = set()
        self.ended = asyncio.Event()  # there are ends
        self.roomy = asyncio.Event()  # a slot is free, or the worker is to stop
        self.stopping = False
        self.told_to_stop = asyncio.Event()
        self._stop_at = 0.0
        self.on_end: list[Callable[[Attempt], None]] = []
        self.loop: asyncio.AbstractEventLoop
        self.source: Source
        self._threads: ThreadPoolExecutor | None = None
        self._returned: deque[tuple[Attempt, Any, BaseException | None]] = deque()  # from threads
        self._lock = threading.Lock()
        self._told = False
        self._has_given_up = False  # since the lease is over
        self._told_unknown: dict[str, float] = {}  # kinds without a handler, and when the log is to name each again

    async def run(self, source: Source) -> None:
        """Works until it is stopped; raises if it can't go on."""
        self.loop = asyncio.get_running_loop()
        self.source = source
        sweeper = self.loop.create_task(self._sweep())  # ended below
        try:
            await source.run(self)
        finally:
            sweeper.cancel()
            self.interrupt_all("stopping")
            if tasks := [a.task for a in self.running if a.task is not None]:
                await asyncio.wait(tasks, timeout=1)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Claims nothing more; what runs may end within stop_timeout. A second call interrupts it now."""
        now = time.monotonic()
        self._stop_at = now if self.stopping else now + self.stop_timeout
        self.stopping = True
        self.told_to_stop.set()
        for lane in self.lanes.values():
            while lane.ready:
                self._end(lane.ready.popleft(), {"outcome": "released", "delay": 0, "error": "the worker was stopped"})
        self.roomy.set()
        self.ended.set()

    def is_done(self) -> bool:
        """Whether everything has ended, and was recorded; or what has not was given enough time."""
        if not self.stopping:
            return False
        late = time.monotonic() > self._stop_at + 2  # what was interrupted had time to end
        return late or (not self.running and not self.held)

    def room(self) -> dict[str, int]:
        """How many jobs of each queue to claim."""
        if self.stopping or len(self.ends) > MOST_UNRECORDED:
            return dict.fromkeys(self.lanes, 0)
        return {name: lane.room() for name, lane in self.lanes.items()}

    # Attempts begin and end.

    def accept(self, attempt: Attempt) -> None:
        """Takes an attempt that was claimed, and runs it when a slot is free."""
        self.held[attempt.token] = attempt
        if self.stopping:
            self._end(attempt, {"outcome": "released", "delay": 0, "error": "the worker was stopped"})
            return
        lane = self.lanes[attempt.job.queue]
        if lane.running < lane.slots:
            self._start(lane, attempt)
        else:
            lane.ready.append(attempt)

    def _start(self, lane: Lane, attempt: Attempt) -> None:
        if self.source.lapsed():  # before the sweep notices: this process, or its machine, did not run for a while
            self.forget(attempt)
            self._give_up()
            return
        self._has_given_up = False
        kind = attempt.job.kind
        try:
            handler = attempt.handler = self._handler_of(kind)
        except Exception as e:  # of Django: the import of the task's module
            failures.warning("job %s (%s) failed: its task can't be loaded: %r", attempt.job.id, kind, e)
            self._end(attempt, {"outcome": "failed", "error": described(e)})
            return
        if handler is None:
            self._tell_unknown(attempt.job)
            self._end(attempt, {"outcome": "released", "error": f"no handler for kind {kind}"})
            return
        lane.running += 1
        attempt.started = time.monotonic()
        self.running.add(attempt)
        if handler.is_async:
            attempt.task = self.loop.create_task(self._run_async(attempt, handler))
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(sum(k.slots for k in self.lanes.values()), "weir")
            self._threads.submit(self._run_in_thread, attempt, handler)

    def _tell_unknown(self, job: Job) -> None:
        now = time.monotonic()
        if now < self._told_unknown.get(job.kind, now):
            return
        if len(self._told_unknown) >= MOST_UNKNOWN:
            self._told_unknown.clear()
        self._told_unknown[job.kind] = now + UNKNOWN
        log.warning(
            "no handler for kind %s in this worker: its jobs, such as %s in queue %s, are released, for workers that have one",
            job.kind,
            job.id,
            job.queue,
        )

    async def _run_async(self, attempt: Attempt, handler: Handler) -> None:
        job, output, error = attempt.job, None, None
        _current.set(job)
        try:
            if attempt.reason is not None:  # before it has begun
                raise asyncio.CancelledError
            attempt.begun = True
            self._decode(attempt)
            if self._around:
                with self._all_around(job):
                    output = await handler.run(job)
            else:
                output = await handler.run(job)
        except BaseException as e:
            error = e
        self._returns(attempt, output, error)

    def _run_in_thread(self, attempt: Attempt, handler: Handler) -> None:
        job, output, error = attempt.job, None, None
        token = _current.set(job)
        try:
            if attempt.reason is not None:
                raise asyncio.CancelledError
            self._decode(attempt)
            with self._all_around(job):
                output = handler.run(job)
        except BaseException as e:
            error = e
        _current.reset(token)
        with self._lock:
            self._returned.append((attempt, output, error))
            told, self._told = self._told, True
        if not told:
            try:
                self.loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # the loop was closed: the worker has stopped without this thread
                log.warning("job %s returned after its worker had stopped", job.id)

    def _collect(self) -> None:
        with self._lock:
            returned, self._returned, self._told = self._returned, deque(), False
        for attempt, output, error in returned:
            self._returns(attempt, output, error)

    def _all_around(self, job: Job) -> ExitStack:
        stack = ExitStack()
        try:
            for around in self._around:
                stack.enter_context(around(job))
        except BaseException:
            stack.close()
            raise
        return stack

    @staticmethod
    def _decode(attempt: Attempt) -> None:
        # Here, where an error is this attempt's alone.
        if attempt.args_text is not None:
            attempt.job.args = loads(attempt.args_text)
        if attempt.meta_text is not None:
            attempt.job.meta = loads(attempt.meta_text)

    def _returns(self, attempt: Attempt, output: Any, error: BaseException | None) -> None:
        lane = self.lanes[attempt.job.queue]
        lane.running -= 1
        self.running.discard(attempt)
        lane.ended += 1
        try:
            end = self._judged(attempt, output, error)
        except BaseException as e:  # of what the application has given, such as an error whose class compares in its own way
            log.exception("job %s (%s): how its attempt goes on can't be told, so it has failed", attempt.job.id, attempt.job.kind)
            end = {"outcome": "failed", "error": described(e)}
        if end is None:
            self.forget(attempt)
        else:
            self._end(attempt, end)
        while lane.ready and lane.running < lane.slots:
            self._start(lane, lane.ready.popleft())
        self.roomy.set()

    def _judged(self, attempt: Attempt, output: Any, error: BaseException | None) -> dict[str, Any] | None:
        """How an attempt has ended; None: it is released when the worker stops."""
        job = attempt.job
        if error is None and attempt.completes:
            return {"outcome": "failed", "error": NOT_COMMITTED}  # refused if it was committed, and asked again as long as it is open
        if error is None and output is not None:
            try:
                output = output_text(result_to_json(output), f"job {job.id} ({job.kind})")
            except Exception as e:
                error = e
        if error is None:
            return {"output": output}
        end = end_of(attempt, error, self._timeout_of(attempt))
        if end is not None and end["outcome"] == "failed":
            is_last = bool(end.get("final")) or job.attempt >= job.max_attempts  # unless a retry rule of the database says otherwise
            failures.log(
                logging.WARNING if is_last else logging.INFO,
                "job %s (%s) failed%s: %s",
                job.id,
                job.kind,
                " for good" if is_last else "",
                message_of(described(error)),
            )
        return end

    def _end(self, attempt: Attempt, end: dict[str, Any]) -> None:
        if attempt.reason == "lost":
            self.forget(attempt)
            return
        end["token"] = attempt.token
        attempt.ended = end
        self.ends.append(attempt)
        self.ended.set()

    # What the source says.

    def cancelled(self, token: str, reason: Reason = "cancelled") -> None:
        """An attempt was cancelled or lost: interrupts it, once."""
        attempt = self.held.get(token)
        if attempt is None or attempt.reason is not None or attempt.ended is not None:
            return
        lane = self.lanes[attempt.job.queue]
        if attempt not in self.running and attempt in lane.ready:
            lane.ready.remove(attempt)
            attempt.reason = reason
            self._end(attempt, {"outcome": "cancelled"})
            return
        attempt.interrupt(reason)
        if reason == "lost":
            self.forget(attempt)

    def recorded(self, attempt: Attempt, refusal: str | None = None, detail: str | None = None) -> None:
        """An end was recorded, or refused."""
        if refusal in ("busy", "unavailable"):
            self.loop.call_later(0.1, self._again, attempt)
            return
        if refusal == "invalid":
            end = {"token": attempt.token, "outcome": "failed", "error": f"the end of the attempt can't be recorded: {detail}"}
            if attempt.ended != end:
                attempt.ended = end
                self._again(attempt)
                return
            log.error("job %s (%s): no end of the attempt can be recorded: %s", attempt.job.id, attempt.job.kind, detail)
        if refusal == "lost":
            log.warning("job %s (%s): the attempt was lost before its end was recorded; it runs again", attempt.job.id, attempt.job.kind)
        for told in self.on_end:
            told(attempt)
        self.forget(attempt)

    def _again(self, attempt: Attempt) -> None:
        if self.held.get(attempt.token) is attempt:
            self.ends.append(attempt)
            self.ended.set()

    def forget(self, attempt: Attempt) -> None:
        """The worker does not hold it any more."""
        if self.held.get(attempt.token) is attempt:
            del self.held[attempt.token]
        if self.reporting.get(attempt.token) is attempt:  # and not one that a hub has given once more
            del self.reporting[attempt.token]
        self.roomy.set()

    def lose_all(self) -> None:
        """Others may have the jobs: interrupts and drops everything."""
        for lane in self.lanes.values():
            lane.ready.clear()
        for attempt in list(self.held.values()):
            attempt.interrupt("lost")
            self.forget(attempt)
        self.ends.clear()

    def interrupt_running(self) -> None:
        """The lease is over: what runs may also run elsewhere. What has ended can still be recorded."""
        for lane in self.lanes.values():
            while lane.ready:
                self.forget(lane.ready.popleft())
        for attempt in list(self.running):
            attempt.interrupt("lost")
            self.forget(attempt)
        self.source.lapse()

    def interrupt_all(self, reason: Reason) -> None:
        """Interrupts what runs."""
        for attempt in list(self.running):
            attempt.interrupt(reason)

    # Ends and reports for the source to store.

    def next_ends(self, most: int, most_bytes: int) -> list[Attempt]:
        """Ends to record together, at least one if there are any."""
        batch: list[Attempt] = []
        size = 0
        while self.ends and len(batch) < most:
            attempt = self.ends[0]
            end = attempt.ended or {}
            size += size_in_json(end.get("output")) + size_in_json(end.get("error")) + 200
            if batch and size > most_bytes:
                break
            self.ends.popleft()
            if self.held.get(attempt.token) is attempt:
                batch.append(attempt)
        return batch

    def next_reports(self, most: int) -> list[dict[str, Any]]:
        """Entries of what attempts have reported since; each with its token."""
        entries: list[dict[str, Any]] = []
        for attempt in list(self.reporting.values()):
            entries += [{"token": attempt.token, **e} for e in attempt.report.take(attempt.ended is not None)]
            if len(entries) >= most:
                break
        return entries

    async def flush_reports(self) -> None:
        """Returns when everything reported before the call is stored."""
        await self.source.store_reports()

    # Timeouts, and the lease.

    def _timeout_of(self, attempt: Attempt) -> float:
        own = attempt.handler.timeout if attempt.handler is not None else None
        return self.timeout if own is None else own

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            for attempt in list(self.running):
                timeout = self._timeout_of(attempt)
                if timeout and attempt.reason is None and now > attempt.started + timeout:
                    attempt.interrupt("timeout")
            if self.stopping and now > self._stop_at:
                self.interrupt_all("stopping")
            if not self.source.lapsed():
                self._has_given_up = False
            elif self.running:
                self._give_up()

    def _give_up(self) -> None:
        if not self._has_given_up:  # a frame may bring a thousand jobs, and a function in a thread may run on
            log.error("nothing was heard for so long that others may get the jobs: %d that run are interrupted", len(self.running))
        self._has_given_up = True
        self.interrupt_running()
