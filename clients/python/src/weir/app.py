"""The app: where jobs go, and the tasks that run them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from . import operations, text
from .args import result_to_json
from .calls import Call, execute, is_async
from .errors import Invalid, Unsupported
from .job import Job
from .operations import Enqueued, JobInfo, NewJob
from .options import NAME, JobOptions, Retry, Unique, number
from .sync import Sync
from .task import Handler, Task, kind_of

if TYPE_CHECKING:
    from .calls import AsyncPlace, SyncPlace
    from .messages import Gap, Message, Presence
    from .pool import Pool
    from .subscribe import Subscription
    from .worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Token = str | Callable[[], str] | Callable[[], Awaitable[str]]


class Weir:
    """Where jobs go, and the tasks that run them.

        app = weir.Weir("postgresql://localhost/app")
        app = weir.Weir(hub="https://hub.example.com", token=get_token)

    `database` is what psycopg takes, or a function that returns it when it is first needed. `hub` is the address of a
    hub: for jobs if there is no database, and to subscribe. `token` is sent to the hub, or a function that returns it,
    which is called for each connection, because tokens expire. `pool_size` is how many connections the app has for
    calls that are not made in a transaction of yours; a worker has its own. `around` are context managers around each
    attempt: they get the job.
    """

    def __init__(
        self,
        database: str | Callable[[], str] | None = None,
        *,
        hub: str | None = None,
        token: Token | None = None,
        pool_size: int = 4,
        around: Sequence[Callable[[Job], AbstractContextManager[Any]]] = (),
    ) -> None:
        if database is None and hub is None:
            raise Invalid("an app needs a database or a hub: pass a connection string, or hub=")
        if hub is not None and not hub.startswith(("http://", "https://")):
            raise Invalid(f"hub is {hub!r}, want a URL such as https://hub.example.com")
        self._database = database
        self.hub = hub.rstrip("/") if hub is not None else None
        self.token = token
        self.pool_size = pool_size
        self.around = list(around)
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.sync = Sync(self)
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    @property
    def database(self) -> str | None:
        """The connection string; None: jobs go over the hub."""
        return self._database() if callable(self._database) else self._database

    # Tasks.

    @overload
    def task(self, fn: Callable[Concatenate[Job, P], R]) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R]) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | timedelta | None = None,
        priority: int | None = None,
        unique: Unique | bool | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> _Decorator: ...
    def task(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        queue: str | None = None,
        kind: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | timedelta | None = None,
        priority: int | None = None,
        unique: Unique | bool | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Makes a function a task. It may be async, or not: then it runs in a thread.

        `kind` names its jobs in the database, in which programs in other languages may work them too: by default the
        function's name. `retry`: how jobs are tried again, or only how many attempts they have. `timeout`: of one
        attempt, an hour by default; 0: none. The others are defaults for its jobs.
        """
        if isinstance(retry, int):
            number(retry, "retry", "a job has 1 to 1000 attempts", 1, 1000)
            retry = Retry(attempts=retry)
        elif retry is not None and not isinstance(retry, Retry):
            raise Invalid(f"retry is {retry!r}: pass a number of attempts, or a weir.Retry")
        options = JobOptions(queue=queue, priority=priority, unique=unique, meta=meta, max_attempts=retry.attempts if retry else None)

        def make(f: Callable[..., Any]) -> Task[Any, Any]:
            found: Task[Any, Any] = Task(self, f, text.named(kind_of(f) if kind is None else kind, "kind", NAME), options, retry, timeout)
            if found.kind in self.tasks:
                raise Invalid(f"there are two tasks of kind {found.kind}: {self.tasks[found.kind].fn!r} and {f!r}; pass another kind to one")
            self.tasks[found.kind] = found
            return found

        return make if fn is None else make(fn)

    def handler(self, kind: str) -> Handler | None:
        """What a worker runs for jobs of this kind."""
        found = self.tasks.get(kind)
        return None if found is None else found.handler

    def kinds(self) -> list[str] | None:
        """The kinds that a worker has handlers for; None: it is seen when there is a job."""
        return list(self.tasks)

    def queues(self) -> set[str] | None:
        """The queues that tasks are in; None: any."""
        return {t.options.queue or "default" for t in self.tasks.values()}

    # Enqueue.

    @overload
    def enqueue_many(self, place: AsyncPlace, jobs: Sequence[NewJob]) -> Awaitable[list[Enqueued]]: ...
    @overload
    def enqueue_many(self, place: SyncPlace, jobs: Sequence[NewJob]) -> list[Enqueued]: ...
    def enqueue_many(self, place: Any, jobs: Sequence[NewJob]) -> Any:
        """Enqueues up to 10,000 jobs in one statement, all or none. `task.new(…)` makes one."""
        if not jobs:
            return _no_jobs() if is_async(place) else []
        return execute(place, operations.enqueue_many(jobs))

    def new(
        self,
        kind: str,
        args: Mapping[str, Any] | None = None,
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
    ) -> NewJob:
        """A job of a kind that has no task here, because another program works it."""
        if args is not None and not isinstance(args, Mapping):
            raise Invalid(f"args of {kind} are {args!r}: want a dict")
        options = JobOptions(queue, priority, run_at, delay, key, unique, max_attempts, meta, flow, once)
        what = f"args of {text.named(kind, 'kind', NAME)}"
        try:
            return NewJob(kind, text.dumps(result_to_json(dict(args or {})), what), options)
        except ValueError as e:  # also pydantic's
            raise e if isinstance(e, Invalid) and what in str(e) else Invalid(f"{what} can't be written as JSON: {e}") from e

    @overload
    def enqueue(self, place: AsyncPlace, job: NewJob) -> Awaitable[Enqueued]: ...
    @overload
    def enqueue(self, place: SyncPlace, job: NewJob) -> Enqueued: ...
    def enqueue(self, place: Any, job: NewJob) -> Any:
        """Enqueues a job that `task.new(…)` or `app.new(…)` has made."""
        return execute(place, operations.enqueue(job))

    # Look and operate. `app.sync` has the same for programs that are not async.

    async def job(self, id: int) -> JobInfo | None:
        """Looks a job up; None: there is none, or it has ended long ago."""
        return await self._call(operations.look(id))

    async def cancel(self, id: int) -> str | None:
        """Cancels a job: `cancelled`; `running`, if it runs, and will be interrupted; or the state in which it has ended.

        None: there is no such job.
        """
        return await self._call(operations.cancel(id))

    async def retry(self, id: int) -> str | None:
        """Runs a job that has ended again. Returns the state in which it is now; None: there is none."""
        return await self._call(operations.retry(id))

    async def publish(self, channel: str, payload: str | bytes) -> None:
        """Publishes a message in a transaction of its own. In one of yours: `publish_tx`."""
        await self._call(operations.publish(channel, payload))

    @overload
    def publish_tx(self, place: AsyncPlace, channel: str, payload: str | bytes) -> Awaitable[None]: ...
    @overload
    def publish_tx(self, place: SyncPlace, channel: str, payload: str | bytes) -> None: ...
    def publish_tx(self, place: Any, channel: str, payload: str | bytes) -> Any:
        """Publishes a message in your transaction: it is delivered after the commit."""
        return execute(place, operations.publish(channel, payload))

    @overload
    def flow(self, place: AsyncPlace, name: str, *, on_done: NewJob | None = None, on_success: NewJob | None = None) -> Awaitable[int]: ...
    @overload
    def flow(self, place: SyncPlace, name: str, *, on_done: NewJob | None = None, on_success: NewJob | None = None) -> int: ...
    def flow(self, place: Any, name: str, *, on_done: NewJob | None = None, on_success: NewJob | None = None) -> Any:
        """Begins a flow: jobs enqueued with its number as `flow` are its members, and these jobs run when all have ended. `seal` it then."""
        done, success = (None if j is None else j.to_json(by_clock=True) for j in (on_done, on_success))
        return execute(place, operations.flow(name, done, success))

    @overload
    def seal(self, place: AsyncPlace, flow: int) -> Awaitable[None]: ...
    @overload
    def seal(self, place: SyncPlace, flow: int) -> None: ...
    def seal(self, place: Any, flow: int) -> Any:
        """Says that no further jobs are added to a flow, except by its members."""
        return execute(place, operations.seal(flow))

    @overload
    def subscribe(
        self, *channels: str, position: str | None = None, last: int = 0, presence: Literal[False] = False, skip_if_slow: bool = False
    ) -> Subscription[Message | Gap]: ...
    @overload
    def subscribe(
        self, *channels: str, position: str | None = None, last: int = 0, presence: bool, skip_if_slow: bool = False
    ) -> Subscription[Message | Gap | Presence]: ...
    def subscribe(self, *channels: str, position: str | None = None, last: int = 0, presence: bool = False, skip_if_slow: bool = False) -> Any:
        """Receives the messages of channels and patterns from the hub.

        `last`: begin with so many of the last messages of each, in `history`. `presence`: hear who joins and leaves.
        """
        from .subscribe import Subscription

        if self.hub is None:
            raise Unsupported("to subscribe, an app needs a hub: pass hub= besides the database")
        return Subscription(self.hub, channels, token=self.token, position=position, last=last, presence=presence, skip_if_slow=skip_if_slow)

    # Work.

    def worker(
        self,
        queues: Mapping[str, int] | None = None,
        *,
        name: str | None = None,
        lease: float = 30.0,
        timeout: float | timedelta = 3600.0,
        stop_timeout: float = 25.0,
        chores: bool = True,
    ) -> Worker:
        """A worker for the app's tasks. `queues`: how many jobs of each queue run at once; by default 10 of each that a task names.

        `lease`: after so many seconds of silence, others get the worker's jobs. `timeout`: of one attempt, unless its
        task has one; 0: none. `stop_timeout`: how long running jobs may take to end when the worker is told to stop.
        `chores`: False if other workers do them.
        """
        from .worker import Worker

        return Worker(self, queues, name=name, lease=lease, timeout=timeout, stop_timeout=stop_timeout, chores=chores)

    @asynccontextmanager
    async def working(self, queues: Mapping[str, int] | None = None, **options: Any) -> AsyncIterator[Worker]:
        """Works while its block runs, and then stops gracefully. `options` are those of `worker`.

        If the database or the hub can't be reached for five seconds, the block begins all the same, and the worker goes
        on trying; what they refuse, such as a wrong password, is raised. If the worker ends early, the log says why.
        """
        from .worker import START

        worker = self.worker(queues, **options)
        task = asyncio.create_task(worker.run(), name="weir worker")
        try:
            await worker.wait_started(task, START)
            task.add_done_callback(worker.told_end)
            yield worker
        finally:
            worker.stop()
            try:
                await task
            finally:
                await self.close()

    def lifespan(self, queues: Mapping[str, int] | None = None, **options: Any) -> Callable[[Any], AbstractContextManager[Any]]:
        """A lifespan for FastAPI, Starlette and other ASGI frameworks: `FastAPI(lifespan=app.lifespan({"mail": 8}))`."""

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            async with self.working(queues, **options):
                yield

        return lifespan  # type: ignore[return-value]

    # Connections of the app's own.

    async def __aenter__(self) -> Weir:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections that calls of this event loop have used. Calls make new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _call(self, call: Call[T]) -> T:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            from .pool import Pool

            for other in [k for k in self._pools if k.is_closed()]:
                del self._pools[other]
            pool = self._pools[loop] = Pool(self)
        return await pool.call(call)


async def _no_jobs() -> list[Enqueued]:
    return []


class _Decorator:
    """What `app.task(…)` returns; only its types matter."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R]) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Task[P, R]: ...
    def __call__(self, fn: Any) -> Any:
        raise NotImplementedError


def loads(args: str) -> Any:
    """JSON from a command line."""
    try:
        return json.loads(args)
    except ValueError as e:
        raise Invalid(f"{args!r} is not JSON: {e}") from e
