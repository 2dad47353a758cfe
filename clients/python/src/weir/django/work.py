"""Works the tasks of a Django project."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import close_old_connections, connections, reset_queries
from django.utils.module_loading import import_string

from weir.app import Weir
from weir.job import Job
from weir.operations import JobInfo
from weir.task import Handler

from .backend import BACKEND, WeirBackend
from .names import base, signals, task_backends


@contextmanager
def around_jobs(job: Job) -> Iterator[None]:
    """What Django does around a request: connections that are broken or too old are closed. Pass it to weir.Weir as one of `around`."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def conninfo(alias: str = "default") -> str:
    """The connection string of a database of Django."""
    import psycopg

    connection = connections[alias]
    given = dict(connection.get_connection_params())
    known = {k.keyword.decode() for k in psycopg.pq.Conninfo.get_defaults()}
    found = {name: str(value) for name, value in given.items() if name in known and value is not None}
    return psycopg.conninfo.make_conninfo(**found)


class DjangoApp(Weir):
    """An app whose tasks are those of Django, and whatever tasks are added to it."""

    def __init__(self, backend: WeirBackend) -> None:
        super().__init__(lambda: conninfo(backend.database), around=[around_jobs])
        self.backend = backend

    def kinds(self) -> list[str] | None:
        return None  # which there are, modules say when they are imported

    def queues(self) -> set[str] | None:
        return (super().queues() or set()) | self.backend.queues if self.backend.queues else None

    def handler(self, kind: str) -> Handler | None:
        found = super().handler(kind)
        if found is not None:
            return found
        try:
            task = import_string(kind)
        except ImportError:
            return None
        return self._handler_of(task) if isinstance(task, base.Task) else None

    def _handler_of(self, task: Any) -> Handler:
        is_async = inspect.iscoroutinefunction(task.func)

        def begin(job: Job) -> tuple[list[Any], dict[str, Any], Any]:
            result = self.backend.result_of(_info(job))
            signals.task_started.send(type(self.backend), task_result=result)
            args: list[Any] = [base.TaskContext(task_result=result)] if task.takes_context else []
            return [*args, *job.args["args"]], job.args["kwargs"], result

        def end(result: Any, output: Any, failed: bool) -> str:
            status = base.TaskResultStatus
            object.__setattr__(result, "status", status.FAILED if failed else status.SUCCESSFUL)
            object.__setattr__(result, "_return_value", output)
            signals.task_finished.send(type(self.backend), task_result=result)
            return json.dumps(output)

        if is_async:

            async def run_async(job: Job) -> str:
                args, kwargs, result = begin(job)
                try:
                    output = await task.func(*args, **kwargs)
                except BaseException:
                    end(result, None, True)
                    raise
                return end(result, output, False)

            return Handler(run_async, True)

        def run(job: Job) -> str:
            args, kwargs, result = begin(job)
            try:
                output = task.func(*args, **kwargs)
            except BaseException:
                end(result, None, True)
                raise
            return end(result, output, False)

        return Handler(run, False)


def _info(job: Job) -> JobInfo:
    return JobInfo(
        id=job.id,
        state="running",
        queue=job.queue,
        kind=job.kind,
        args=job.args,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        meta=job.meta,
        enqueued_at=job.enqueued_at,
    )


def make_app(alias: str = "default") -> DjangoApp:
    """The app of a backend of Django Tasks, to make a worker of."""
    backend = task_backends[alias]
    if not isinstance(backend, WeirBackend):
        raise TypeError(f"TASKS[{alias!r}] of the settings is {type(backend).__name__}, want weir.django.WeirBackend")
    return DjangoApp(backend)


def queues_of(alias: str) -> list[str]:
    """The queues that the settings name."""
    found = getattr(settings, "TASKS", {}).get(alias, {}).get("QUEUES")
    return list(found) if found else ["default"]


__all__ = ["BACKEND", "DjangoApp", "around_jobs", "conninfo", "make_app", "queues_of"]
