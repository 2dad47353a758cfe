"""A backend of Django Tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from weir import operations, text
from weir.calls import execute
from weir.errors import Invalid, sqlstate
from weir.operations import JobInfo, NewJob
from weir.options import JobOptions

from .names import BaseTaskBackend, TaskResultDoesNotExist, base, signals

KEYS = ("BACKEND", "QUEUES", "OPTIONS")  # of an entry of TASKS
OPTIONS = ("database", "max_attempts")
BACKEND = "django_backend"  # in the meta of a job: which of Django's backends has enqueued it


def priority_of(priority: int) -> int:
    """Weir's priority, 1 to 4, for Django's, 100 to -100: 1 above 0, 2 for 0, 3 below, and 4 from -50 down."""
    return 1 if priority > 0 else 2 if priority == 0 else 3 if priority > -50 else 4


class WeirBackend(BaseTaskBackend):  # type: ignore[misc]
    """Enqueues on Django's connection: a task that is enqueued in a transaction runs after its commit, and never after a rollback.

    OPTIONS: `database`, the alias of Django's database, by default the one that tasks are written to; `max_attempts`,
    25 by default.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def database(self) -> str:
        """The alias of the database."""
        return str(self.options.get("database") or "default")

    def new_job(self, task: Any, args: Any, kwargs: Any) -> NewJob:
        """The job for a task."""
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):  # USE_TZ is off: the time is in Django's time zone
            run_at = timezone.make_aware(run_at)
        options = JobOptions(
            queue=task.queue_name,
            priority=priority_of(task.priority),
            run_at=run_at,
            max_attempts=self.options.get("max_attempts"),
            meta={BACKEND: self.alias, "django_priority": task.priority},
        )
        return NewJob(task.module_path, text.dumps({"args": list(args), "kwargs": dict(kwargs)}, f"the arguments of {task.name}"), options)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        job = self.new_job(task, args, kwargs)
        done = execute(connections[self.database], operations.enqueue(job))
        result = self._result(task, str(done.id), list(args), dict(kwargs))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _result(self, task: Any, id_: str, args: list[Any], kwargs: dict[str, Any], **fields: Any) -> Any:
        known: dict[str, Any] = {
            "status": base.TaskResultStatus.READY,
            "enqueued_at": timezone.now(),
            "started_at": None,
            "finished_at": None,
            "last_attempted_at": None,
            "errors": [],
            "worker_ids": [],
        }
        return base.TaskResult(task=task, id=id_, args=args, kwargs=kwargs, backend=self.alias, **{**known, **fields})

    def get_result(self, result_id: str) -> Any:
        if not result_id.isdecimal():
            raise TaskResultDoesNotExist(result_id)
        try:
            job = execute(connections[self.database], operations.look(int(result_id)))
        except Exception as e:
            if sqlstate(e) == "22003":  # a number that no job has
                raise TaskResultDoesNotExist(result_id) from e
            raise
        if job is None or (job.meta or {}).get(BACKEND) != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return self.result_of(job)

    def result_of(self, job: JobInfo) -> Any:
        """What Django says of a job."""
        status = base.TaskResultStatus
        known = {"running": status.RUNNING, "completed": status.SUCCESSFUL, "failed": status.FAILED, "cancelled": status.FAILED}
        is_over = job.state in ("completed", "failed", "cancelled")
        errors = [_error(e.get("error") or "") for e in job.errors or [] if e.get("outcome") in ("failed", "retried", "lost", "cancelled")]
        attempts = job.attempt if job.state in ("running", "completed", "failed") else job.attempt - 1
        task = import_string(job.kind).using(queue_name=job.queue, priority=(job.meta or {}).get("django_priority"))
        result = self._result(
            task,
            str(job.id),
            job.args["args"],
            job.args["kwargs"],
            status=known.get(job.state, status.READY),
            enqueued_at=job.enqueued_at,
            started_at=job.claimed_at,
            last_attempted_at=job.claimed_at,
            finished_at=job.finished_at if is_over else None,
            errors=errors,
            worker_ids=[str(job.worker or "")] * attempts,
        )
        if job.state == "completed":
            object.__setattr__(result, "_return_value", job.result())
        return result

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        for name in sorted(set(settings.TASKS[self.alias]) - set(KEYS)):  # which a newer Django may know
            yield checks.Warning(f"TASKS[{self.alias!r}] has {name!r}, which does nothing", hint=f"It may have {', '.join(KEYS)}.", id="weir.W001")
        for name in sorted(set(self.options) - set(OPTIONS)):
            yield checks.Error(
                f"OPTIONS of TASKS[{self.alias!r}] has {name!r}, which Weir does not know", hint=f"It may have {', '.join(OPTIONS)}.", id="weir.E003"
            )
        try:
            JobOptions(max_attempts=self.options.get("max_attempts"))
        except Invalid as e:
            yield checks.Error(f"OPTIONS of TASKS[{self.alias!r}]: {e}", id="weir.E004")
        if self.database not in connections.settings:
            yield checks.Error(f"there is no database {self.database!r}", hint="Set OPTIONS['database'] of TASKS.", id="weir.E002")
            return
        connection = connections[self.database]
        if connection.vendor != "postgresql":
            yield checks.Error(
                f"the database {self.database!r} is {connection.vendor}: Weir needs PostgreSQL",
                hint="Set OPTIONS['database'] of TASKS.",
                id="weir.E001",
            )


def _error(error: str) -> Any:
    # The message begins with the class; builtins have no module there.
    name = text.message_of(error).partition(":")[0].strip()
    path = name if "." in name else f"builtins.{name}" if name.isidentifier() else "builtins.Exception"
    return base.TaskError(exception_class_path=path, traceback=error)
