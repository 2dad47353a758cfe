"""Tasks: functions that run as jobs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from . import operations
from .args import Args
from .calls import execute
from .errors import Invalid, seconds
from .job import Job
from .operations import Enqueued, NewJob
from .options import JobOptions, Retry, Unique

if TYPE_CHECKING:
    from .app import Weir
    from .calls import AsyncPlace, SyncPlace

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Handler:
    """What a worker runs for jobs of a kind: `run` gets the job, whose args are decoded JSON."""

    run: Callable[[Job], Any]
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None  # 0: none; None: the worker's


class Task(Generic[P, R]):
    """A function that runs as a job. Call it to run it here and now, as tests do; `enqueue` it to have a worker run it."""

    def __init__(
        self, app: Weir, fn: Callable[..., R], kind: str, options: JobOptions, retry: Retry | None, timeout: float | timedelta | None
    ) -> None:
        self.app = app
        self.fn = fn
        self.kind = kind
        self.options = options
        self.retry = retry
        self.timeout = None if timeout is None else seconds(timeout, f"timeout of task {kind}")
        self.args = Args(fn, kind, Job)
        self.__name__ = getattr(fn, "__name__", kind)
        self.__doc__ = fn.__doc__
        self.__module__ = getattr(fn, "__module__", __name__)
        self.__wrapped__ = fn

    def __repr__(self) -> str:
        return f"<weir.Task {self.kind} in {self.options.queue or 'default'}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here. If it takes the job, it gets one that is in no database, unless one is passed."""
        if self.args.takes_job and not (args and isinstance(args[0], Job)):
            return self.fn(Job(kind=self.kind, queue=self.options.queue or "default"), *args, **kwargs)
        return self.fn(*args, **kwargs)

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        key: str | None = None,
        unique: Unique | bool | None = None,
        max_attempts: int | None = None,
        meta: Mapping[str, Any] | None = None,
        flow: int | None = None,
        once: str | None = None,
    ) -> Task[P, R]:
        """The task with other options, to enqueue a job with."""
        options = JobOptions(queue, priority, run_at, delay, key, unique, max_attempts, meta, flow, once)
        other = copy.copy(self)
        other.options = options.over(self.options)
        return other

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job for `enqueue_many`."""
        return NewJob(self.kind, self.args.write(args, kwargs), self.options)

    @overload
    def enqueue(self, place: AsyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[Enqueued]: ...
    @overload
    def enqueue(self, place: SyncPlace, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued: ...
    def enqueue(self, place: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueues a job in the transaction of a connection or session: the job runs after its commit, and never after a rollback.

        `place` is a connection of psycopg, asyncpg or Django, or a connection or session of SQLAlchemy; or the app, for
        a transaction of its own. The result is awaited if the connection is.
        """
        return execute(place, operations.enqueue(self.new(*args, **kwargs)))

    @property
    def handler(self) -> Handler:
        """What a worker runs."""
        is_async = inspect.iscoroutinefunction(inspect.unwrap(self.fn)) or inspect.iscoroutinefunction(getattr(self.fn, "__call__", None))  # noqa: B004
        fn, args, takes_job = self.fn, self.args, self.args.takes_job

        def run(job: Job) -> Any:
            found = args.read(job.args)
            return fn(job, **found) if takes_job else fn(**found)

        return Handler(run, is_async, self.retry, self.timeout)


def kind_of(fn: Callable[..., Any]) -> str:
    """The kind of a function's jobs, if no other is given: its name."""
    name = getattr(fn, "__name__", "")
    if not name.isidentifier():
        raise Invalid(f"{fn!r} has no name: pass the kind of its jobs as kind")
    return name
