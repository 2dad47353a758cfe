"""The job that a task's function runs for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import operations, text
from .args import result_to_json
from .calls import AsyncTx, SyncTx, execute, is_async
from .errors import LOST, Invalid, Lost, Unsupported, sqlstate
from .transactions import begin

if TYPE_CHECKING:
    from .attempt import Attempt

MAX_CHECKPOINT = 131072  # bytes of its JSON
Reason = Literal["cancelled", "lost", "stopping", "timeout"]
T = TypeVar("T")

_current: contextvars.ContextVar[Job | None] = contextvars.ContextVar("weir_job", default=None)


def current_job() -> Job:
    """The job that this task or thread runs for."""
    job = _current.get()
    if job is None:
        raise Invalid("there is no current job: current_job() is for code that a task calls")
    return job


class Interrupted:
    """Tells a function in a thread, which can't be stopped from outside, that it is to end."""

    __slots__ = ("_event", "reason")
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._event: threading.Event | None = None  # made by the first that waits: most jobs do not
        self.reason: Reason | None = None

    def is_set(self) -> bool:
        """Whether the function is to end."""
        return self.reason is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the function is to end, for at most so many seconds. Use it instead of time.sleep."""
        with self._lock:
            if self.reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(seconds)

    def set(self, reason: Reason) -> None:
        """Says why."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            event = self._event
        if event is not None:
            event.set()


