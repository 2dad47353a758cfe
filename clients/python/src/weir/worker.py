"""A worker: claims jobs of some queues and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import args, text
from .errors import Invalid, Unsupported, line_of, seconds
from .options import NAME, number
from .runner import Runner

if TYPE_CHECKING:
    from .app import Weir
    from .attempt import Attempt

log = logging.getLogger("weir")

SLOTS = 10  # of a queue, if no number is given
START = 5.0  # seconds that a program waits for its worker


class Worker:
    """Made by `app.worker(…)`."""

    def __init__(
        self,
        app: Weir,
        queues: Mapping[str, int] | None,
        *,
        name: str | None,
        lease: float,
        timeout: float | timedelta,
        stop_timeout: float,
        chores: bool,
    ) -> None:
        self._app = app
        if queues is not None and not isinstance(queues, Mapping):
            raise Invalid(f"queues are {queues!r}: pass a dict of how many jobs of each run at once, such as {{'mail': 8}}")
        self.queues = dict(queues) if queues else dict.fromkeys(sorted(app.queues() or ()), SLOTS)
        if not self.queues:
            raise Invalid("a worker needs a queue, such as {'mail': 8}: the app has no tasks either")
        for queue, slots in self.queues.items():
            text.named(queue, "the name of a queue", NAME)
            number(slots, f"the number of slots of queue {queue!r}", "1 to 10,000 of its jobs may run at once", 1, 10_000)
        lease = seconds(lease, "lease")
        if not 1 <= lease <= 300:
            raise Invalid(f"lease is {lease:g} s: a worker's lease is 1 second to 5 minutes")
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.lease = lease
        self.timeout = seconds(timeout, "timeout")
        self.stop_timeout = seconds(stop_timeout, "stop_timeout")
        self.chores = chores
        self.drain = False
        self.on_end: list[Callable[[Attempt], None]] = []
        self.exit_on_lapse = False  # the process ends if the lease does, and functions in threads can't be interrupted
        self._runner: Runner | None = None
        self._source: Any = None
        self._stops = 0
        self._registered = asyncio.Event()

    async def run(self) -> None:
        """Works until `stop`; raises if it can't go on, such as when the database refuses the role. Runs once at a time."""
        if self._runner is not None:
            raise Invalid(f"worker {self.name} is running already")
        kinds = self._app.kinds()
        if kinds == []:
            raise Invalid("the app has no tasks: import the modules that define them before the worker runs")
        if (known := self._app.queues()) is not None:
            for queue in self.queues.keys() - known:
                log.warning(
                    "no task of the app is in queue %r, but in %s: if it is misspelt, nothing will come", queue, ", ".join(map(repr, sorted(known)))
                )
        args.load(task.args for task in self._app.tasks.values())
        handlers = {kind: self._app.handler(kind) for kind in kinds} if kinds is not None else None
        runner = Runner(
            handlers.get if handlers is not None else self._app.handler,
            self.queues,
            self.timeout,
            self.stop_timeout,
            self._app.around,
            self.drain,
        )
        runner.on_end = self.on_end
        source = self._source_of(kinds)
        self._runner, self._source = runner, source
        try:
            for _ in range(self._stops):
                runner.stop()
            await runner.run(source)
        finally:
            self._runner, self._stops = None, 0
            self._registered.clear()

    @property
    def number(self) -> int | None:
        """Its number in the database, also when it has begun again; None: it has none, or a hub is the worker."""
        return getattr(self._source, "worker", None) or None

    def _source_of(self, kinds: list[str] | None) -> Any:
        database = self._app.database
        if database is not None:
            try:
                from .sql_source import SqlSource
            except ImportError as e:
                raise Unsupported(f"a worker needs psycopg: pip install 'weir-pg[psycopg]' ({e})") from e
            source = SqlSource(database, self.name, self.lease, self.chores, self._registered)
            if self.exit_on_lapse:
                source.guard.on_lapse = self._exit_if_threads_run
            return source
        from .hub_source import HubSource

        return HubSource(self._app.hub or "", self._app.token, self.name, kinds, self._registered)

    def _exit_if_threads_run(self) -> None:
        if self._runner is not None and self._runner.running:
            os.write(2, b"weir-py: the lease is over, others may get the jobs that run here: the process ends\n")
            os._exit(75)

    def stop(self) -> None:
        """Claims no more jobs, and lets `run` return when those that run have ended.

        What still runs after stop_timeout is interrupted and released. A second call does not wait for it.
        """
        self._stops += 1
        if self._runner is not None:
            self._runner.stop()

    async def wait_started(self, task: asyncio.Task[Any] | None = None, timeout: float | None = None) -> None:
        """Waits until the worker is registered, its task has ended, which raises what that has raised, or the timeout is over."""
        registered = asyncio.ensure_future(self._registered.wait())
        try:
            await asyncio.wait({w for w in (registered, task) if w is not None}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            registered.cancel()
        if task is not None and task.done():
            task.result()

    def told_end(self, task: asyncio.Task[None]) -> None:
        """Logs that the worker could not go on."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker %s has ended, and runs no further jobs: %s", self.name, line_of(error))

    async def run_until_signalled(self) -> None:
        """Works until the process gets SIGTERM or SIGINT; a second one does not wait for running jobs."""
        loop = asyncio.get_running_loop()
        for s in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(s, self.stop)
        try:
            await self.run()
        finally:
            for s in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError):
                    loop.remove_signal_handler(s)