class Job:
    """One attempt of a job: what it was enqueued with, and what its function can say about it.

    A function gets it if its first parameter is annotated with it, and anything that it calls by `weir.current_job()`.
    """

    __slots__ = (
        "_attempt",
        "args",
        "attempt",
        "enqueued_at",
        "flow",
        "id",
        "interrupted",
        "key",
        "kind",
        "max_attempts",
        "meta",
        "priority",
        "queue",
    )

    def __init__(
        self,
        *,
        id: int = 0,
        queue: str = "default",
        priority: int = 2,
        kind: str = "",
        args: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
        flow: int | None = None,
        attempt: int = 1,
        max_attempts: int = 25,
        enqueued_at: datetime | None = None,
        _attempt: Attempt | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.priority = priority
        self.kind = kind
        self.args = args if args is not None else {}
        self.meta = meta
        self.key = key
        self.flow = flow
        self.attempt = attempt
        self.max_attempts = max_attempts
        self.enqueued_at = enqueued_at or datetime.now(timezone.utc)
        self.interrupted = Interrupted()
        self._attempt = _attempt

    def __repr__(self) -> str:
        return f"<weir.Job {self.id} {self.kind} in {self.queue}, attempt {self.attempt} of {self.max_attempts}>"

    @property
    def sync(self) -> SyncJob:
        """What is awaited on a job, for functions in threads."""
        return SyncJob(self)

    @property
    def claimed(self) -> Attempt:
        """The attempt that a worker has claimed."""
        if self._attempt is None:
            raise Invalid(f"{self!r} was made by hand: no worker has claimed it")
        return self._attempt

    def progress(self, percent: float, message: str | None = None) -> None:
        """Says how far the attempt is, 0 to 100. It only changes memory: a worker stores it once a second."""
        if not 0 <= percent <= 100:
            raise Invalid(f"progress must be 0 to 100 percent, got {percent!r}")
        if self._attempt is not None:
            self._attempt.report.set(percent=float(percent), message=None if message is None else text.storable(message[:1000]))

    def log(self, line: str, level: str = "INFO") -> None:
        """Keeps a line with the attempt: up to 1,000 lines of up to 4 KiB."""
        if self._attempt is not None:
            self._attempt.report.add_line(text.storable(line), level)

    def set_checkpoint(self, checkpoint: Any) -> None:
        """Sets, as any JSON value, from where the next attempt goes on. It only changes memory: see `flush`."""
        written = result_to_json(checkpoint)
        if (size := len(text.dumps(written, "checkpoint").encode())) > MAX_CHECKPOINT:
            raise Invalid(
                f"the checkpoint has {size} bytes, at most {MAX_CHECKPOINT} are allowed: keep the data elsewhere, and its place in the checkpoint"
            )
        if self._attempt is not None:
            self._attempt.report.set(checkpoint=written)

    async def checkpoint(self) -> Any:
        """What was set last, by this attempt or an earlier one; None: nothing."""
        if self._attempt is None:
            return None
        return await self._attempt.load_checkpoint()

    async def flush(self) -> None:
        """Returns when what was set so far is stored."""
        if self._attempt is not None:
            await self._attempt.flush()

    @overload
    def set_checkpoint_tx(self, tx: AsyncTx, checkpoint: Any) -> Awaitable[None]: ...
    @overload
    def set_checkpoint_tx(self, tx: SyncTx, checkpoint: Any) -> None: ...
    def set_checkpoint_tx(self, tx: Any, checkpoint: Any) -> Any:
        """Sets the checkpoint in your transaction: the work and the checkpoint commit together, so each step is done exactly once."""
        return self._in(tx, lambda worker, token: operations.set_checkpoint(worker, token, result_to_json(checkpoint)))

    @overload
    def complete_tx(self, tx: AsyncTx, output: Any = None) -> Awaitable[None]: ...
    @overload
    def complete_tx(self, tx: SyncTx, output: Any = None) -> None: ...
    def complete_tx(self, tx: Any, output: Any = None) -> Any:
        """Completes the job in your transaction, which must be READ COMMITTED: its effects and the completion commit together, or not at all.

        Commit it, then return from the function. If it turns out not to be committed, the attempt counts as failed.
        """
        kept = text.output_text(result_to_json(output), self)
        if self._attempt is not None:
            self._attempt.completes = True
        return self._in(tx, lambda worker, token: operations.complete(worker, token, kept))

    def completing(self, tx: Any, output: Any = None) -> Completing:
        """`async with job.completing(session):`, or `with` for what is not async: a transaction that completes the job as it commits.

        It is a transaction of its own, or, in one that has begun already, a savepoint: commit that one then. Assign to
        `output` of what it returns to keep an output with the job.
        """
        return Completing(self, tx, output)

    def _in(self, tx: Any, call: Any) -> Any:
        attempt = self._attempt
        if attempt is None:
            return _nothing() if is_async(tx) else None
        if attempt.worker is None:
            raise Unsupported("a job that comes from a hub can't be completed in a transaction: let the worker connect to the database")
        done = call(attempt.worker, attempt.token)
        if is_async(tx):
            return _lost_or(execute(tx, done), self)
        try:
            return execute(tx, done)
        except Exception as e:
            raise _explained(e, self) from e


async def _nothing() -> None:
    return None


async def _lost_or(done: Awaitable[T], job: Job) -> T:
    try:
        return await done
    except Exception as e:
        raise _explained(e, job) from e


def _explained(error: Exception, job: Job) -> Exception:
    return Lost(f"{job!r} does not belong to this worker any more, or has ended: {error}") if sqlstate(error) in LOST else error


class Completing:
    """A transaction that completes a job."""

    def __init__(self, job: Job, tx: Any, output: Any) -> None:
        self.job = job
        self.output = output
        self._tx = tx
        self._begun: Any = None

    def _begin(self) -> Any:
        if self.job._attempt is not None:
            self.job._attempt.completes = True  # an error that is caught outside of the block does not complete the job
        self._begun = begin(self._tx)
        return self._begun

    async def __aenter__(self) -> Completing:
        await self._begin().__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            try:
                await self.job.complete_tx(self._tx, self.output)
            except BaseException as e:
                await self._begun.__aexit__(type(e), e, e.__traceback__)
                raise
        return bool(await self._begun.__aexit__(kind, error, trace))

    def __enter__(self) -> Completing:
        self._begin().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            try:
                self.job.complete_tx(self._tx, self.output)
            except BaseException as e:
                self._begun.__exit__(type(e), e, e.__traceback__)
                raise
        return bool(self._begun.__exit__(kind, error, trace))


class SyncJob:
    """What is awaited on a job, for functions in threads."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def _run(self, what: Any) -> Any:
        loop = self._job.claimed.loop
        return asyncio.run_coroutine_threadsafe(what, loop).result()

    def checkpoint(self) -> Any:
        """As Job.checkpoint."""
        return None if self._job._attempt is None else self._run(self._job.checkpoint())

    def flush(self) -> None:
        """As Job.flush."""
        if self._job._attempt is not None:
            self._run(self._job.flush())
